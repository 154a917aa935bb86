"""The gate: nothing leaves but a report that it built, or one of a few constants."""

from __future__ import annotations

import itertools
import json
import logging
import math
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Error,
    Message,
    MetricRecord,
    RecordDict,
)

from flower_ldp.audit_paths.cases import AsDeployed
from flower_ldp.clients import LdpMod, SignDSRelease
from flower_ldp.clients.release import ERROR_CODE, open_proposal
from flower_ldp.errors import RefusalError
from flower_ldp.mechanisms import RandomSource, SignDS
from flower_ldp.mechanisms.signds_round import decode_report
from flower_ldp.mechanisms.subset_code import encoded_length
from flower_ldp.refusals import FAILED, NO_PROPOSAL, REFUSED_MESSAGE, REFUSED_PROPOSAL
from flower_ldp.wire.proposal import PAYLOAD_KEY, PROPOSAL_KEY, REPORT_KEY
from tests.fixtures import (
    Arrays,
    context,
    message,
    not_called,
    payload,
    proposal,
    record,
    signds_proposal,
)
from tests.unit.clients.world import App, Watching, asking, raising, replying, training

pytestmark = pytest.mark.usefixtures("simulation_policy")

CANARY = "canary-7f3a91"
CANARY_FLOAT = 0.123456789
SELECTION = SignDS(epsilon=20.0, k=0.2)
MODEL: dict[str, np.ndarray] = {
    "conv.weight": np.linspace(-1, 1, 300, dtype=np.float32).reshape(3, 100),
    "norm.running_mean": np.zeros(40, dtype=np.float64),
    "norm.num_batches_tracked": np.array(5, dtype=np.int64),
    "scale": np.array(1.5, dtype=np.float32),
    "mask": np.array([True, False]),
}
DIMENSION = 341
H = SELECTION.plan(DIMENSION).dim_out
_numbers = itertools.count()


def moved(by: Callable[..., Any]) -> dict[str, np.ndarray]:
    """Return the model with its floats moved by numbers of a shape."""
    return {
        name: np.asarray(array + by(array.shape), array.dtype) if array.dtype.kind == "f" else array
        for name, array in MODEL.items()
    }


def trained() -> dict[str, np.ndarray]:
    return moved(partial(np.random.default_rng(0).normal, 0.0, 1.0))


#: What a Flower app usually replies with, and canaries in it.
honest_app = replying(
    RecordDict(
        {
            "arrays": record(trained()),
            "metrics": MetricRecord({"num-examples": 987_654, "loss": CANARY_FLOAT}),
            CANARY: ConfigRecord({CANARY: CANARY}),
        }
    )
)


def answer(
    app: Any, content: RecordDict | None = None, mod: LdpMod | None = None, kind: str = "train"
) -> Message:
    content = proposal(MODEL, SELECTION) if content is None else content
    mod = mod or LdpMod(train=SignDSRelease())
    return mod(message(content, kind=kind, message_id=f"m-{next(_numbers)}"), context(), app)


def assert_error(reply: Message, reason: str) -> None:
    assert not reply.has_content()
    assert (reply.error.code, reply.error.reason) == (ERROR_CODE, reason)
    assert CANARY not in everything_in(reply)


def decoded(reply: Message, *, h: int = H, has_bit: bool = False) -> tuple[Any, int, Any]:
    """Return the indices, the sign and the bit of a report."""
    return decode_report(payload(reply), dimension=DIMENSION, dim_out=h, has_bit=has_bit)


def everything_in(reply: Message) -> str:
    """All that a reply carries: metadata, error, keys, values, bytes."""
    parts = [repr(vars(reply.metadata))]
    if reply.has_error():
        parts.append(repr(reply.error))
    else:
        parts += [repr({k: repr(v) for k, v in reply.content.items()})]
    return " ".join(parts)


