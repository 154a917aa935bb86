"""Policy, ledger and gate together: refused, charged, stored, given again."""

from __future__ import annotations

import logging
import os
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Context, Message, RecordDict

from flower_ldp.accounting.ledger import Ledger
from flower_ldp.accounting.ledger.anchor import FileAnchor
from flower_ldp.clients import LdpMod, OwnerAuthorizer, ReleaseRequest, SignDSRelease
from flower_ldp.errors import RefusalError
from flower_ldp.mechanisms import SignDS
from flower_ldp.privacy import Unit
from flower_ldp.refusals import HINTS
from flower_ldp.wire.proposal import PAYLOAD_KEY, REPORT_KEY
from tests.fixtures import context, message, proposal, record

SELECTION = SignDS(epsilon=4.0, k=0.2)
MODEL = {"w": np.zeros(400, dtype=np.float32)}
POLICY = """
data_id: ward-7
ledger: spent.sqlite
mode: {mode}
messages:
  train:
    signds: {{epsilon: 4.0}}
    magrr: {{epsilon: 1.0}}
budgets:
  client:
    run: {{epsilon: 10.0}}
    life: {{epsilon: 14.0}}
"""


@pytest.fixture(params=["deployment", "simulation"])
def policy(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "policy.yaml"
    path.write_text(POLICY.format(mode=request.param))
    monkeypatch.setenv("FLOWER_LDP_POLICY", str(path))
    Ledger.open(tmp_path / "spent.sqlite", create=True).close()
    return path


def app(sent: Message, _: Context) -> Message:
    update = np.random.default_rng(0).normal(size=400).astype(np.float32)
    return Message(RecordDict({"arrays": record({"w": update})}), reply_to=sent)


def never(sent: Message, _: Context) -> Message:
    raise AssertionError("the app was asked")


def ask(name: str, inner: object = app, selection: SignDS = SELECTION) -> Message:
    gate = LdpMod(train=SignDSRelease(), authorizer=OwnerAuthorizer())
    return gate(message(proposal(MODEL, selection), message_id=name), context(), inner)  # type: ignore[arg-type]


def payload(reply: Message) -> object:
    return reply.content.config_records[REPORT_KEY][PAYLOAD_KEY]


def spent(policy: Path) -> float:
    with Ledger.open(policy.parent / "spent.sqlite") as ledger:
        (name,) = ledger.data_ids()
        assert name == ("ward-7/0" if "mode: simulation" in policy.read_text() else "ward-7")
        return float(ledger.totals(name)[Unit.CLIENT].epsilon_text)


def test_releases_are_charged_until_the_budget_is_spent(policy: Path) -> None:
    assert isinstance(payload(ask("m-1")), bytes)
    assert isinstance(payload(ask("m-2")), bytes)
    assert spent(policy) == 8.0
    refused = ask("m-3", never)
    assert refused.error.reason == "ldp:refused:budget"
    assert spent(policy) == 8.0


def test_the_same_message_gets_the_same_report_at_no_charge(policy: Path) -> None:
    first = payload(ask("m-1"))
    assert payload(ask("m-1", never)) == first
    assert spent(policy) == 4.0


def test_the_same_message_with_other_terms_is_refused(policy: Path) -> None:
    ask("m-1")
    refused = ask("m-1", never, SignDS(epsilon=3.0, k=0.2))
    assert refused.error.reason == "ldp:refused:repeat"


def test_a_release_that_failed_stays_charged_and_is_not_drawn_again(policy: Path) -> None:
    def broken(sent: Message, _: Context) -> Message:
        raise ValueError("secret")

    reply = ask("m-1", broken)
    assert spent(policy) == 4.0
    if "mode: simulation" in policy.read_text():
        assert reply.error.reason == "ldp:failed"
        assert ask("m-1", never).error.reason == "ldp:refused:repeat"
        assert counts(policy) == {}
    else:
        assert payload(ask("m-1", never)) == payload(reply)
        assert counts(policy) == {"failed": 1, "again": 1}


def counts(policy: Path) -> dict[str, int]:
    with Ledger.open(policy.parent / "spent.sqlite") as ledger:
        (name,) = ledger.data_ids()
        return {kind: number for kind, number in ledger.counts(name).items() if number}


def test_a_message_without_a_release_needs_a_policy_and_a_ledger(
    policy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = LdpMod(acknowledged=["train"])
    sent = message(proposal(MODEL, SELECTION))
    assert payload(gate(sent, context(), app)) == b""
    (policy.parent / "spent.sqlite").write_bytes(b"not a database, by far")
    assert gate(sent, context(), never).error.reason == "ldp:refused:ledger"
    monkeypatch.delenv("FLOWER_LDP_POLICY")
    assert gate(sent, context(), never).error.reason == "ldp:refused:policy"


def test_only_a_charge_without_a_report_is_gone_on_with(policy: Path) -> None:
    opened = SignDSRelease().open(proposal(MODEL, SELECTION))
    request = ReleaseRequest(3, "m-1", "train", opened.events, opened.parameters)
    owner = OwnerAuthorizer()
    with pytest.raises(RefusalError, match="is not charged"):
        owner.resume(request, context())
    owner.authorize(request, context()).close()
    with pytest.raises(RefusalError, match="for another request"):
        owner.resume(replace(request, parameters="{}"), context())
    owner.resume(request, context()).keep(b"report", False)
    assert spent(policy) == 4.0
    with pytest.raises(RefusalError, match="has a report"):
        owner.resume(request, context())
    assert owner.authorize(request, context()).stored == b"report"


def test_a_larger_epsilon_than_allowed_is_refused_and_not_charged(policy: Path) -> None:
    assert ask("m-1", never, SignDS(epsilon=4.5, k=0.2)).error.reason == "ldp:refused:policy"
    with Ledger.open(policy.parent / "spent.sqlite") as ledger:
        assert ledger.data_ids() == []


def test_without_a_policy_nothing_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FLOWER_LDP_POLICY", raising=False)
    assert ask("m-1", never).error.reason == "ldp:refused:policy"


def test_a_changed_policy_holds_from_the_next_release_on(policy: Path) -> None:
    assert isinstance(payload(ask("m-1")), bytes)
    times = policy.stat()
    policy.write_text(
        policy.read_text().replace("signds: {epsilon: 4.0}", "signds: {epsilon: 3.0}")
    )
    os.utime(policy, ns=(times.st_atime_ns, times.st_mtime_ns))  # however old the file looks
    assert ask("m-2", never).error.reason == "ldp:refused:policy"


def test_a_policy_with_a_mistake_lets_nothing_leave(policy: Path) -> None:
    policy.write_text(policy.read_text() + "typo: 1\n")
    assert ask("m-1", never).error.reason == "ldp:refused:policy"


@pytest.mark.skipif(os.name != "posix", reason="rights of files are POSIX's")
def test_a_policy_that_others_can_change_holds_in_no_deployment(policy: Path) -> None:
    policy.chmod(0o664)
    reply = ask("m-1")
    if "mode: simulation" in policy.read_text():
        assert isinstance(payload(reply), bytes)
    else:
        assert reply.error.reason == "ldp:refused:policy"
        policy.chmod(0o644)
        assert isinstance(payload(ask("m-2")), bytes)


def test_what_is_logged_in_a_simulation_says_so(
    policy: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="flower_ldp"):
        for name in ("m-1", "m-2", "m-3"):
            ask(name)
    assert len(caplog.messages) == 3
    simulated = "mode: simulation" in policy.read_text()
    assert all(("simulation" in line) == simulated for line in caplog.messages)


def test_the_policy_is_asked_by_default(policy: Path) -> None:
    gate = LdpMod(train=SignDSRelease())
    gate(message(proposal(MODEL, SELECTION)), context(), app)
    assert spent(policy) == 4.0


def test_a_damaged_ledger_lets_nothing_leave(policy: Path) -> None:
    (policy.parent / "spent.sqlite").write_bytes(b"not a database, by far")
    assert ask("m-1", never).error.reason == "ldp:refused:ledger"


def test_a_lost_ledger_does_not_begin_again_in_a_deployment(policy: Path) -> None:
    (policy.parent / "spent.sqlite").unlink()
    reply = ask("m-1")
    if "mode: simulation" in policy.read_text():
        assert isinstance(payload(reply), bytes)
    else:
        assert reply.error.reason == "ldp:refused:ledger"


def test_a_release_that_costs_next_to_nothing_is_refused_before_the_app_is_asked(
    policy: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="flower_ldp")  # the first of a run is a warning
    for number in range(3):
        cheap = ask(f"m-{number}", never, SignDS(epsilon=1e-6, k=0.2))
        assert cheap.error.reason == "ldp:refused:policy"
    assert "must cost an epsilon of at least 0.001 per client" in caplog.text
    with Ledger.open(policy.parent / "spent.sqlite") as ledger:
        assert ledger.data_ids() == []
    policy.write_text(policy.read_text() + "least_epsilon: 1.0e-6\n")
    assert isinstance(payload(ask("m-3", selection=SignDS(epsilon=1e-6, k=0.2))), bytes)


def test_the_number_of_releases_is_limited_whatever_they_cost(policy: Path) -> None:
    cheap = SignDS(epsilon=0.01, k=0.2)
    policy.write_text(policy.read_text() + "releases: {life: 3}\n")
    for number in range(3):
        assert isinstance(payload(ask(f"m-{number}", selection=cheap)), bytes)
    assert ask("m-3", never, cheap).error.reason == "ldp:refused:budget"
    assert spent(policy) == pytest.approx(0.03)
    # What is given again is no release.
    assert isinstance(payload(ask("m-1", never, cheap)), bytes)


def test_the_number_of_releases_in_a_window_is_limited(policy: Path) -> None:
    policy.write_text(policy.read_text() + "releases: {window: {number: 1, days: 30}}\n")
    assert isinstance(payload(ask("m-1")), bytes)
    assert ask("m-2", never).error.reason == "ldp:refused:budget"
    assert spent(policy) == 4.0


def test_the_number_of_reports_given_again_is_limited(policy: Path) -> None:
    policy.write_text(policy.read_text() + "repeats: 2\n")
    first = payload(ask("m-1"))
    for _ in range(2):
        assert payload(ask("m-1", never)) == first
    assert ask("m-1", never).error.reason == "ldp:refused:budget"
    assert ask("m-1", never).error.reason == "ldp:refused:budget"
    name = "ward-7/0" if "mode: simulation" in policy.read_text() else "ward-7"
    with Ledger.open(policy.parent / "spent.sqlite") as ledger:
        assert ledger.counts(name)["again"] == 2
    assert isinstance(payload(ask("m-2")), bytes)


def test_a_refusal_without_a_policy_names_the_option_and_the_page_that_ends_an_old_superlink(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="flower_ldp")  # the first of a run is a warning
    from flwr.cli import local_superlink

    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    commands: list[list[str]] = []

    class Ended:
        def __init__(self, command: list[str], **_: object) -> None:
            commands.append(command)

        def poll(self) -> int:
            return 1

    monkeypatch.setattr(local_superlink.subprocess, "Popen", Ended)
    with pytest.raises(Exception, match="exited with code 1"):
        local_superlink._start_local_superlink()
    monkeypatch.delenv("FLOWER_LDP_POLICY", raising=False)
    ask("m-1", never)
    page = Path(__file__).parents[3] / "docs" / "policy.md"
    found = re.search(r"pkill -f '(.*?)'", page.read_text(encoding="utf-8"))
    assert found is not None
    assert re.search(found[1], " ".join(commands[0]))
    for text in (caplog.text, HINTS["ldp:refused:policy"]):
        assert "--policy FILE" in text
        assert "docs/policy.md" in text


def test_a_ledger_that_was_set_back_behind_its_anchor_lets_nothing_leave(policy: Path) -> None:
    policy.write_text(policy.read_text() + "anchor: {file: mark}\n")
    ledger, mark = policy.parent / "spent.sqlite", policy.parent / "mark"
    assert ask("m-0", never).error.reason == "ldp:refused:ledger"  # nobody has made it
    with Ledger.open(ledger) as opened:
        opened.make_anchor(FileAnchor(mark))
    assert isinstance(payload(ask("m-1")), bytes)
    older = ledger.read_bytes()
    assert isinstance(payload(ask("m-2")), bytes)
    ledger.write_bytes(older)
    for name in ("m-1", "m-2", "m-3"):
        assert ask(name, never).error.reason == "ldp:refused:ledger"


@pytest.mark.parametrize("name", ["labels:train", f"kept {'0' * 64} 0", "m-1"])
@pytest.mark.parametrize("memo", ["", "question"])
def test_no_message_can_take_the_name_of_a_charge_of_the_owners_own(
    policy: Path, name: str, memo: str
) -> None:
    """Labels and kept reports are charged in run 0; a server writes what a message is called."""
    request = ReleaseRequest(0, name, "train", SELECTION.events(), "{}", memo=memo)
    owner = OwnerAuthorizer()
    for ask in (owner.authorize, owner.resume):
        with pytest.raises(RefusalError, match="run 0 is the owner's own") as refused:
            ask(request, context())
        assert refused.value.code == "ldp:refused:policy"
    with Ledger.open(policy.parent / "spent.sqlite") as ledger:
        assert ledger.mark().entries == 0
    owner.authorize(replace(request, run_id=1), context()).close()


def test_the_gate_refuses_a_message_of_run_0_before_the_app_is_asked(policy: Path) -> None:
    one = message(proposal(MODEL, SELECTION), message_id="labels:train")
    one.metadata.__dict__["_run_id"] = 0
    reply = LdpMod(train=SignDSRelease())(one, context(), never)
    assert reply.error.reason == "ldp:refused:policy"
