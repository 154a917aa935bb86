"""The gate and types of message with an action: released, acknowledged, or refused."""

from __future__ import annotations

import pytest
from flwr.app import ConfigRecord, Context, Error, Message, RecordDict

from flower_ldp.clients import LdpMod, SignDSRelease
from flower_ldp.mechanisms import SignDS
from flower_ldp.wire.proposal import PAYLOAD_KEY, REPORT_KEY
from tests.fixtures import context, message, proposal
from tests.unit.clients.test_ldp_mod import CANARY, MODEL, honest_app

pytestmark = pytest.mark.usefixtures("simulation_policy")
SELECTION = SignDS(epsilon=20.0, k=0.2)


def test_a_release_may_be_set_for_an_action_alone() -> None:
    gate = LdpMod(actions={"train.now": SignDSRelease()})
    reply = gate(message(proposal(MODEL, SELECTION), kind="train.now"), context(), honest_app)
    assert isinstance(reply.content.config_records[REPORT_KEY][PAYLOAD_KEY], bytes)
    for kind in ("train", "train.later", "evaluate.now"):
        refused = gate(message(proposal(MODEL, SELECTION), kind=kind), context(), honest_app)
        assert refused.error.reason == "ldp:refused:message"


def test_an_acknowledgement_says_nothing_whatever_the_app_returns() -> None:
    taken: list[str] = []

    def app(sent: Message, _: Context) -> Message:
        taken.append(str(sent.content.config_records["hint"]["text"]))
        return Message(RecordDict({CANARY: ConfigRecord({CANARY: CANARY})}), reply_to=sent)

    gate = LdpMod(acknowledged=("train.take",))
    content = RecordDict({"hint": ConfigRecord({"text": "down"})})
    reply = gate(message(content, kind="train.take"), context(), app)
    assert taken == ["down"]
    assert dict(reply.content) == {REPORT_KEY: ConfigRecord({PAYLOAD_KEY: b""})}
    refused = gate(message(content, kind="train"), context(), app)
    assert refused.error.reason == "ldp:refused:message"
    assert taken == ["down"]


def crash(sent: Message, _: Context) -> Message:
    raise SystemExit(CANARY)


def complain(sent: Message, _: Context) -> Message:
    return Message(Error(code=7, reason=CANARY), reply_to=sent)


@pytest.mark.parametrize("app", [crash, complain])
def test_in_a_simulation_a_failure_to_take_something_in_is_a_constant(app: object) -> None:
    gate = LdpMod(acknowledged=("train.take",))
    reply = gate(message(RecordDict(), kind="train.take"), context(), app)  # type: ignore[arg-type]
    assert reply.error.reason == "ldp:failed"
    assert CANARY not in str(reply.error)


def test_a_message_is_released_or_acknowledged_but_not_both() -> None:
    with pytest.raises(ValueError, match="not both"):
        LdpMod(train=SignDSRelease(), acknowledged=("train",))
