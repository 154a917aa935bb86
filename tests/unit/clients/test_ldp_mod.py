"""The gate: nothing leaves but a report that it built, or one of a few constants."""

from __future__ import annotations

import itertools
import json
import logging
import math
import re
from collections.abc import Callable
from functools import partial

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
from flower_ldp.clients import LdpMod, Permit, ReleaseRequest, SignDSRelease
from flower_ldp.clients.release import ERROR_CODE, open_proposal
from flower_ldp.errors import RefusalError
from flower_ldp.mechanisms import RandomSource, SignDS
from flower_ldp.mechanisms.signds_round import decode_report
from flower_ldp.mechanisms.subset_code import encoded_length
from flower_ldp.refusals import FAILED, NO_PROPOSAL, REFUSED_MESSAGE, REFUSED_PROPOSAL
from flower_ldp.wire.proposal import PAYLOAD_KEY, PROPOSAL_KEY, REPORT_KEY
from tests.fixtures import Arrays, UnrecordedPermit, context, message, proposal, record

pytestmark = pytest.mark.usefixtures("simulation_policy")

CANARY = "canary-7f3a91"
CANARY_FLOAT = 0.123456789
SELECTION = SignDS(epsilon=20.0, k=0.2)
MODEL = {
    "conv.weight": np.linspace(-1, 1, 300, dtype=np.float32).reshape(3, 100),
    "norm.running_mean": np.zeros(40, dtype=np.float64),
    "norm.num_batches_tracked": np.array(5, dtype=np.int64),
    "scale": np.array(1.5, dtype=np.float32),
    "mask": np.array([True, False]),
}
DIMENSION = 341
App = Callable[[Message, Context], Message]
_numbers = itertools.count()


def trained(seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        name: np.asarray(array + rng.normal(size=array.shape), dtype=array.dtype)
        if array.dtype.kind == "f"
        else array
        for name, array in MODEL.items()
    }


def honest_app(message: Message, context: Context) -> Message:
    """Replies with everything that a Flower app usually replies with, and canaries in it."""
    reply = RecordDict(
        {
            "arrays": record(trained()),
            "metrics": MetricRecord({"num-examples": 987_654, "loss": CANARY_FLOAT}),
            CANARY: ConfigRecord({CANARY: CANARY}),
        }
    )
    return Message(reply, reply_to=message)


def answer(
    app: App, content: RecordDict | None = None, *, mod: LdpMod | None = None, kind: str = "train"
) -> Message:
    mod = mod or LdpMod(train=SignDSRelease())
    content = proposal(MODEL, SELECTION) if content is None else content
    return mod(message(content, kind=kind, message_id=f"m-{next(_numbers)}"), context(), app)


def deployed() -> LdpMod:
    """Return a gate that answers as in a deployment."""
    return LdpMod(train=SignDSRelease(), authorizer=AsDeployed())


def assert_error(reply: Message, reason: str) -> None:
    assert reply.has_error()
    assert not reply.has_content()
    assert (reply.error.code, reply.error.reason) == (ERROR_CODE, reason)


def assert_report(reply: Message) -> None:
    payload = reply.content.config_records[REPORT_KEY][PAYLOAD_KEY]
    assert isinstance(payload, bytes)
    h = SELECTION.plan(DIMENSION).dim_out
    decode_report(payload, dimension=DIMENSION, dim_out=h, has_bit=False)


def everything_in(reply: Message) -> str:
    """All that a reply carries: metadata, error, keys, values, bytes."""
    parts = [repr(vars(reply.metadata))]
    if reply.has_error():
        parts.append(repr(reply.error))
    else:
        parts += [repr({k: repr(v) for k, v in reply.content.items()})]
    return " ".join(parts)


def test_reply_holds_one_packed_report_and_nothing_else() -> None:
    reply = answer(honest_app)
    assert list(reply.content) == [REPORT_KEY]
    fields = reply.content.config_records[REPORT_KEY]
    assert list(fields) == [PAYLOAD_KEY]
    payload = fields[PAYLOAD_KEY]
    assert isinstance(payload, bytes)
    h = SELECTION.plan(DIMENSION).dim_out
    assert len(payload) == 2 + encoded_length(DIMENSION, h)
    indices, sign, bit = decode_report(payload, dimension=DIMENSION, dim_out=h, has_bit=False)
    assert sign in (-1, 1)
    assert bit is None
    assert indices.max() < DIMENSION
    for leak in (CANARY, "987654", str(CANARY_FLOAT), "num-examples", "loss"):
        assert leak not in everything_in(reply)


