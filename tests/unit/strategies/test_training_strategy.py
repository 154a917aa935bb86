"""What strategies of training share, by a mechanism made up here and a strategy of a few lines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from flwr.app import RecordDict
from flwr.serverapp.strategy import FedAvg

from flower_ldp.errors import WireError
from flower_ldp.extensions import ExtensionReport
from flower_ldp.mechanisms import Laplace, RandomSource, SignDS
from flower_ldp.mechanisms.base import UpdateMechanism
from flower_ldp.mechanisms.signds_round import encode_report
from flower_ldp.privacy import PrivacyEvent, Unit
from flower_ldp.refusals import NO_PROPOSAL
from flower_ldp.strategies import (
    ClientPool,
    FixedStep,
    Health,
    LaplaceEvalStrategy,
    Momentum,
    RunStopped,
)
from flower_ldp.strategies.named import StepSize
from flower_ldp.strategies.replies import ReplyValidator
from flower_ldp.strategies.rounds import TrainingRound
from flower_ldp.strategies.training import TrainingStrategy
from flower_ldp.wire.proposal import PROPOSAL_KEY
from tests.fixtures import error_reply, message, record, signds_proposal
from tests.unit.strategies import rounds
from tests.unit.strategies.rounds import aggregated, reply, unmoved

pytestmark = pytest.mark.usefixtures("outside_a_run")

MODEL = {"w": np.ones((2, 2), dtype=np.float32), "steps": np.array(3, dtype=np.int64)}


@dataclass(frozen=True)
class Steps(UpdateMechanism):
    """A mechanism that is none: a report is a step of one byte an entry."""

    name = "steps"

    epsilon: float

    def events(self) -> tuple[PrivacyEvent, ...]:
        return (PrivacyEvent("steps", self.epsilon),)

    def randomize(self, value: object, rng: RandomSource, dimension: int | None = None) -> Any:
        raise NotImplementedError

    def log_prob(self, report: Any, value: object, dimension: int | None = None) -> float:
        raise NotImplementedError

    def report_length(self, dimension: int) -> int:
        return dimension

    def encode(self, report: Any, dimension: int) -> bytes:
        raise NotImplementedError

    def decode(self, data: bytes, dimension: int) -> Any:
        if len(data) != dimension:
            raise WireError("length", f"{len(data)} bytes")
        return np.frombuffer(data, dtype=np.int8)


class StepsStrategy(TrainingStrategy[Steps]):
    """All that a strategy for a new mechanism has to say."""

    _mechanism_type = Steps
    _mechanism_example = "a Steps, as Steps(1.0)"
    shares: tuple[float, ...] = ()

    def _next(self, entries: int, participation: float) -> UpdateMechanism:
        self.shares += (participation,)
        return super()._next(entries, participation)

    def _description(self) -> Iterator[str]:
        yield f"Steps at 100 % of {self.mechanism.epsilon:g}"


def ask(strategy: StepsStrategy, server_round: int = 1) -> list[int]:
    sent = rounds.ask(strategy, MODEL, server_round, nodes=8)
    health = strategy.proposal(None).to_fields() if strategy._health.epsilon else {}
    stated = [dict(one.content.config_records[PROPOSAL_KEY]) for one in sent]
    assert stated == [{"version": 1, "mechanism": "steps", "epsilon": 2.0} | health] * len(sent)
    return [one.metadata.dst_node_id for one in sent]


def test_a_round_of_any_mechanism_is_asked_for_added_up_and_paid_for() -> None:
    strategy = StepsStrategy(Steps(2.0), fraction_train=0.5, server_optimizer=Momentum(0.0, 10.0))
    nodes = ask(strategy)
    assert (len(nodes), strategy.shares) == (4, (0.5,))
    replies = [reply(bytes([1, 2, 3, 4]), nodes[0]), reply(bytes([3, 2, 1, 0]), nodes[1])]
    replies += [reply(b"short", nodes[2]), error_reply("ldp:refused:budget", nodes[3])]
    after, metrics = aggregated(strategy, replies)
    np.testing.assert_allclose(after["w"].ravel(), 1.0 + 10.0 * np.full(4, 2.0))
    assert after["steps"] == 3
    assert dict(metrics) == {
        "accepted": 2,
        "rejected": 2,
        "rejected-ldp:refused:budget": 1,
        "rejected-length": 1,
        "bytes-up": 4.0,
        "epsilon-round": 2.0,
        "epsilon-total": 2.0,
    }
    clients = strategy.privacy_spent().clients
    assert [bool(clients[node]) for node in nodes] == [True, True, True, False]
    assert clients[nodes[2]][Unit.CLIENT].epsilon == 2.0


def test_aggregating_another_round_than_was_asked_for_is_an_error() -> None:
    strategy = StepsStrategy(Steps(2.0))
    ask(strategy)
    with pytest.raises(RuntimeError, match="round 2 was not configured"):
        strategy.aggregate_train(2, [])


def test_a_refusal_with_the_constant_sentence_counts_under_its_code_and_costs_nothing() -> None:
    strategy = StepsStrategy(Steps(2.0), fraction_train=0.5)
    first, second, *_ = ask(strategy)
    replies = [reply(bytes(4), first), error_reply(NO_PROPOSAL, second)]
    _, metrics = aggregated(strategy, replies)
    assert metrics["rejected-ldp:refused:proposal"] == 1
    assert not strategy.privacy_spent().clients[second]


REFUSALS = ("ldp:refused:policy", NO_PROPOSAL, "ldp:refused:rehearsal: no weight", "ldp:failed")


@pytest.mark.parametrize("reason", REFUSALS)
def test_a_refusal_of_all_stops_the_run_and_uses_nobody_up(reason: str) -> None:
    pool = ClientPool(1)
    strategy = StepsStrategy(Steps(2.0), answers_per_client=pool, fraction_train=1.0)
    nodes = ask(strategy)
    assert pool.left(nodes) == []
    with pytest.raises(RunStopped, match=r"round 1: no report came\..* 8 times: ") as caught:
        strategy.aggregate_train(1, [error_reply(reason, node) for node in nodes])
    assert pool.left(nodes) == ([] if reason == "ldp:failed" else nodes)
    assert str(caught.value).count("ldp:") == 1
    assert ("no weight" in str(caught.value)) is ("no weight" in reason)


@pytest.mark.parametrize("reason", [*REFUSALS, "raw"])
def test_one_client_cannot_stop_a_run_in_which_the_others_are_silent(reason: str) -> None:
    strategy = StepsStrategy(Steps(2.0))
    (node, *_) = ask(strategy)
    raw = message(RecordDict({"m": record(MODEL)}), node=node, reply=True)
    unmoved(strategy, [raw if reason == "raw" else error_reply(reason, node)])
    assert (node in ask(strategy, 2)) is (reason != "raw")


def test_one_client_says_nothing_in_the_sentence_of_the_others() -> None:
    strategy = StepsStrategy(Steps(2.0))
    (node, *others) = ask(strategy)
    replies = [error_reply("ldp:refused:rehearsal: buy my coin", node)]
    replies += [error_reply(f"ldp:refused:rehearsal: {other % 2}", other) for other in others]
    with pytest.raises(RunStopped, match=r"begin again$"):
        strategy.aggregate_train(1, replies)


def test_a_run_that_has_learned_keeps_its_model_when_all_refuse() -> None:
    strategy = StepsStrategy(Steps(2.0))
    aggregated(strategy, [reply(bytes(4), node) for node in ask(strategy)])
    refusals = [error_reply("ldp:refused:budget", node) for node in ask(strategy, 2)]
    unmoved(strategy, refusals, 2)


def test_a_code_is_said_once_in_a_complaint(caplog: pytest.LogCaptureFixture) -> None:
    strategy = StepsStrategy(Steps(2.0))
    (node, *_) = ask(strategy)
    unmoved(strategy, [error_reply("ldp:refused:budget", node)])
    (said,) = [one for one in caplog.messages if "left out" in one]
    assert said.count("ldp:refused:budget") == 1


@pytest.mark.parametrize("error", [OSError, KeyError, RecursionError, MemoryError, SystemExit])
def test_whatever_an_extension_raises_ends_one_report(error: type[BaseException]) -> None:
    class Odd:
        epsilon, delta, report_bytes = 1.0, 0.0, 1

        def estimate(self, report: bytes) -> Any:
            if report == b"e":
                raise error("of a client's bytes")
            odd: dict[bytes, Any] = {b"t": "text", b"o": [None] * 5, b"r": [[1], [2, 3]]}
            return odd.get(report, np.ones(5))

    mechanism = ExtensionReport("odd", 1.0, 0.0, 1, made=Odd())  # type: ignore[arg-type]
    judge = ReplyValidator(range(5))
    replies = [reply(bytes([of]), node) for node, of in enumerate(b"etorg")]
    total = mechanism.total(judge.decode(replies, partial(mechanism.decode, dimension=5)), 5)
    assert (judge.accepted, judge.rejected["report"]) == (1, 4)
    np.testing.assert_array_equal(total, np.ones(5))


def test_the_health_bit_is_the_bases_and_no_mechanisms() -> None:
    strategy = StepsStrategy(Steps(2.0), health=Health(100.0, stop_above=0.5))
    nodes = ask(strategy)
    _, metrics = aggregated(strategy, [reply(bytes([0] * 4 + [one % 2]), one) for one in nodes])
    assert metrics["failing-share"] == pytest.approx(0.5)
    assert (metrics["bytes-up"], metrics["epsilon-round"]) == (5.0, 102.0)
    nodes = ask(strategy, 2)
    with pytest.raises(RunStopped, match="the app fails in 100%"):
        strategy.aggregate_train(2, [reply(b"\0\0\0\0\1", node) for node in nodes])
    with pytest.raises(RuntimeError, match="round 2 was not configured"):
        strategy.aggregate_train(2, [])


@pytest.mark.parametrize(
    "make",
    [
        lambda health: StepsStrategy(Steps(2.0), health=health),
        lambda health: LaplaceEvalStrategy(
            FedAvg(), Laplace(epsilon=5.0, rows=1, classes=2), health=health
        ),
    ],
)
def test_a_run_is_not_stopped_for_the_reports_of_another(make: Any) -> None:
    strategy = make(Health(100.0))
    watch = strategy._health
    strategy.expect(3, record(MODEL))
    current = SimpleNamespace(server_round=1)

    def round_of(bit: int) -> None:
        watch.before_ask(None)
        decode = watch.decoder(len)
        for _ in range(20):
            decode(b"report" + bytes([bit]))
        watch.after_replies(current, ReplyValidator([]))

    for _ in range(2):
        with pytest.raises(RunStopped, match="neutral"):
            round_of(1)
    strategy.expect(3, record(MODEL))
    for _ in range(3):
        round_of(0)


def test_what_describes_a_mechanism_is_logged_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    StepsStrategy(Steps(2.0)).summary()
    assert "\t├──> Steps at 100 % of 2" in caplog.messages


def test_a_mechanism_of_another_type_is_refused_with_what_to_write() -> None:
    with pytest.raises(TypeError, match=r"mechanism must be a Steps, as Steps\(1.0\)"):
        StepsStrategy(SignDS(8.0))  # type: ignore[arg-type]


def test_the_sum_has_no_trace_of_what_is_rejected() -> None:
    mechanism = signds_proposal(SignDS(20.0, 0.2, dim_out=2), 1.0, 0.5).mechanism
    size = StepSize(FixedStep(1.0))
    good = [
        encode_report(np.array(at), sign, bit, dimension=40)
        for at, sign, bit in (([0, 3], 1, 1), ([3, 9], -1, 0), ([3, 4], -1, 1))
    ]
    judge = ReplyValidator(range(5))
    payloads = [*good, good[0] + b"\0", b""]
    replies = [reply(payload, node) for node, payload in enumerate(payloads)]
    decoded = judge.decode(replies, partial(mechanism.decode, dimension=40))
    total = mechanism.total(size.counted(decoded), 40)
    assert (size._ones, judge.accepted, judge.rejected["length"]) == (2, 3, 2)
    expected = np.zeros(40, dtype=np.int32)
    expected[[0, 3, 4, 9]] = (1, -1, -1, -1)
    np.testing.assert_array_equal(total, expected)


ORDER = ["Forecast", "SpendingLog", "HealthMonitor"]


def test_all_that_may_refuse_a_round_comes_before_anybody_is_chosen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Callbacks run in the order of one list, and the choice is the last thing that may fail."""
    happened: list[str] = []
    pool = ClientPool(1)
    strategy = StepsStrategy(Steps(2.0), answers_per_client=pool, fraction_train=1.0)
    assert [type(one).__name__ for one in strategy.callbacks] == ORDER

    def note(owner: object, hook: str, told: str) -> None:
        kept = getattr(owner, hook)

        def noted(*given: Any, **named: Any) -> Any:
            happened.append(told)
            return kept(*given, **named)

        monkeypatch.setattr(owner, hook, noted)

    for callback in strategy.callbacks:
        for hook in ("before_ask", "after_replies", "after_step", "metrics"):
            note(callback, hook, f"{type(callback).__name__}.{hook}")
    note(pool, "choose", "choose")
    nodes = ask(strategy)
    assert happened == [*(f"{name}.before_ask" for name in ORDER), "choose"]
    happened.clear()
    strategy.aggregate_train(1, [reply(bytes(4), node) for node in nodes])
    hooks = ("after_replies", "after_step", "metrics")
    assert happened == [f"{name}.{hook}" for hook in hooks for name in ORDER]


