"""An extension at the gate: charged by the owner's word, refused before it, and always answered."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.serverapp.strategy import FedAvg

from flower_ldp.accounting.ledger import Ledger
from flower_ldp.clients import ExtensionRelease, GaussianRelease, LdpMod, OpenRelease, Release
from flower_ldp.errors import WireError
from flower_ldp.extensions import Extension, ExtensionReport, Setting, loading
from flower_ldp.mechanisms import Gaussian, RandomSource
from flower_ldp.privacy import PrivacyEvent, Unit
from flower_ldp.refusals import REFUSED_POLICY, REFUSED_PROPOSAL
from flower_ldp.strategies import ExtensionStrategy, Health
from flower_ldp.wire.proposal import (
    PAYLOAD_KEY,
    PROPOSAL_KEY,
    REPORT_KEY,
    UpdateProposal,
)
from tests.extension_world import NAME, Installed, policy_text
from tests.fixtures import context, message, record

MODEL = {"w": np.zeros(3, dtype=np.float32)}
PROPOSAL = UpdateProposal(ExtensionReport(NAME, 2.0, 0.0, 5, {"step": 0.01}))


def stating(**changed: Any) -> UpdateProposal[ExtensionReport]:
    return UpdateProposal(replace(PROPOSAL.mechanism, **changed))


@dataclass
class Site:
    """A client's machine: what is installed, its policy and its ledger."""

    folder: Path
    installed: Installed

    def allow(self, digest: str | None = None, **more: str) -> None:
        text = policy_text(digest or self.installed.digest, **more)
        (self.folder / "policy.yaml").write_text(text)

    @property
    def spent(self) -> float:
        with Ledger.open(self.folder / "spent.sqlite") as ledger:
            names = list(ledger.data_ids())
            return float(ledger.totals(names[0])[Unit.CLIENT].epsilon_text) if names else 0.0

    @property
    def failed(self) -> int:
        with Ledger.open(self.folder / "spent.sqlite") as ledger:
            return ledger.counts("ward-7")["failed"]


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    installed = Installed(tmp_path / "site-packages").write()
    monkeypatch.setattr(loading, "_loaded", {})
    monkeypatch.setattr(sys, "path", [*sys.path, *installed.path])
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    monkeypatch.setenv("FLOWER_LDP_POLICY", str(tmp_path / "policy.yaml"))
    Ledger.open(tmp_path / "spent.sqlite", create=True).close()
    found = Site(tmp_path, installed)
    found.allow()
    return found


def app(sent: Message, _: Context) -> Message:
    return Message(RecordDict({"arrays": record({"w": np.ones(3, np.float32)})}), reply_to=sent)


def never(sent: Message, _: Context) -> Message:
    raise AssertionError("the app was asked")


def content(proposal: Any = PROPOSAL) -> RecordDict:
    fields = ConfigRecord({**proposal.to_fields()})
    return RecordDict({"arrays": record(MODEL), PROPOSAL_KEY: fields})


def ask(
    name: str = "m-1",
    inner: Callable[[Message, Context], Message] = app,
    proposal: Any = PROPOSAL,
    release: Release | None = None,
) -> Message:
    gate = LdpMod(train=release or ExtensionRelease(NAME))
    return gate(message(content(proposal), message_id=name), context(), inner)


def report_of(reply: Message) -> bytes:
    assert not reply.has_error(), reply.error
    found = reply.content.config_records[REPORT_KEY][PAYLOAD_KEY]
    assert isinstance(found, bytes)
    return found


def test_what_the_policy_allows_is_charged_and_leaves(site: Site) -> None:
    first = report_of(ask())
    assert len(first) == 5
    assert site.spent == 2.0
    assert report_of(ask(inner=never)) == first
    assert site.spent == 2.0


def test_the_owners_price_is_charged_where_the_proposal_states_less(site: Site) -> None:
    report_of(ask(proposal=stating(epsilon=0.25)))
    assert site.spent == 1.0


def test_what_does_not_fit_is_refused_before_the_charge(site: Site) -> None:
    for proposal in (
        stating(epsilon=4.5),  # more than the allowance
        stating(delta=1e-6),
        stating(epsilon=200.0),  # more than the mechanism takes
        stating(length=6),
        stating(options={}),
        stating(options={"step": 0.01, "more": 1.0}),
    ):
        assert ask(inner=never, proposal=proposal).error.reason == REFUSED_POLICY, proposal
    assert site.spent == 0.0


def test_another_extension_than_the_apps_is_refused(site: Site) -> None:
    found = ask(inner=never, proposal=stating(name="two_bits"))
    assert found.error.reason == REFUSED_PROPOSAL
    release = ExtensionRelease("two_bits")
    found = ask(inner=never, proposal=stating(name="two_bits"), release=release)
    assert found.error.reason == REFUSED_POLICY
    assert site.spent == 0.0