def test_reply_goes_back_to_the_asker_as_an_answer_to_its_message() -> None:
    found = answer(honest_app).metadata
    assert (found.dst_node_id, found.src_node_id, found.reply_to_message_id) == (1, 7, "m-1")
    assert (found.run_id, found.message_type, found.group_id) == (3, "train", "1")


@pytest.mark.filterwarnings("ignore::flower_ldp.mechanisms.SmallTopSetWarning")
def test_report_is_about_the_update_over_all_float_entries() -> None:
    """At epsilon 100 nearly all reported dimensions are among the largest of sign * update."""
    changed = {**MODEL, "norm.running_mean": np.full(40, 2.0), "scale": np.array(9.0, np.float32)}
    selection = SignDS(epsilon=100.0, k=0.12, dim_out=20)
    hits = []
    for _ in range(10):
        reply = answer(
            lambda msg, ctx: Message(RecordDict({"m": record(changed)}), reply_to=msg),
            proposal(MODEL, selection),
        )
        payload = reply.content.config_records[REPORT_KEY][PAYLOAD_KEY]
        assert isinstance(payload, bytes)
        indices, sign, _ = decode_report(payload, dimension=DIMENSION, dim_out=20, has_bit=False)
        if sign == 1:
            hits += indices.tolist()
    # K = 40 of the 41 entries that grew: the 0-d array (340) and the float64 array (300..339).
    assert hits
    assert np.isin(hits, range(300, 341)).mean() > 0.9


def test_magnitude_bit_tells_whether_the_update_is_small() -> None:
    bits = {}
    for scale in (1e-3, 1e3):
        moved = {
            name: np.asarray(array + scale, array.dtype) if array.dtype.kind == "f" else array
            for name, array in MODEL.items()
        }
        for _ in range(20):
            reply = answer(
                lambda msg, ctx, moved=moved: Message(  # type: ignore[misc]
                    RecordDict({"m": record(moved)}), reply_to=msg
                ),
                proposal(MODEL, SELECTION, (100.0, 1.0)),
            )
            payload = reply.content.config_records[REPORT_KEY][PAYLOAD_KEY]
            assert isinstance(payload, bytes)
            h = SELECTION.plan(DIMENSION).dim_out
            _, sign, bit = decode_report(payload, dimension=DIMENSION, dim_out=h, has_bit=True)
            bits[scale, sign] = bit
    assert bits == {(1e-3, 1): 1, (1e-3, -1): 1, (1e3, 1): 0, (1e3, -1): 1}


def test_noise_is_fresh_in_every_call() -> None:
    replies = {everything_in(answer(honest_app))[-200:] for _ in range(20)}
    assert len(replies) == 20


def raising(error: BaseException) -> App:
    def app(message: Message, context: Context) -> Message:
        raise error

    return app


@pytest.mark.parametrize(
    "error",
    [
        ValueError(CANARY),
        KeyError(CANARY),
        SystemExit(CANARY),
        RefusalError("ldp:" + CANARY, CANARY),
        OSError(5, CANARY),
        MemoryError(CANARY),
        RecursionError(CANARY),
    ],
)
def test_in_a_simulation_a_failing_app_is_loud_and_its_text_stays_on_the_client(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="flower_ldp"):
        reply = answer(raising(error))
    assert_error(reply, FAILED)
    assert ("Traceback" in caplog.text) != isinstance(error, RefusalError)
    assert CANARY not in everything_in(reply)
    assert CANARY in caplog.text


def test_a_keyboard_interrupt_still_stops_the_client() -> None:
    with pytest.raises(KeyboardInterrupt):
        answer(raising(KeyboardInterrupt()))


def with_arrays(arrays: Arrays) -> App:
    return lambda msg, ctx: Message(RecordDict({"arrays": record(arrays)}), reply_to=msg)


def with_content(content: RecordDict, message: Message, _: Context) -> Message:
    return Message(content, reply_to=message)


def changed(name: str, array: np.ndarray) -> dict[str, np.ndarray]:
    return {**trained(), name: array}


def spoiled(value: float) -> np.ndarray:
    array = MODEL["conv.weight"].copy()
    array[1, 50] = value
    return array


@pytest.mark.parametrize(
    "arrays",
    [
        changed("conv.weight", spoiled(np.nan)),
        changed("conv.weight", spoiled(np.inf)),
        changed("norm.running_mean", np.full(40, 1e300)),  # overflows float32
        changed("scale", np.array(np.nan, dtype=np.float32)),
        changed("conv.weight", MODEL["conv.weight"].reshape(100, 3)),
        changed("conv.weight", MODEL["conv.weight"][:2]),
        changed("conv.weight", np.float32(1.0).reshape(1, 1)),
        changed("conv.weight", MODEL["conv.weight"].astype(np.float64)),
        changed("norm.num_batches_tracked", np.array(5, dtype=np.int32)),
        changed("extra", np.zeros(3, dtype=np.float32)),
        {name: array for name, array in trained().items() if name != "scale"},
        {},
    ],
)
def test_a_reply_that_cannot_be_read_is_answered_by_a_report(arrays: Arrays) -> None:
    assert_report(answer(with_arrays(arrays), mod=deployed()))
    assert_error(answer(with_arrays(arrays)), FAILED)  # loud in a simulation


