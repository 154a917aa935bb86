"""Private labels of a listed app: charged once in the app, and its model's label cost waived."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context, Message, RecordDict

from flower_ldp.accounting.ledger import Entry, Ledger
from flower_ldp.clients import LdpMod, SignDSRelease, private_labels
from flower_ldp.mechanisms import KaryResponse
from flower_ldp.privacy import Unit
from tests.fixtures import record
from tests.unit.node.test_guard import LENGTH, TRAINED, ask, payload, reply
from tests.unit.node.test_pinned_apps import Far, refusal, site

LABELS = np.arange(50) % 3
PLAIN = "messages: {train: {signds: {epsilon: 2.0}}}"
DECLARED = """\
messages:
  train:
    signds: {epsilon: 2.0, post_processing: [label]}
    kary_response: {epsilon: 1.0, unit: label}
"""


def declared(tmp_path: Path, listed: str) -> tuple[Far, Any]:
    """Return a node whose owner declares training on such labels post-processing."""
    found = site(tmp_path, listed, gate="reports")
    policy = tmp_path / "policy.yaml"
    policy.write_text(policy.read_text().replace(PLAIN, DECLARED))
    return found


def app(one: Message, context: Context) -> Message:
    """Train on labels that were randomized once."""

    def train(sent: Message, given: Context) -> Message:
        private_labels(given, LABELS, mechanism=KaryResponse(1.0, 3, unit=Unit.LABEL))
        return Message(RecordDict({"a": record(TRAINED)}), reply_to=sent)

    return LdpMod(train=SignDSRelease())(one, context, train)


def entries(tmp_path: Path) -> list[Entry]:
    with Ledger.open(tmp_path / "ledger.sqlite", read_only=True) as ledger:
        ledger.verify()
        return list(ledger.entries())


def test_a_listed_apps_model_of_private_labels_leaves(tmp_path: Path) -> None:
    far, channel = declared(tmp_path, "\n    releases: [signds, kary_response]\n")
    context = Context(3, 7, {"ldp-policy": str(tmp_path / "policy.yaml")}, RecordDict(), {})
    for number in (1, 2):
        one = ask()
        one.metadata.ttl = 3_600.0 + number  # another identity: it is a digest
        far.waiting.append(one)
        received = channel.receive()
        assert received is not None
        reply(channel, app(received[0], context))
        assert len(payload(far.taken())) == LENGTH
    paid = [(event.mechanism, event.unit) for one in entries(tmp_path) for event in one.events]
    assert sorted(paid) == [("kary_response", "label"), *[("signds", "client")] * 2]
    with Ledger.open(tmp_path / "ledger.sqlite", read_only=True) as ledger:
        totals = ledger.totals("ward-7")
    assert {unit: found.epsilon_text for unit, found in totals.items()}[Unit.LABEL] == "1"


def test_that_of_an_app_that_is_not_listed_for_it_is_refused_before_a_charge(
    tmp_path: Path,
) -> None:
    for listed in ("", "\n    releases: [kary_response]\n"):
        assert refusal(*declared(tmp_path, listed), ask()) == "ldp:refused:app"
    assert entries(tmp_path) == []