def test_other_files_than_the_owner_allows_are_refused_and_not_run(site: Site) -> None:
    with (site.folder / "site-packages/one_bit/mechanism.py").open("a") as stream:
        stream.write("import sys\nsys.modules['one_bit_was_run'] = sys\n")
    assert ask(inner=never).error.reason == REFUSED_POLICY
    assert "one_bit_was_run" not in sys.modules
    assert site.spent == 0.0


def test_a_policy_without_extensions_allows_none(site: Site) -> None:
    path = site.folder / "policy.yaml"
    path.write_text(path.read_text().partition("extensions:")[0])
    assert ask(inner=never).error.reason == REFUSED_POLICY


def test_no_other_release_claims_an_extensions_name(site: Site) -> None:
    class Claims(ExtensionRelease):
        def open(self, given: RecordDict) -> OpenRelease:  # type: ignore[override]
            opened = GaussianRelease().open(given)
            object.__setattr__(opened, "proposal", Renamed(opened.proposal.mechanism))
            return opened

    class Renamed(UpdateProposal[Gaussian]):
        def events(self) -> tuple[PrivacyEvent, ...]:
            return (PrivacyEvent(NAME, 0.5),)

    found = ask(
        inner=never, proposal=UpdateProposal(Gaussian(1.0, 1e-6, 1.0)), release=Claims(NAME)
    )
    assert found.error.reason == REFUSED_POLICY
    assert site.spent == 0.0


@dataclass(frozen=True)
class Odd:
    """A mechanism that does something else with a private update than it should."""

    does: Callable[[Any], Any]
    epsilon: float = 2.0
    delta: float = 0.0
    report_bytes: int = 5

    def randomize(self, update: Any, rng: RandomSource) -> Any:
        return b"odd.." if update is None else self.does(update)

    def estimate(self, report: bytes) -> Any:
        raise NotImplementedError

    def log_prob(self, report: bytes, update: Any) -> float:
        raise NotImplementedError

    def reports(self) -> Any:
        raise NotImplementedError


def _raise(update: Any) -> bytes:
    raise RuntimeError(f"private: {update}")


def _exit(update: Any) -> bytes:
    raise SystemExit(f"private: {update}")


def odd(
    site: Site, monkeypatch: pytest.MonkeyPatch, does: Callable[[Any], Any], **other: Any
) -> None:
    def make(setting: Setting, dimension: int) -> Odd:
        return Odd(does, **other)

    made = Extension(NAME, make, {"step": 0.01})
    monkeypatch.setattr("flower_ldp.clients.authorizer.load_extension", lambda _: made)


#: What an extension may do wrong, once it has the update.
WRONG: tuple[Callable[[Any], Any], ...] = (
    _raise,
    _exit,
    lambda update: b"",
    lambda update: b"123456",
    lambda update: None,
    lambda update: bytearray(b"12345"),
    lambda update: type("Bytes", (bytes,), {})(b"12345"),
    lambda update: update.__setitem__(0, 1.0),
)