def test_two_models_or_none_in_the_reply_are_answered_by_a_report() -> None:
    two = RecordDict({"a": record(trained()), "b": record(trained())})
    for content in (two, RecordDict()):
        assert_report(answer(partial(with_content, content), mod=deployed()))


def test_what_cannot_be_read_is_answered_without_a_direction() -> None:
    """Whatever is wrong: a fair sign, a fair bit, and every dimension as often as any other."""
    opened = SignDSRelease().open(proposal(MODEL, SELECTION, (8.0, 1e-30)))
    h, rng, draws = SELECTION.plan(DIMENSION).dim_out, RandomSource.seeded(4), 600
    broken = RecordDict({"a": record(changed("conv.weight", spoiled(np.nan)))})
    hits, signs, bits = np.zeros(DIMENSION), 0, 0
    for _ in range(draws):
        for payload in (opened.privatize(broken, rng), opened.neutral(rng)):
            found = decode_report(payload, dimension=DIMENSION, dim_out=h, has_bit=True)
            hits[found[0]] += 1
            signs += found[1]
            bits += found[2] or 0
    # six standard deviations for each of the entries
    share = h / DIMENSION
    assert np.abs(hits - 2 * draws * share).max() < 6 * math.sqrt(2 * draws * share * (1 - share))
    assert abs(signs) < 5 * math.sqrt(2 * draws)
    assert abs(bits - draws) < 5 * math.sqrt(draws / 2)


def test_an_error_reply_of_the_app_becomes_the_constant() -> None:
    reply = answer(lambda msg, ctx: Message(Error(5, CANARY), reply_to=msg))
    assert_error(reply, FAILED)
    assert CANARY not in everything_in(reply)


def test_something_else_than_a_message_fails() -> None:
    assert_error(answer(lambda msg, ctx: CANARY), FAILED)  # type: ignore[arg-type,return-value]


def test_an_app_that_edits_the_message_in_place_cannot_move_the_baseline() -> None:
    def sly(message: Message, context: Context) -> Message:
        for array in message.content.array_records["arrays"].values():
            array.data = b""
        message.content["arrays"] = ArrayRecord({"x": Array(np.zeros(1, np.float32))})
        return Message(RecordDict({"arrays": record(trained())}), reply_to=message)

    assert list(answer(sly).content) == [REPORT_KEY]


def never(message: Message, context: Context) -> Message:
    raise AssertionError("the app was asked")


@pytest.mark.parametrize("kind", ["evaluate", "query", "train.extra", "system"])
def test_messages_without_a_release_are_refused_before_the_app_is_asked(kind: str) -> None:
    assert_error(answer(never, kind=kind), REFUSED_MESSAGE)


@pytest.mark.parametrize(
    ("kind", "advice"),
    [
        ("train", "LdpMod(train=SignDSRelease())"),
        ("evaluate", "LdpMod(evaluate=ProtectedEvalRelease())"),
        ("query.generate_embeddings", "split_client_app (docs/embedding.md)"),
    ],
)
def test_a_message_without_a_release_is_refused_with_what_to_do(kind: str, advice: str) -> None:
    with pytest.raises(RefusalError, match=re.escape(advice)):
        open_proposal({}, message(proposal(MODEL, SELECTION), kind=kind))


def tampered(**fields: object) -> RecordDict:
    content = proposal(MODEL, SELECTION)
    merged = {**content.config_records[PROPOSAL_KEY], **fields}
    content[PROPOSAL_KEY] = ConfigRecord(
        {name: value for name, value in merged.items() if value is not None}  # type: ignore[misc]
    )
    return content


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
        tampered(epsilon=1e9),
        tampered(epsilon=float("nan")),
        tampered(epsilon="8"),
        tampered(k=0.9),
        tampered(**{"dim-out": 4096}),
        tampered(**{"dim-out": True}),
        tampered(**{"threshold-ratio": None}),
        tampered(**{"magnitude-epsilon": 1.0}),
        tampered(**{"magnitude-epsilon": 1.0, "magnitude-threshold": float("inf")}),
        tampered(extra=1),
        proposal({"only": np.array([1, 2])}, SELECTION),
        with_model_of(b""),
        with_model_of(b"PK\x05\x06" + bytes(18)),  # an archive of nothing
        with_model_of(b"PK\x03\x04 and no archive"),
    ],
)
def test_a_bad_proposal_is_refused_before_the_app_is_asked(content: RecordDict) -> None:
    assert_error(answer(never, content), REFUSED_PROPOSAL)


