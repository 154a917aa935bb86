"""Private labels of a listed app: charged once in the app, and its model's label cost waived."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from flwr.app import Context, Message

from flower_ldp.accounting.ledger import Entry, Ledger
from flower_ldp.clients import LdpMod, SignDSRelease, private_labels
from flower_ldp.mechanisms import KaryResponse
from flower_ldp.node.flower_api import Channel
from flower_ldp.privacy import Unit
from tests.fixtures import context_of, payload
from tests.unit.node.test_guard import LENGTH, ask, given, reply, trained
from tests.unit.node.test_pinned_apps import DECLARED, SIGNDS, Far, amend, refusal, site

LABELS = np.arange(50) % 3


def declared(tmp_path: Path, listed: str) -> tuple[Far, Channel]:
    """Return a node whose owner declares training on such labels post-processing."""
    found = site(tmp_path, listed)
    labels = "kary_response: {epsilon: 1.0, unit: label}"
    amend(tmp_path, SIGNDS, f"{DECLARED}, {labels}")
    return found


def app(one: Message, context: Context) -> Message:
    """Train on labels that were randomized once."""

    def train(sent: Message, given: Context) -> Message:
        private_labels(given, LABELS, mechanism=KaryResponse(1.0, 3, unit=Unit.LABEL))
        return trained(sent)

    return LdpMod(train=SignDSRelease())(one, context, train)


def entries(tmp_path: Path) -> list[Entry]:
    with Ledger.open(tmp_path / "ledger.sqlite", read_only=True) as ledger:
        ledger.verify()
        return list(ledger.entries())


def test_a_listed_apps_model_of_private_labels_leaves(tmp_path: Path) -> None:
    far, channel = declared(tmp_path, "\n    releases: [signds, kary_response]\n")
    for number in (1, 2):
        received = given(far, channel, ask(ttl=3_600.0 + number))
        reply(channel, app(received, context_of(tmp_path)))
        assert len(payload(far.taken())) == LENGTH
    paid = [(event.mechanism, event.unit) for one in entries(tmp_path) for event in one.events]
    assert sorted(paid) == [("kary_response", "label"), *[("signds", "client")] * 2]
    with Ledger.open(tmp_path / "ledger.sqlite", read_only=True) as ledger:
        totals = ledger.totals("ward-7")
    assert totals[Unit.LABEL].epsilon_text == "1"


def test_that_of_an_app_not_listed_for_it_is_refused_before_a_charge(tmp_path: Path) -> None:
    for listed in ("", "\n    releases: [kary_response]\n"):
        assert refusal(*declared(tmp_path, listed), ask()) == "ldp:refused:app"
    assert entries(tmp_path) == []