def test_whatever_it_does_a_report_of_the_same_form_leaves(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, does in enumerate(WRONG, 1):
        odd(site, monkeypatch, does)
        assert report_of(ask(f"m-{number}")) == b"odd..", number
        assert (site.spent, site.failed) == (2.0 * number, number)


@pytest.mark.parametrize("spoiled", [np.full(3, np.nan, np.float32), np.ones(4, np.float32)])
def test_it_is_not_asked_about_what_cannot_be_read(
    site: Site, monkeypatch: pytest.MonkeyPatch, spoiled: Any
) -> None:
    seen: list[Any] = []
    odd(site, monkeypatch, seen.append)

    def inner(sent: Message, _: Context) -> Message:
        return Message(RecordDict({"arrays": record({"w": spoiled})}), reply_to=sent)

    assert report_of(ask(inner=inner)) == b"odd.."
    assert (seen, site.failed) == ([], 1)


def test_it_sees_the_update_and_nothing_else(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    odd(site, monkeypatch, lambda update: seen.append(update) or b"12345")
    assert report_of(ask()) == b"12345"
    (update,) = seen
    assert update.tolist() == [1.0, 1.0, 1.0]
    assert (type(update), update.base, update.flags.writeable) == (np.ndarray, None, False)


def test_one_that_hangs_is_answered_for_at_the_fixed_moment(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    end = Event()
    odd(site, monkeypatch, lambda update: end.wait(5) and b"12345")
    site.allow(more="answer_after: {train: 0.1}\n")
    try:
        assert report_of(ask()) == b"odd.."
    finally:
        end.set()


def test_a_claim_above_the_proposal_is_refused(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    odd(site, monkeypatch, _raise)
    report_of(ask("m-0"))
    for number, wrong in enumerate(({"epsilon": 2.1}, {"delta": 0.1}, {"report_bytes": 0}), 1):
        odd(site, monkeypatch, _raise, **wrong)
        assert ask(f"m-{number}", inner=never).error.reason == REFUSED_POLICY
    assert site.spent == 2.0


def test_one_without_a_neutral_report_is_refused_before_the_charge(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Shy(Odd):
        def randomize(self, update: Any, rng: RandomSource) -> Any:
            raise ValueError("no update")

    extension = Extension(NAME, lambda setting, dimension: Shy(_raise), {"step": 0.01})
    monkeypatch.setattr("flower_ldp.clients.authorizer.load_extension", lambda _: extension)
    assert ask(inner=never).error.reason == REFUSED_POLICY
    assert site.spent == 0.0


def test_a_simulation_shows_that_it_failed(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    odd(site, monkeypatch, _raise)
    site.allow(mode="simulation")
    assert ask().error.reason == "ldp:failed"


@pytest.mark.parametrize(
    "name", ["signds", "dpencrypt", "laplace_2", "One_bit", "\u043ene_bit", ""]
)
def test_a_release_of_no_extensions_name_is_a_mistake(name: str) -> None:
    with pytest.raises(ValueError, match=r"name"):
        ExtensionRelease(name)


class Nodes:
    """The grid's one method that sampling uses."""

    def get_node_ids(self) -> list[int]:
        return [100, 101]


def test_the_strategy_reads_what_the_gate_sends(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def made(self: FedAvg, given: RecordDict, nodes: list[int], kind: str) -> list[Message]:
        return [message(given, node=node, kind=kind, message_id=f"g-{node}") for node in nodes]

    monkeypatch.setattr(FedAvg, "_construct_messages", made)
    path = site.folder / "policy.yaml"
    path.write_text(path.read_text().replace("4.0}}}", "4.0}, health: {epsilon: 0.5}}}"))
    extension = loading.load_extension(
        loading.Allowed(NAME, "one-bit", "0.1.0", site.installed.digest), site.installed.path
    )
    chosen = extension.chosen(4.0, options={"step": 1.0})
    strategy = ExtensionStrategy(chosen, health=Health(epsilon=0.5))
    gate = LdpMod(train=ExtensionRelease(NAME))
    grid: Any = Nodes()
    sent = list(strategy.configure_train(1, record(MODEL), ConfigRecord(), grid))
    arrays, metrics = strategy.aggregate_train(1, [gate(one, context(), app) for one in sent])
    assert arrays is not None
    assert metrics is not None
    assert (metrics["accepted"], metrics["bytes-up"]) == (2, 6)
    assert (metrics["epsilon-round"], site.spent) == (4.5, 9.0)
    moved = arrays["w"].numpy() / (3 / math.tanh(2) / 2)  # one sign of one of two clients
    assert np.abs(moved).sum() in (pytest.approx(0), pytest.approx(2))
    assert moved == pytest.approx(np.round(moved), abs=1e-6)


def test_the_strategy_leaves_out_what_is_no_report(site: Site) -> None:
    extension = loading.load_extension(
        loading.Allowed(NAME, "one-bit", "0.1.0", site.installed.digest), site.installed.path
    )
    asked = ExtensionStrategy(extension.chosen(4.0))._asked(3)
    for wrong in (b"", b"1234", b"123456", bytes((3, 0, 0, 0, 1)), bytes((0, 0, 0, 0, 2))):
        with pytest.raises(WireError):
            asked.decode(wrong, 3)


def test_a_strategy_says_whose_claim_it_is(caplog: pytest.LogCaptureFixture) -> None:
    strategy = ExtensionStrategy(Extension(NAME, Odd).chosen(4.0))  # type: ignore[arg-type]
    with caplog.at_level("INFO", logger="flwr"):
        strategy.summary()
    assert "its guarantee, and the cost below, is its author's claim" in caplog.text
    assert "epsilon 4 per client" in caplog.text


def test_a_strategy_needs_the_parameters_of_a_run() -> None:
    with pytest.raises(TypeError, match=r"extension\.chosen"):
        ExtensionStrategy(Extension(NAME, Odd))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "fields",
    [
        {"version": 2},
        {"mechanism": "signds"},
        {"epsilon": 0.0},
        {"epsilon": "2"},
        {"report-bytes": 0},
        {"report-bytes": 5.0},
        {"option.step": float("nan")},
        {"option.step": 1},
        {"more": 1},
    ],
)
def test_a_proposal_is_read_exactly(fields: dict[str, Any]) -> None:
    right = {**PROPOSAL.to_fields(), "health-epsilon": 0.5}
    known = {NAME: partial(ExtensionReport.named, NAME)}
    assert UpdateProposal.from_fields(right, known) == replace(PROPOSAL, health_epsilon=0.5)
    with pytest.raises(WireError):
        UpdateProposal.from_fields({**PROPOSAL.to_fields(), **fields}, known)
