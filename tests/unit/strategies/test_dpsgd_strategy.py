"""One client of a hundred that trains by DP-SGD counts as one, whatever it sends."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import (
    FedAdam,
    FedAvg,
    FedMedian,
    Strategy,
)

from flower_ldp.mechanisms import TrainingPlan
from flower_ldp.strategies import DPSGDStrategy, RunStopped
from flower_ldp.wire.training_plan import plan_fields
from tests.fixtures import error_reply, message, record
from tests.unit.strategies.rounds import FakeGrid, aggregated, ask, ask_evaluation

pytestmark = pytest.mark.usefixtures("outside_a_run")

MODEL = {"w": np.zeros((2, 3), dtype=np.float32), "steps": np.array(3, dtype=np.int64)}
HONEST = {**MODEL, "w": np.ones((2, 3), dtype=np.float32)}
NODES = 100


def reply(node: int, arrays: Any = HONEST, **metrics: Any) -> Message:
    found = arrays if isinstance(arrays, ArrayRecord) else record(arrays)
    metrics = metrics or {"num-examples": 7}
    content = RecordDict({"arrays": found, "metrics": MetricRecord(metrics)})
    return message(content, node=node, reply=True)


def asked(strategy: DPSGDStrategy, nodes: int = NODES) -> list[int]:
    return [one.metadata.dst_node_id for one in ask(strategy, MODEL, nodes=nodes)]


def array(data: bytes) -> ArrayRecord:
    odd = Array(dtype="float32", shape=(2, 3), stype="numpy.ndarray", data=data)
    return ArrayRecord({"w": odd, "steps": Array(MODEL["steps"])})


def saved(save: Callable[..., None], *what: Any, **named: Any) -> bytes:
    save(file := io.BytesIO(), *what, **named)
    return file.getvalue()


HUGE = saved(np.save, HONEST["w"]).replace(b"(2, 3), }            ", b"(2, 3000000000000), }")
BAD: dict[str, Any] = {
    "another shape": {**MODEL, "w": np.ones((3, 2), dtype=np.float32)},
    "another type": {**MODEL, "w": np.ones((2, 3))},
    "a NaN": {**MODEL, "w": np.full((2, 3), np.nan, dtype=np.float32)},
    "an infinity": {**MODEL, "w": np.full((2, 3), -np.inf, dtype=np.float32)},
    "another counter": {**HONEST, "steps": np.array(2**60)},
    "an array less": {"w": HONEST["w"]},
    "an array more": {**HONEST, "more": HONEST["w"]},
    "other names": {"v": HONEST["w"], "steps": MODEL["steps"]},
    "no bytes of an array": array(b"nothing"),
    "an archive": array(saved(np.savez, HONEST["w"])),
    "a pickle": array(saved(np.save, np.array([{}], dtype=object))),
    "bytes of many": array(saved(np.save, np.ones(10_000, dtype=np.float32))),
    "a size that is not there": array(HUGE),
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("inner", [FedAvg, FedAdam, FedMedian])
def test_a_reply_that_is_no_such_model_is_left_out(inner: type[Strategy], name: str) -> None:
    strategy = DPSGDStrategy(inner(fraction_evaluate=0.0))  # type: ignore[call-arg]
    nodes = asked(strategy, 3)
    replies = [reply(nodes[0], BAD[name]), reply(nodes[1]), reply(nodes[2])]
    after, metrics = aggregated(strategy, replies)
    assert (metrics["accepted"], metrics["rejected-model"]) == (2, 1)
    assert np.isfinite(after["w"]).all()
    if inner is not FedAdam:
        np.testing.assert_allclose(after["w"], HONEST["w"])


@pytest.mark.parametrize("number", [1e12, 2**62, float("nan"), float("inf"), -99.0, 0])
def test_what_a_client_says_of_its_number_weighs_nothing(number: float) -> None:
    strategy = DPSGDStrategy(FedAvg())
    nodes = asked(strategy)
    hostile = {**MODEL, "w": np.full((2, 3), 100.0, dtype=np.float32)}
    replies = [reply(nodes[0], hostile, **{"num-examples": number}), *map(reply, nodes[1:])]
    after, metrics = aggregated(strategy, replies)
    np.testing.assert_allclose(after["w"], 1.99, rtol=1e-5)
    assert metrics["accepted"] == NODES


def test_metrics_of_other_names_end_no_round() -> None:
    strategy = DPSGDStrategy(FedAvg())
    nodes = asked(strategy)
    no_metrics = message(RecordDict({"a": record(HONEST)}), node=nodes[1], reply=True)
    replies = [reply(nodes[0], **{"other": 5.0}), no_metrics, *map(reply, nodes[2:])]
    _, metrics = aggregated(strategy, replies)
    assert metrics["accepted"] == NODES


def test_the_servers_numbers_are_the_weights_and_others_are_not_asked() -> None:
    strategy = DPSGDStrategy(FedAvg(weighted_by_key="n"), {100: 3, 101: 1.0})
    assert sorted(asked(strategy)) == [100, 101]
    after, _ = aggregated(strategy, [reply(100), reply(101, MODEL), reply(102)])
    np.testing.assert_allclose(after["w"], 0.75)


def test_nobody_answers_twice_or_unasked() -> None:
    strategy = DPSGDStrategy(FedAvg())
    (node, *_) = asked(strategy, 2)
    _, metrics = aggregated(strategy, [reply(node), reply(node, MODEL), reply(999)])
    assert (metrics["accepted"], metrics["rejected-sender"]) == (1, 2)


@pytest.mark.parametrize(
    ("units", "score"), [({}, 0.5), ({"worst": 321.0, "best": 0.0}, 160.5)], ids=["share", "error"]
)
def test_a_share_that_noise_could_not_make_is_left_out(
    units: dict[str, float], score: float
) -> None:
    strategy = DPSGDStrategy(FedAvg(), **units)
    ask_evaluation(strategy, MODEL)
    shares: list[Any] = [0.5, 1e300, float("nan"), [0.5]]
    replies = []
    for node, share in enumerate(shares, start=100):
        metric = MetricRecord({"accuracy": share, "num-examples": 10**12})
        replies.append(message(RecordDict({"m": metric}), node=node, reply=True))
    metrics = strategy.aggregate_evaluate(1, replies)
    assert metrics is not None
    counts = {"accepted": 1, "rejected": 3, "rejected-metric": 3}
    assert dict(metrics) == {"noised-accuracy": score, **counts}


def test_a_run_that_all_clients_refuse_stops_with_the_sentence() -> None:
    strategy = DPSGDStrategy(FedAvg())
    nodes = asked(strategy, 3)
    with pytest.raises(RunStopped, match=r"ldp:refused:proposal 3 times: .*of one name"):
        strategy.aggregate_train(1, [error_reply("ldp:refused:proposal", node) for node in nodes])


def said(strategy: DPSGDStrategy, plan: TrainingPlan | None, nodes: int, caplog: Any) -> str:
    model: Any = MODEL
    fields: Any = {} if plan is None else plan_fields(plan)
    strategy.expect(1, record(model))
    caplog.clear()
    for server_round in (1, 2):
        grid: Any = FakeGrid(nodes)
        strategy.configure_train(server_round, record(model), ConfigRecord(fields), grid)
    told: str = caplog.text
    assert told.count("epsilon of the run") == 1
    return told


def test_epsilon_and_outlook_are_logged_once_before_the_first_round(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "flwr")
    plan = TrainingPlan(rounds=4, steps=5, rate=0.2, noise=40.0, epsilon=0.5, delta=1e-6)
    told = said(DPSGDStrategy(FedAvg(), examples=300), plan, 2, caplog)
    assert "epsilon of the run: epsilon 0.5, delta 1e-06 per example, for all rounds." in told
    assert told.count("outlook: uncertain: ") == 1
    assert "outlook: good: " in said(DPSGDStrategy(FedAvg(), examples=300), plan, 100, caplog)
    assert "outlook" not in said(DPSGDStrategy(FedAvg()), plan, 2, caplog)
    assert "by the plan in each site's policy" in said(DPSGDStrategy(FedAvg()), None, 2, caplog)
    with pytest.raises(ValueError, match="examples must be an integer"):
        DPSGDStrategy(FedAvg(), examples=0)