def test_reply_holds_one_packed_report_and_nothing_else() -> None:
    reply = LdpMod(train=SignDSRelease())(
        message(proposal(MODEL, SELECTION), message_id="mine"), context(), honest_app
    )
    assert list(reply.content) == [REPORT_KEY]
    assert list(reply.content.config_records[REPORT_KEY]) == [PAYLOAD_KEY]
    assert len(payload(reply)) == 2 + encoded_length(DIMENSION, H)
    indices, sign, bit = decoded(reply)
    assert sign in (-1, 1)
    assert bit is None
    assert indices.max() < DIMENSION
    for leak in (CANARY, "987654", str(CANARY_FLOAT), "num-examples", "loss"):
        assert leak not in everything_in(reply)
    found = reply.metadata
    assert (found.dst_node_id, found.src_node_id, found.reply_to_message_id) == (1, 7, "mine")
    assert (found.run_id, found.message_type, found.group_id) == (3, "train", "1")


@pytest.mark.filterwarnings("ignore::flower_ldp.mechanisms.SmallTopSetWarning")
def test_report_is_about_the_update_over_all_float_entries() -> None:
    """At epsilon 100 nearly all reported dimensions are among the largest of sign * update."""
    grown = {**MODEL, "norm.running_mean": np.full(40, 2.0), "scale": np.array(9.0, np.float32)}
    selection = SignDS(epsilon=100.0, k=0.12, dim_out=20)
    hits = []
    for _ in range(10):
        indices, sign, _ = decoded(answer(training(grown), proposal(MODEL, selection)), h=20)
        if sign == 1:
            hits += indices.tolist()
    # K = 40 of the 41 entries that grew: the 0-d array (340) and the float64 array (300..339).
    assert hits
    assert np.isin(hits, range(300, 341)).mean() > 0.9


def test_magnitude_bit_tells_whether_the_update_is_small() -> None:
    bits = {}
    for scale in (1e-3, 1e3):
        app = training(moved(partial(np.full, fill_value=scale)))
        for _ in range(20):
            reply = answer(app, proposal(MODEL, SELECTION, (100.0, 1.0)))
            _, sign, bit = decoded(reply, has_bit=True)
            bits[scale, sign] = bit
    assert bits == {(1e-3, 1): 1, (1e-3, -1): 1, (1e3, 1): 0, (1e3, -1): 1}


def test_noise_is_fresh_in_every_call() -> None:
    replies = {everything_in(answer(honest_app))[-200:] for _ in range(20)}
    assert len(replies) == 20


ERRORS = (ValueError(CANARY), SystemExit(CANARY), OSError(5, CANARY), RecursionError(CANARY))


@pytest.mark.parametrize("error", [*ERRORS, RefusalError("ldp:" + CANARY, CANARY)])
def test_in_a_simulation_a_failing_app_is_loud_and_its_text_stays_on_the_client(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="flower_ldp"):
        assert_error(answer(raising(error)), FAILED)
    assert ("Traceback" in caplog.text) != isinstance(error, RefusalError)
    assert CANARY in caplog.text


def error_of_the_app(sent: Message, _: Context) -> Message:
    return Message(Error(5, CANARY), reply_to=sent)


@pytest.mark.parametrize("app", [error_of_the_app, lambda sent, _: CANARY])
def test_an_error_or_no_message_in_reply_becomes_the_constant(app: Any) -> None:
    assert_error(answer(app), FAILED)


def test_a_keyboard_interrupt_still_stops_the_client() -> None:
    with pytest.raises(KeyboardInterrupt):
        answer(raising(KeyboardInterrupt()))


def changed(name: str, array: np.ndarray) -> dict[str, np.ndarray]:
    return {**trained(), name: array}