@pytest.mark.parametrize("content", [RecordDict(), without(PROPOSAL_KEY)])
def test_a_message_of_another_strategy_is_refused_with_what_to_run(content: RecordDict) -> None:
    assert_error(answer(never, content), NO_PROPOSAL)
    for name in ("SignDSStrategy", "CodewordStrategy", "GaussianStrategy", "ProtectedEvalStrategy"):
        assert name in NO_PROPOSAL


class Recording:
    def __init__(self, refuse: str | None = None) -> None:
        self.requests: list[ReleaseRequest] = []
        self.refuse = refuse

    def authorize(self, request: ReleaseRequest, context: Context) -> Permit:
        self.requests.append(request)
        if self.refuse:
            raise RefusalError(self.refuse, "private or not, this stays here: " + CANARY)
        return Keeping()

    def acknowledge(self, message_type: str, context: Context) -> Permit:
        raise AssertionError("nothing is acknowledged")


def test_admission_is_asked_with_public_facts_before_the_app() -> None:
    authorizer = Recording()

    def app(message: Message, context: Context) -> Message:
        assert len(authorizer.requests) == 1
        return honest_app(message, context)

    mod = LdpMod(train=SignDSRelease(), authorizer=authorizer)
    answer(app, proposal(MODEL, SELECTION, (0.5, 1e-3)), mod=mod)
    (request,) = authorizer.requests
    assert (request.run_id, request.message_type) == (3, "train")
    assert request.message_id.startswith("m-")
    assert [(e.mechanism, e.epsilon) for e in request.events] == [("signds", 20.0), ("magrr", 0.5)]
    assert json.loads(request.parameters) == {
        "version": 1,
        "mechanism": "signds",
        "epsilon": 20.0,
        "k": 0.2,
        "threshold-ratio": 0.6,
        "dim-out": 0,
        "magnitude-epsilon": 0.5,
        "magnitude-threshold": 1e-3,
        "dimension": DIMENSION,
    }


def test_a_refusal_by_the_admission_sends_its_code_only() -> None:
    mod = LdpMod(train=SignDSRelease(), authorizer=Recording("ldp:refused:budget"))
    reply = answer(never, mod=mod)
    assert_error(reply, "ldp:refused:budget")
    assert CANARY not in everything_in(reply)


def test_an_admission_that_breaks_lets_nothing_out() -> None:
    class Broken:
        def authorize(self, request: ReleaseRequest, context: Context) -> Permit:
            raise OSError("unreadable ledger " + CANARY)

        def acknowledge(self, message_type: str, context: Context) -> Permit:
            raise AssertionError("nothing is acknowledged")

    reply = answer(never, mod=LdpMod(train=SignDSRelease(), authorizer=Broken()))
    assert_error(reply, FAILED)


def test_context_state_is_not_used_for_anything_that_leaves() -> None:
    ctx = context()
    LdpMod(train=SignDSRelease())(message(proposal(MODEL, SELECTION)), ctx, honest_app)
    assert json.dumps(list(ctx.state)) == "[]"


class Keeping(UnrecordedPermit):
    """An authorizer that keeps one report, as a ledger does; it is its own permit."""

    def __init__(self, *, breaks: bool = False) -> None:
        super().__init__()
        self.breaks = breaks

    def authorize(self, request: ReleaseRequest, context: Context) -> Permit:
        return self

    def acknowledge(self, message_type: str, context: Context) -> Permit:
        return self

    def keep(self, report: bytes, last: bool) -> None:
        if self.breaks:
            raise OSError("disk full " + CANARY)
        self.stored = report


def payload_in(reply: Message) -> object:
    return reply.content.config_records[REPORT_KEY][PAYLOAD_KEY]


def test_a_message_delivered_again_gets_the_stored_report_and_the_app_is_not_asked() -> None:
    keeping = Keeping()
    mod = LdpMod(train=SignDSRelease(), authorizer=keeping)
    first = payload_in(answer(honest_app, mod=mod))
    assert keeping.stored == first
    assert payload_in(answer(never, mod=mod)) == first


def test_a_report_that_cannot_be_kept_does_not_leave() -> None:
    mod = LdpMod(train=SignDSRelease(), authorizer=Keeping(breaks=True))
    reply = answer(honest_app, mod=mod)
    assert_error(reply, FAILED)
    assert CANARY not in everything_in(reply)
