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
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp.strategy import FedAvg

from flower_ldp.accounting.ledger import Ledger
from flower_ldp.clients import ExtensionRelease, GaussianRelease, LdpMod, OpenRelease, Release
from flower_ldp.errors import WireError
from flower_ldp.extensions import Extension, ExtensionReport, loading
from flower_ldp.mechanisms import Gaussian, RandomSource
from flower_ldp.privacy import PrivacyEvent, Unit
from flower_ldp.refusals import REFUSED_POLICY, REFUSED_PROPOSAL
from flower_ldp.strategies import ExtensionStrategy, Health
from flower_ldp.wire.proposal import (
    UpdateProposal,
)
from tests.extension_world import NAME, Installed, policy_text
from tests.fixtures import context, message, not_called, payload, record
from tests.unit.clients.world import App, asking, training

MODEL = {"w": np.zeros(3, dtype=np.float32)}
PROPOSAL = UpdateProposal(ExtensionReport(NAME, 2.0, 0.0, 5, {"step": 0.01}))


def stating(**changed: Any) -> UpdateProposal[ExtensionReport]:
    return UpdateProposal(replace(PROPOSAL.mechanism, **changed))


@dataclass
class Site:
    """A client's machine: what is installed, its policy and its ledger."""

    folder: Path
    installed: Installed

    def allow(self, **more: str) -> None:
        text = policy_text(self.installed.digest, **more)
        (self.folder / "policy.yaml").write_text(text)

    def counted(self) -> tuple[float, int]:
        """Return the epsilon that was spent, and the failures."""
        with Ledger.open(self.folder / "spent.sqlite") as ledger:
            if not ledger.data_ids():
                return 0.0, 0
            spent = ledger.totals("ward-7")[Unit.CLIENT].epsilon_text
            return float(spent), ledger.counts("ward-7")["failed"]

    def chosen(self, **options: Any) -> Any:
        allowed = loading.Allowed(NAME, "one-bit", "0.1.0", self.installed.digest)
        return loading.load_extension(allowed, self.installed.path).chosen(4.0, **options)


#: What the app replies with.
app = training({"w": np.ones(3, np.float32)})


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


def ask(
    name: str = "m-1", inner: App = app, proposal: Any = PROPOSAL, release: Release | None = None
) -> Message:
    gate = LdpMod(train=release or ExtensionRelease(NAME))
    content = asking(proposal.to_fields(), MODEL)
    return gate(message(content, message_id=name), context(), inner)


def refused(**given: Any) -> str:
    """Return the reason for which the app was not asked."""
    return ask(inner=not_called, **given).error.reason or ""


def test_what_the_policy_allows_is_charged_and_leaves(site: Site) -> None:
    first = payload(ask())
    assert len(first) == 5
    assert payload(ask(inner=not_called)) == first
    assert site.counted() == (2.0, 0)


def test_the_owners_price_is_charged_where_the_proposal_states_less(site: Site) -> None:
    payload(ask(proposal=stating(epsilon=0.25)))
    assert site.counted() == (1.0, 0)


@pytest.mark.parametrize(
    "stated",
    [
        {"epsilon": 4.5},  # more than the allowance
        {"delta": 1e-6},
        {"epsilon": 200.0},  # more than the mechanism takes
        {"length": 6},
        {"options": {}},
        {"options": {"step": 0.01, "more": 1.0}},
    ],
)
def test_what_does_not_fit_is_refused_before_the_charge(site: Site, stated: Any) -> None:
    assert refused(proposal=stating(**stated)) == REFUSED_POLICY
    assert site.counted() == (0.0, 0)


def test_another_extension_than_the_apps_or_the_owners_is_refused(site: Site) -> None:
    other, release = stating(name="two_bits"), ExtensionRelease("two_bits")
    assert refused(proposal=other) == REFUSED_PROPOSAL
    assert refused(proposal=other, release=release) == REFUSED_POLICY
    with (site.folder / "site-packages/one_bit/mechanism.py").open("a") as stream:
        stream.write("import sys\nsys.modules['one_bit_was_run'] = sys\n")
    assert refused() == REFUSED_POLICY
    assert "one_bit_was_run" not in sys.modules
    assert site.counted() == (0.0, 0)


def test_a_policy_without_extensions_allows_none(site: Site) -> None:
    path = site.folder / "policy.yaml"
    path.write_text(path.read_text().partition("extensions:")[0])
    assert refused() == REFUSED_POLICY


def test_no_other_release_claims_an_extensions_name(site: Site) -> None:
    class Claims(ExtensionRelease):
        def open(self, given: RecordDict) -> OpenRelease:  # type: ignore[override]
            opened = GaussianRelease().open(given)
            object.__setattr__(opened, "proposal", Renamed(opened.proposal.mechanism))
            return opened

    class Renamed(UpdateProposal[Gaussian]):
        def events(self) -> tuple[PrivacyEvent, ...]:
            return (PrivacyEvent(NAME, 0.5),)

    gaussian = UpdateProposal(Gaussian(1.0, 1e-6, 1.0))
    assert refused(proposal=gaussian, release=Claims(NAME)) == REFUSED_POLICY
    assert site.counted() == (0.0, 0)