UNREADABLE: tuple[Arrays, ...] = (
    changed("conv.weight", np.where(MODEL["conv.weight"] == 1, np.float32(np.nan), 0)),
    changed("conv.weight", np.where(MODEL["conv.weight"] == 1, np.float32(np.inf), 0)),
    changed("norm.running_mean", np.full(40, 1e300)),  # overflows float32
    changed("scale", np.array(np.nan, dtype=np.float32)),
    changed("conv.weight", MODEL["conv.weight"].reshape(100, 3)),
    changed("conv.weight", MODEL["conv.weight"][:2]),
    changed("conv.weight", MODEL["conv.weight"].astype(np.float64)),
    changed("norm.num_batches_tracked", np.array(5, dtype=np.int32)),
    changed("extra", np.zeros(3, dtype=np.float32)),
    {name: array for name, array in trained().items() if name != "scale"},
    {},
)
TWO = RecordDict({"a": record(trained()), "b": record(trained())})


@pytest.mark.parametrize("app", [*map(training, UNREADABLE), replying(TWO), replying(RecordDict())])
def test_a_reply_that_cannot_be_read_is_answered_by_a_report(app: App) -> None:
    deployed = LdpMod(train=SignDSRelease(), authorizer=AsDeployed())
    decoded(answer(app, mod=deployed))
    assert_error(answer(app), FAILED)  # loud in a simulation


def test_what_cannot_be_read_is_answered_without_a_direction() -> None:
    """Whatever is wrong: a fair sign, a fair bit, and every dimension as often as any other."""
    opened = SignDSRelease().open(proposal(MODEL, SELECTION, (8.0, 1e-30)))
    rng, draws = RandomSource.seeded(4), 600
    broken = RecordDict({"a": record(UNREADABLE[0])})
    hits, signs, bits = np.zeros(DIMENSION), 0, 0
    for _ in range(draws):
        for report in (opened.privatize(broken, rng), opened.neutral(rng)):
            found = decode_report(report, dimension=DIMENSION, dim_out=H, has_bit=True)
            hits[found[0]] += 1
            signs += found[1]
            bits += found[2] or 0
    # six standard deviations for each of the entries
    share = H / DIMENSION
    assert np.abs(hits - 2 * draws * share).max() < 6 * math.sqrt(2 * draws * share * (1 - share))
    assert abs(signs) < 5 * math.sqrt(2 * draws)
    assert abs(bits - draws) < 5 * math.sqrt(draws / 2)


def test_an_app_that_edits_the_message_in_place_cannot_move_the_baseline() -> None:
    def sly(message: Message, context: Context) -> Message:
        for array in message.content.array_records["arrays"].values():
            array.data = b""
        message.content["arrays"] = ArrayRecord({"x": Array(np.zeros(1, np.float32))})
        return Message(RecordDict({"arrays": record(trained())}), reply_to=message)

    assert list(answer(sly).content) == [REPORT_KEY]


@pytest.mark.parametrize(
    ("kind", "advice"),
    [
        ("train", "LdpMod(train=SignDSRelease())"),
        ("train.extra", "no release"),
        ("system", "no release"),
        ("evaluate", "LdpMod(evaluate=ProtectedEvalRelease())"),
        ("query.generate_embeddings", "split_client_app (docs/embedding.md)"),
    ],
)
def test_a_message_without_a_release_is_refused_with_what_to_do(kind: str, advice: str) -> None:
    if kind != "train":
        assert_error(answer(not_called, kind=kind), REFUSED_MESSAGE)
    with pytest.raises(RefusalError, match=re.escape(advice)):
        open_proposal({}, message(proposal(MODEL, SELECTION), kind=kind))


def tampered(**fields: Any) -> RecordDict:
    return asking({**signds_proposal(SELECTION).to_fields(), **fields}, MODEL)


def without(key: str) -> RecordDict:
    content = proposal(MODEL, SELECTION)
    del content[key]
    return content


def with_model_of(data: bytes) -> RecordDict:
    content = proposal(MODEL, SELECTION)
    content["arrays"] = ArrayRecord({"w": Array("float32", (1,), "numpy.ndarray", data)})
    return content