@pytest.mark.parametrize("place", range(len(ORDER)))
def test_a_callback_that_refuses_a_round_uses_nobody_up(
    place: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(current: TrainingRound) -> None:
        raise ValueError("no such round")

    pool = ClientPool(1)
    strategy = StepsStrategy(Steps(2.0), answers_per_client=pool, fraction_train=1.0)
    monkeypatch.setattr(strategy.callbacks[place], "before_ask", refuse)
    with pytest.raises(ValueError, match="no such round"):
        ask(strategy)
    assert (pool.asked(), strategy.privacy_spent().clients) == ({}, {})


@pytest.mark.parametrize("wrong", ["fraction_trian", "weighted_by_key"])
def test_an_argument_that_no_strategy_has_is_an_error(wrong: str) -> None:
    with pytest.raises(TypeError, match=f"StepsStrategy has no argument {wrong}"):
        StepsStrategy(Steps(2.0), **{wrong: 1.0})  # type: ignore[arg-type]


def test_a_mechanism_needs_no_strategy_of_its_own() -> None:
    strategy = TrainingStrategy(Steps(2.0))
    assert strategy.proposal(None).mechanism == Steps(2.0)
    assert strategy.step_rule() == "the mean"
    with pytest.raises(TypeError, match="an UpdateMechanism"):
        TrainingStrategy(2.0)
