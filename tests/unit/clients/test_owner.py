"""Policy, ledger and gate together: refused, charged, stored, given again."""

from __future__ import annotations

import logging
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message

from flower_ldp.accounting.ledger import Ledger
from flower_ldp.accounting.ledger.anchor import FileAnchor
from flower_ldp.clients import LdpMod, OwnerAuthorizer, ReleaseRequest, SignDSRelease
from flower_ldp.errors import RefusalError
from flower_ldp.mechanisms import SignDS
from flower_ldp.refusals import HINTS
from tests.fixtures import (
    context,
    make_site,
    message,
    not_called,
    payload,
    policy_text,
    proposal,
)
from tests.unit.clients.world import App, raising, training
from tests.unit.clients.world import spent as spent_by

SELECTION = SignDS(epsilon=4.0, k=0.2)
MODEL = {"w": np.zeros(400, dtype=np.float32)}
RELEASES = "{train: {signds: {epsilon: 4.0}, magrr: {epsilon: 1.0}}}"
BUDGETS = "client: {run: {epsilon: 10.0}, life: {epsilon: 14.0}}"
app = training({"w": np.random.default_rng(0).normal(size=400).astype(np.float32)})


@pytest.fixture(params=["deployment", "simulation"])
def policy(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    text = policy_text(RELEASES, mode=request.param, budgets=BUDGETS)
    path = Path(str(make_site(tmp_path, text).node_config["ldp-policy"]))
    monkeypatch.setenv("FLOWER_LDP_POLICY", str(path))
    return path


def is_simulation(policy: Path) -> bool:
    return "mode: simulation" in policy.read_text()


def ask(name: str, inner: App = app, selection: SignDS = SELECTION) -> Message:
    gate = LdpMod(train=SignDSRelease())
    return gate(message(proposal(MODEL, selection), message_id=name), context(), inner)


def account(policy: Path) -> str:
    return "ward-7/0" if is_simulation(policy) else "ward-7"


def spent(policy: Path) -> float:
    with Ledger.open(policy.parent / "ledger.sqlite") as ledger:
        assert ledger.data_ids() in ([], [account(policy)])
    return spent_by(policy.parent, account=account(policy))


def test_releases_are_charged_once_until_the_budget_is_spent(policy: Path) -> None:
    first = payload(ask("m-1"))
    assert payload(ask("m-1", not_called)) == first
    assert spent(policy) == 4.0
    payload(ask("m-2"))
    assert ask("m-3", not_called).error.reason == "ldp:refused:budget"
    assert spent(policy) == 8.0


def test_the_same_message_with_other_terms_is_refused(policy: Path) -> None:
    ask("m-1")
    refused = ask("m-1", not_called, SignDS(epsilon=3.0, k=0.2))
    assert refused.error.reason == "ldp:refused:repeat"


def test_a_release_that_failed_stays_charged_and_is_not_drawn_again(policy: Path) -> None:
    reply = ask("m-1", raising(ValueError("secret")))
    assert spent(policy) == 4.0
    if is_simulation(policy):
        assert reply.error.reason == "ldp:failed"
        assert ask("m-1", not_called).error.reason == "ldp:refused:repeat"
        assert counts(policy) == {}
    else:
        assert payload(ask("m-1", not_called)) == payload(reply)
        assert counts(policy) == {"failed": 1, "again": 1}


def counts(policy: Path) -> dict[str, int]:
    with Ledger.open(policy.parent / "ledger.sqlite") as ledger:
        found = ledger.counts(account(policy))
        return {kind: number for kind, number in found.items() if number}


def test_a_message_without_a_release_needs_a_policy_and_a_ledger(
    policy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = LdpMod(acknowledged=["train"])
    sent = message(proposal(MODEL, SELECTION))
    assert payload(gate(sent, context(), app)) == b""
    (policy.parent / "ledger.sqlite").write_bytes(b"not a database, by far")
    assert gate(sent, context(), not_called).error.reason == "ldp:refused:ledger"
    monkeypatch.delenv("FLOWER_LDP_POLICY")
    assert gate(sent, context(), not_called).error.reason == "ldp:refused:policy"


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


def without_a_policy(policy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FLOWER_LDP_POLICY")


def lost(policy: Path, _: pytest.MonkeyPatch) -> None:
    (policy.parent / "ledger.sqlite").unlink()


def damaged(policy: Path, _: pytest.MonkeyPatch) -> None:
    (policy.parent / "ledger.sqlite").write_bytes(b"not a database, by far")


def writable(policy: Path, _: pytest.MonkeyPatch) -> None:
    policy.chmod(0o664)


def with_a_mistake(policy: Path, _: pytest.MonkeyPatch) -> None:
    policy.write_text(policy.read_text() + "typo: 1\n")


def changed(policy: Path, _: pytest.MonkeyPatch) -> None:
    """However old the file looks."""
    payload(ask("m-1"))
    times = policy.stat()
    policy.write_text(policy.read_text().replace("signds: {epsilon: 4.0}", "signds: {epsilon: 3}"))
    os.utime(policy, ns=(times.st_atime_ns, times.st_mtime_ns))


@pytest.mark.parametrize(
    ("change", "refusal"),
    [
        (without_a_policy, "policy"),
        (with_a_mistake, "policy"),
        (changed, "policy"),
        (damaged, "ledger"),
        (lost, "ledger"),
        pytest.param(
            *(writable, "policy"),
            marks=pytest.mark.skipif(os.name != "posix", reason="rights of files are POSIX's"),
        ),
    ],
)
def test_nothing_leaves_without_files_as_they_should_be(
    policy: Path, change: Any, refusal: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_harmless = is_simulation(policy) and change in (lost, writable)
    change(policy, monkeypatch)
    reply = ask("m-2")
    if is_harmless:
        payload(reply)
    else:
        assert reply.error.reason == f"ldp:refused:{refusal}"


def test_what_is_logged_in_a_simulation_says_so(
    policy: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="flower_ldp"):
        for name in ("m-1", "m-2", "m-3"):
            ask(name)
    assert len(caplog.messages) == 3
    assert all(("simulation" in line) == is_simulation(policy) for line in caplog.messages)


def test_a_release_that_costs_next_to_nothing_or_too_much_is_refused_before_the_app_is_asked(
    policy: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="flower_ldp")  # the first of a run is a warning
    for number in range(3):
        cheap = ask(f"m-{number}", not_called, SignDS(epsilon=1e-6, k=0.2))
        assert cheap.error.reason == "ldp:refused:policy"
    assert "must cost an epsilon of at least 0.001 per client" in caplog.text
    too_much = SignDS(epsilon=4.5, k=0.2)
    assert ask("m-4", not_called, too_much).error.reason == "ldp:refused:policy"
    assert spent(policy) == 0
    policy.write_text(policy.read_text() + "least_epsilon: 1.0e-6\n")
    payload(ask("m-3", selection=SignDS(epsilon=1e-6, k=0.2)))


@pytest.mark.parametrize("limit", ["life: 3", "window: {number: 3, days: 30}"])
def test_the_number_of_releases_is_limited_whatever_they_cost(policy: Path, limit: str) -> None:
    cheap = SignDS(epsilon=0.01, k=0.2)
    policy.write_text(policy.read_text() + f"releases: {{{limit}}}\n")
    for number in range(3):
        payload(ask(f"m-{number}", selection=cheap))
    assert ask("m-3", not_called, cheap).error.reason == "ldp:refused:budget"
    assert spent(policy) == 0.03
    payload(ask("m-1", not_called, cheap))  # what is given again is no release


def test_the_number_of_reports_given_again_is_limited(policy: Path) -> None:
    policy.write_text(policy.read_text() + "repeats: 2\n")
    first = payload(ask("m-1"))
    for _ in range(2):
        assert payload(ask("m-1", not_called)) == first
    for _ in range(2):
        assert ask("m-1", not_called).error.reason == "ldp:refused:budget"
    assert counts(policy) == {"again": 2}
    payload(ask("m-2"))


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
    ask("m-1", not_called)
    page = Path(__file__).parents[3] / "docs" / "policy.md"
    found = re.search(r"pkill -f '(.*?)'", page.read_text(encoding="utf-8"))
    assert found is not None
    assert re.search(found[1], " ".join(commands[0]))
    for text in (caplog.text, HINTS["ldp:refused:policy"]):
        assert "--policy FILE" in text
        assert "docs/policy.md" in text


def test_a_ledger_that_was_set_back_behind_its_anchor_lets_nothing_leave(policy: Path) -> None:
    policy.write_text(policy.read_text() + "anchor: {file: mark}\n")
    ledger, mark = policy.parent / "ledger.sqlite", policy.parent / "mark"
    assert ask("m-0", not_called).error.reason == "ldp:refused:ledger"  # nobody has made it
    with Ledger.open(ledger) as opened:
        opened.make_anchor(FileAnchor(mark))
    payload(ask("m-1"))
    older = ledger.read_bytes()
    payload(ask("m-2"))
    ledger.write_bytes(older)
    for name in ("m-1", "m-2", "m-3"):
        assert ask(name, not_called).error.reason == "ldp:refused:ledger"


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
    with Ledger.open(policy.parent / "ledger.sqlite") as ledger:
        assert ledger.mark().entries == 0
    owner.authorize(replace(request, run_id=1), context()).close()
    one = message(proposal(MODEL, SELECTION), message_id="labels:train")
    one.metadata.__dict__["_run_id"] = 0
    reply = LdpMod(train=SignDSRelease())(one, context(), not_called)
    assert reply.error.reason == "ldp:refused:policy"