@pytest.mark.parametrize(
    "content",
    [
        without("arrays"),
        tampered(version=2),
        tampered(mechanism="identity"),
        tampered(epsilon=float("nan")),
        tampered(**{"dim-out": 4096}),
        tampered(extra=1),
        proposal({"only": np.array([1, 2])}, SELECTION),
        with_model_of(b""),
        with_model_of(b"PK\x05\x06" + bytes(18)),  # an archive of nothing
        with_model_of(b"PK\x03\x04 and no archive"),
    ],
)
def test_a_bad_proposal_is_refused_before_the_app_is_asked(content: RecordDict) -> None:
    assert_error(answer(not_called, content), REFUSED_PROPOSAL)


@pytest.mark.parametrize("content", [RecordDict(), without(PROPOSAL_KEY)])
def test_a_message_of_another_strategy_is_refused_with_what_to_run(content: RecordDict) -> None:
    assert_error(answer(not_called, content), NO_PROPOSAL)
    for name in ("SignDSStrategy", "CodewordStrategy", "GaussianStrategy", "ProtectedEvalStrategy"):
        assert name in NO_PROPOSAL


def test_admission_is_asked_with_public_facts_before_the_app() -> None:
    authorizer = Watching()

    def app(message: Message, context: Context) -> Message:
        assert len(authorizer.requests) == 1
        return honest_app(message, context)

    mod = LdpMod(train=SignDSRelease(), authorizer=authorizer)
    decoded(answer(app, proposal(MODEL, SELECTION, (0.5, 1e-3)), mod), has_bit=True)
    (request,) = authorizer.requests
    assert (request.run_id, request.message_type) == (3, "train")
    assert request.message_id.startswith("m-")
    assert [(e.mechanism, e.epsilon) for e in request.events] == [("signds", 20.0), ("magrr", 0.5)]
    fields = signds_proposal(SELECTION, 0.5, 1e-3).to_fields()
    assert json.loads(request.parameters) == {**fields, "dimension": DIMENSION}
    assert fields["threshold-ratio"] == 0.6


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (RefusalError("ldp:refused:budget", CANARY), "ldp:refused:budget"),
        (OSError("unreadable ledger " + CANARY), FAILED),
    ],
)
def test_a_refusal_by_the_admission_sends_its_code_only(error: Exception, reason: str) -> None:
    mod = LdpMod(train=SignDSRelease(), authorizer=Watching(error))
    assert_error(answer(not_called, mod=mod), reason)


def test_context_state_is_not_used_for_anything_that_leaves() -> None:
    own = context()
    LdpMod(train=SignDSRelease())(message(proposal(MODEL, SELECTION)), own, honest_app)
    assert list(own.state) == []


# Types of message with an action: released, acknowledged, or refused.


def test_a_release_may_be_set_for_an_action_alone() -> None:
    gate = LdpMod(actions={"train.now": SignDSRelease()})
    decoded(answer(honest_app, mod=gate, kind="train.now"))
    for kind in ("train", "train.later", "evaluate.now"):
        assert_error(answer(not_called, mod=gate, kind=kind), REFUSED_MESSAGE)


def test_an_acknowledgement_says_nothing_whatever_the_app_returns() -> None:
    taken: list[str] = []

    def app(sent: Message, given: Context) -> Message:
        taken.append(str(sent.content.config_records["hint"]["text"]))
        return honest_app(sent, given)

    gate = LdpMod(acknowledged=("train.take",))
    content = RecordDict({"hint": ConfigRecord({"text": "down"})})
    reply = answer(app, content, gate, "train.take")
    assert taken == ["down"]
    assert dict(reply.content) == {REPORT_KEY: ConfigRecord({PAYLOAD_KEY: b""})}
    assert_error(answer(not_called, content, gate), REFUSED_MESSAGE)
    for failing in (raising(SystemExit(CANARY)), error_of_the_app):
        assert_error(answer(failing, content, gate, "train.take"), FAILED)  # in a simulation


def test_a_message_is_released_or_acknowledged_but_not_both() -> None:
    with pytest.raises(ValueError, match="not both"):
        LdpMod(train=SignDSRelease(), acknowledged=("train",))
