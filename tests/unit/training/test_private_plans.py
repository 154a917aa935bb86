"""What a proposed plan costs a client to refuse, and that a plan which ended stays ended."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.training.gated import raiser

pytest.importorskip("torch")
pytest.importorskip("scipy")

from flwr.app import Context, Message

from flower_ldp.accounting.ledger import Ledger
from flower_ldp.clients import dpsgd_charging
from flower_ldp.clients.dpsgd_charging import MOST_WANTING, ProposedPlans
from flower_ldp.errors import LedgerError, RefusalError
from flower_ldp.mechanisms import TrainingPlan
from flower_ldp.wire.training_plan import plan_fields
from tests.unit.training.gated import Site, weights

#: A plan of the policy's own numbers, and what of it a server may change.
NUMBERS: dict[str, Any] = {
    "rounds": 2,
    "steps": 3,
    "rate": 1.0,
    "noise": 2.1,
    "clip": 1.0,
    "epsilon": 8.0,
    "delta": 1e-2,
}


def proposed(**changes: Any) -> dict[str, Any]:
    return plan_fields(TrainingPlan(**{**NUMBERS, **changes}))


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[TrainingPlan]:
    """Return the plans whose noise was computed: all but those of noise 0.1 have enough."""
    found: list[TrainingPlan] = []

    def check(plan: TrainingPlan) -> None:
        found.append(plan)
        if plan.noise < 1:
            raise ValueError("noise is not enough")

    monkeypatch.setattr(dpsgd_charging, "check_noise", check)
    monkeypatch.setattr("flower_ldp.clients.dpsgd_charging.PROPOSED_PLANS", ProposedPlans())
    return found


@pytest.fixture
def open_site(tmp_path: Path) -> Site:
    """Return a site that leaves the plan to the server."""
    site = Site(tmp_path, life=17.0)
    text = (tmp_path / "policy.yaml").read_text()
    (line,) = (line for line in text.splitlines(keepends=True) if "plan:" in line)
    (tmp_path / "policy.yaml").write_text(text.replace(line, ""))
    return site


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"epsilon": 8.5}, "policy"),
        ({"delta": 0.02}, "policy"),
        ({"delta": 0.2}, "policy"),
        ({"rounds": 10**6, "steps": 10**6}, "proposal"),
        (None, "policy"),
    ],
)
def test_what_the_policy_does_not_allow_is_refused_without_computing(
    open_site: Site, computed: list[TrainingPlan], changes: dict[str, Any] | None, code: str
) -> None:
    asked = {**proposed(), **{f"ldp-{name}": value for name, value in (changes or {}).items()}}
    if changes is None:  # another plan than the owner's
        open_site, asked = Site(open_site.folder), proposed(noise=2.2)
    assert open_site.ask(config=asked).error.reason == f"ldp:refused:{code}"
    assert computed == []


def test_what_the_budget_does_not_hold_is_refused_without_computing(
    open_site: Site, computed: list[TrainingPlan]
) -> None:
    found = [open_site.ask(f"m-{n}", config=proposed(name=n)).has_error() for n in "abc"]
    assert found == [False, False, True]
    assert open_site.ask("m-c", config=proposed(name="c")).error.reason == "ldp:refused:budget"
    open_site.ask("m-d", config=proposed(name="a"))
    assert open_site.ask("m-e", config=proposed(name="a")).error.reason == "ldp:refused:budget"
    assert len(computed) == 2


def test_a_plan_that_is_paid_for_is_not_computed_again(
    open_site: Site, computed: list[TrainingPlan], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither for its next round, nor for a message that comes again, nor by another process."""
    open_site.ask("m-1", config=proposed())
    monkeypatch.setattr("flower_ldp.clients.dpsgd_charging.PROPOSED_PLANS", ProposedPlans())
    for message_id in ("m-2", "m-1"):
        assert not open_site.ask(message_id, config=proposed()).has_error()
    assert len(computed) == 1


def test_of_a_run_few_wanting_plans_are_computed_and_each_once(
    open_site: Site, computed: list[TrainingPlan]
) -> None:
    for number in (0, *range(MOST_WANTING + 3)):
        asked = proposed(noise=0.1 + number / 100)
        found = open_site.ask(f"m-{len(computed)}-{number}", config=asked).error
        assert found.reason == "ldp:refused:policy"
        assert len(computed) == min(number + 1, MOST_WANTING)
    assert open_site.entries() == []