@dataclass(frozen=True)
class Odd:
    """A mechanism that does something else with a private update than it should."""

    does: Callable[[Any], Any]
    epsilon: float = 2.0
    delta: float = 0.0
    report_bytes: int = 5
    neutral: bytes | None = b"odd.."

    def randomize(self, update: Any, rng: RandomSource) -> Any:
        if update is None and self.neutral is None:
            raise ValueError("no update")
        return self.neutral if update is None else self.does(update)

    def unused(self, *_: Any) -> Any:
        raise NotImplementedError

    estimate = log_prob = reports = unused


def fail(error: type[BaseException], update: Any) -> bytes:
    raise error(f"private: {update}")


fails = partial(fail, RuntimeError)


@pytest.fixture
def odd(site: Site, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def install(does: Callable[[Any], Any], **other: Any) -> None:
        made = Extension(NAME, lambda setting, dimension: Odd(does, **other), {"step": 0.01})
        monkeypatch.setattr("flower_ldp.clients.authorizer.load_extension", lambda _: made)

    return install


#: What an extension may do wrong, once it has the update.
WRONG: tuple[Callable[[Any], Any], ...] = (
    fails,
    partial(fail, SystemExit),
    lambda update: b"",
    lambda update: b"123456",
    lambda update: None,
    lambda update: bytearray(b"12345"),
    lambda update: type("Bytes", (bytes,), {})(b"12345"),
    lambda update: update.__setitem__(0, 1.0),
)


def test_whatever_it_does_a_report_of_the_same_form_leaves(
    site: Site, odd: Callable[..., None]
) -> None:
    for number, does in enumerate(WRONG, 1):
        odd(does)
        assert payload(ask(f"m-{number}")) == b"odd..", number
        assert site.counted() == (2.0 * number, number)
    site.allow(mode="simulation")
    odd(fails)
    assert ask().error.reason == "ldp:failed"


@pytest.mark.parametrize("spoiled", [np.full(3, np.nan, np.float32), np.ones(4, np.float32)])
def test_it_is_not_asked_about_what_cannot_be_read(
    site: Site, odd: Callable[..., None], spoiled: Any
) -> None:
    seen: list[Any] = []
    odd(seen.append)
    assert payload(ask(inner=training({"w": spoiled}))) == b"odd.."
    assert (seen, site.counted()) == ([], (2.0, 1))


def test_it_sees_the_update_and_nothing_else(odd: Callable[..., None]) -> None:
    seen: list[Any] = []
    odd(lambda update: seen.append(update) or b"12345")
    assert payload(ask()) == b"12345"
    (update,) = seen
    assert update.tolist() == [1.0, 1.0, 1.0]
    assert (type(update), update.base, update.flags.writeable) == (np.ndarray, None, False)


def test_one_that_hangs_is_answered_for_at_the_fixed_moment(
    site: Site, odd: Callable[..., None]
) -> None:
    end = Event()
    odd(lambda update: end.wait(5) and b"12345")
    site.allow(more="answer_after: {train: 0.1}\n")
    try:
        assert payload(ask()) == b"odd.."
    finally:
        end.set()


@pytest.mark.parametrize(
    "wrong", [{"epsilon": 2.1}, {"delta": 0.1}, {"report_bytes": 0}, {"neutral": None}]
)
def test_a_claim_above_the_proposal_or_no_neutral_report_is_refused(
    site: Site, odd: Callable[..., None], wrong: dict[str, Any]
) -> None:
    odd(fails)
    payload(ask("m-0"))
    odd(fails, **wrong)
    assert refused() == REFUSED_POLICY
    assert site.counted() == (2.0, 1)


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
    chosen = site.chosen(options={"step": 1.0})
    strategy = ExtensionStrategy(chosen, health=Health(epsilon=0.5))
    gate = LdpMod(train=ExtensionRelease(NAME))
    grid: Any = Nodes()
    sent = list(strategy.configure_train(1, record(MODEL), ConfigRecord(), grid))
    arrays, metrics = strategy.aggregate_train(1, [gate(one, context(), app) for one in sent])
    assert arrays is not None
    assert metrics is not None
    assert (metrics["accepted"], metrics["bytes-up"]) == (2, 6)
    assert (metrics["epsilon-round"], site.counted()) == (4.5, (9.0, 0))
    moved = arrays["w"].numpy() / (3 / math.tanh(2) / 2)  # one sign of one of two clients
    assert np.abs(moved).sum() in (pytest.approx(0), pytest.approx(2))
    assert moved == pytest.approx(np.round(moved), abs=1e-6)


def test_the_strategy_leaves_out_what_is_no_report(site: Site) -> None:
    asked = ExtensionStrategy(site.chosen())._asked(3)
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
