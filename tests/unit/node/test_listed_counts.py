"""Counts per example on the guarded node: of listed apps alone, drawn by the node or by the app."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict

from flower_ldp.accounting.ledger import Ledger
from flower_ldp.clients import CountsRelease, LdpMod
from flower_ldp.node.flower_api import Channel
from flower_ldp.wire.counts import CountsProposal
from flower_ldp.wire.proposal import PROPOSAL_KEY
from tests.fixtures import context_of, message, payload
from tests.unit.node.test_guard import given, reply
from tests.unit.node.test_pinned_apps import REFUSED, Far, amend, answered, refusal, site

QUESTION = CountsProposal({"age": [0.0, 50.0, 120.0]}, [("age",)], 1.0)
ROWS = RecordDict({"rows": ConfigRecord({"age": [20.0, 70.0, 90.0]})})


def asked(number: int = 1) -> Message:
    content = RecordDict({PROPOSAL_KEY: ConfigRecord({**QUESTION.to_fields()})})
    return message(content, kind="query", message_id=f"m-{number}")


def node(tmp_path: Path, listed: str, gate: str) -> tuple[Far, Channel]:
    found = site(tmp_path, listed, gate, extra="examples: 3")
    amend(tmp_path, "}}\nbudgets", "}, query: {counts: {epsilon: 1.0, unit: example}}}\nbudgets")
    amend(tmp_path, "budgets: {", "budgets: {example: {life: {epsilon: 60.0}}, ")
    return found


def spent(tmp_path: Path) -> list[str]:
    with Ledger.open(tmp_path / "ledger.sqlite", read_only=True) as ledger:
        ledger.verify()
        return [str(event.cost) for one in ledger.entries() for event in one.events]


LISTED = "\n    releases: [counts]\n"


@pytest.mark.parametrize("gate", ["privatize", "reports"])
@pytest.mark.parametrize("listed", ["", "\n    releases: [signds]\n"])
def test_an_app_that_is_not_listed_for_it_is_refused(
    tmp_path: Path, listed: str, gate: str
) -> None:
    assert refusal(*node(tmp_path, listed, gate), asked()) == REFUSED
    assert spent(tmp_path) == []


def test_the_node_counts_the_rows_of_a_listed_app(tmp_path: Path) -> None:
    far, channel = node(tmp_path, LISTED, "privatize")
    examples, counts = QUESTION.decode(payload(answered(far, channel, asked(), ROWS)))
    assert examples == 3
    assert not np.array_equal(
        counts, QUESTION.mechanism.total((np.array([[0], [1], [1]]), np.arange(3)))
    )
    assert spent(tmp_path) == ["epsilon 1"]
    # A reply without the rows is a failure of the whole.
    QUESTION.decode(payload(answered(far, channel, asked(2), RecordDict())))
    assert refusal(far, channel, asked(3)) == "ldp:refused:budget"
    assert spent(tmp_path) == ["epsilon 1"] * 2


def test_the_report_of_a_listed_apps_own_gate_leaves(tmp_path: Path) -> None:
    far, channel = node(tmp_path, LISTED, "reports")

    def app(one: Message, context: Context) -> Message:
        def rows(sent: Message, _: Context) -> Message:
            return Message(ROWS, reply_to=sent)

        return LdpMod(query=CountsRelease())(one, context, rows)

    made = app(given(far, channel, asked()), context_of(tmp_path))
    reply(channel, made)
    assert payload(far.taken()) == payload(made)
    assert spent(tmp_path) == ["epsilon 1"]