def test_runs_are_counted_by_themselves_and_few_are_remembered(
    computed: list[TrainingPlan], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dpsgd_charging, "_MOST_RUNS", 3)
    wanting, found = TrainingPlan(**{**NUMBERS, "noise": 0.1}), ProposedPlans()
    for run in (1, 2, 3, 1, 4):
        with pytest.raises(RefusalError, match="not enough"):
            found.check(run, wanting)
    assert len(computed) == 4
    with pytest.raises(RefusalError):
        found.check(1, wanting)  # the oldest has gone
    assert len(computed) == 5
    found.check(1, TrainingPlan(**NUMBERS))


def test_a_plans_own_number_of_examples_is_charged_and_leaves(tmp_path: Path) -> None:
    site = Site(tmp_path)
    text = (tmp_path / "policy.yaml").read_text()
    own = text.replace("unit: example", "unit: example\n      examples: 7")
    (tmp_path / "policy.yaml").write_text(own)
    assert site.ask().content.metric_records["metrics"]["num-examples"] == 7
    assert json.loads(site.entries()[0].parameters)["examples"] == 7


# A plan that ended.


raising = raiser(OSError("no such file"))


@pytest.fixture
def locked(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Let no plan be ended in the ledger until the returned function is called."""
    end_plan = Ledger.end_plan

    def fails(self: Ledger, charge: Any) -> None:
        raise LedgerError("database is locked")

    monkeypatch.setattr(Ledger, "end_plan", fails)
    monkeypatch.setattr(dpsgd_charging, "_owed", set())
    return lambda: monkeypatch.setattr(Ledger, "end_plan", end_plan)


def owed(site: Site) -> list[Path]:
    return [path for path in site.folder.iterdir() if dpsgd_charging.ENDED_SUFFIX in path.name]


@pytest.mark.parametrize("restarted", [False, True])
def test_a_plan_whose_end_the_ledger_did_not_take_is_over(
    tmp_path: Path,
    locked: Callable[[], None],
    restarted: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failing, site = Site(tmp_path, task=raising), Site(tmp_path)
    first = weights(failing.ask())
    if restarted:
        monkeypatch.setattr(dpsgd_charging, "_owed", set())
    # As long as the ledger does not take it, there is no round.
    assert site.ask("m-2").error.reason == "ldp:refused:ledger"
    locked()
    assert site.ask("m-2").error.reason == "ldp:refused:budget"
    assert owed(site) == []
    assert [entry.releases for entry in site.entries()] == [0, 1, 1]
    # What has left is given again.
    assert weights(site.ask("m-1")).tolist() == first.tolist()
    assert site.ask("m-3").error.reason == "ldp:refused:budget"


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], None]]:
    """Return what is counted in the second after a fixed moment, which is not over."""
    waiting: list[Callable[[], None]] = []

    class Held:
        def __init__(self, _: float, function: Callable[..., None], args: Any) -> None:
            self.start = lambda: waiting.append(lambda: function(*args))

    monkeypatch.setattr("flower_ldp.clients.ldp_mod.threading.Timer", Held)
    return waiting


MOMENT = "{train: 0.1}"


def test_a_plan_is_over_with_the_answer_and_not_when_the_failure_is_counted(
    tmp_path: Path, quiet: list[Callable[[], None]]
) -> None:
    """A process that is killed in between has ended the plan too."""
    first = weights(Site(tmp_path, task=raising, moment=MOMENT).ask())
    site = Site(tmp_path)
    assert (len(quiet), site.counts()["failed"]) == (1, 0)
    assert site.ask("m-2").error.reason == "ldp:refused:budget"
    before = site.entries()
    quiet.pop()()
    assert site.counts()["failed"] == 1
    assert site.ask("m-2").error.reason == "ldp:refused:budget"
    assert site.entries() == before
    assert [entry.releases for entry in before] == [0, 1, 1]
    assert weights(site.ask("m-1")).tolist() == first.tolist()


def test_the_end_of_a_plan_takes_no_writing_of_its_own_at_the_moment(
    tmp_path: Path, quiet: list[Callable[[], None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[tuple[str, list[int]]] = []
    seal = Ledger.seal

    def seen(self: Ledger, receipt: Any, report: bytes, *, last: bytes, parts: bool) -> None:
        files = [path.stat().st_size for path in (folder / "ledger.sqlite.models").iterdir()]
        kept.append((report[:11].decode(), [len(report), *files]))
        seal(self, receipt, report, last=last, parts=parts)

    monkeypatch.setattr(Ledger, "seal", seen)
    for task, name in ((raising, "fails"), (None, "trains")):
        folder = tmp_path / name
        folder.mkdir()
        Site(folder, task=task, moment=MOMENT if task else "{}").ask()
    (ends_with, one), (goes_on, other) = kept
    assert (ends_with, goes_on) == ("ldp-last--1", "ldp-model-1")
    assert one == other


@pytest.mark.parametrize("moment", ["{}", MOMENT])
def test_a_round_that_was_underway_when_its_plan_ended_does_not_leave(
    tmp_path: Path, quiet: list[Callable[[], None]], moment: str
) -> None:
    """Else each of the rounds that a server asks for at once would tell whether its app failed."""

    def asked_meanwhile(sent: Message, given: Context) -> Message:
        assert not Site(tmp_path, task=raising, moment=moment).ask("m-2").has_error()
        return site.train(sent, given)

    site = Site(tmp_path, task=asked_meanwhile)
    assert site.ask("m-1").error.reason == "ldp:refused:budget"
    assert [entry.sealed for entry in site.entries()] == [False, False, True]
    assert len(list((tmp_path / "ledger.sqlite.models").iterdir())) == 1
    assert site.ask("m-1").error.reason == "ldp:refused:repeat"


def test_of_two_failures_at_once_one_is_told(
    tmp_path: Path, quiet: list[Callable[[], None]]
) -> None:
    def asked_meanwhile(sent: Message, given: Context) -> Message:
        Site(tmp_path, task=raising).ask("m-2")
        raise OSError("no such file either")

    assert Site(tmp_path, task=asked_meanwhile).ask("m-1").error.reason == "ldp:refused:budget"
    assert Site(tmp_path).counts()["failed"] == 2


def test_a_plan_of_another_run_goes_on(tmp_path: Path, locked: Callable[[], None]) -> None:
    Site(tmp_path, task=raising).ask()
    (file,) = owed(Site(tmp_path))
    assert file.read_bytes() == b""
    assert file.stat().st_mode & 0o077 == 0
    locked()
    site = Site(tmp_path, life=17.0, plan=str({**OWN, "clip": 2.0}))
    assert not site.ask("m-2").has_error()
    assert owed(site) == [file]


OWN = {name: NUMBERS[name] for name in ("rounds", "steps", "rate", "noise", "clip")}


def test_where_the_end_can_be_kept_nowhere_nothing_leaves(
    tmp_path: Path, locked: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the server it is a gap, as if the process had been killed; here it is remembered."""

    def full(*_: Any, **__: Any) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(dpsgd_charging, "make_whole", full)
    assert Site(tmp_path, task=raising).ask().error.reason == "ldp:failed"
    site = Site(tmp_path)
    assert owed(site) == []
    locked()
    assert site.ask("m-1").error.reason == "ldp:refused:repeat"
    assert site.ask("m-2").error.reason == "ldp:refused:budget"


def test_a_killed_process_is_a_gap_and_the_next_round_goes_on(tmp_path: Path) -> None:
    """The round is marked as used before the app sees the message; nothing of it will leave."""

    def dies(sent: Message, given: Context) -> Message:
        assert len(Site(tmp_path).entries()) == 2
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Site(tmp_path, task=dies).ask("m-1")
    site = Site(tmp_path)
    assert site.ask("m-1").error.reason == "ldp:refused:repeat"
    assert not site.ask("m-2").has_error()
    assert site.ask("m-3").error.reason == "ldp:refused:budget"


def test_the_outlook_is_logged_once_before_the_charge(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level("INFO", "flower_ldp")
    site, when = Site(tmp_path), []
    log = dpsgd_charging.log_outlook

    def seen(*what: Any) -> None:
        when.append(len(site.entries()))
        log(*what)

    monkeypatch.setattr(dpsgd_charging, "log_outlook", seen)
    site.ask()
    site.ask("m-2")
    assert when == [0]  # nothing was charged yet
    assert caplog.text.count("outlook of the plan, by this site alone and 2 outputs: ") == 1
