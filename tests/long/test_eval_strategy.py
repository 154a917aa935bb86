"""Protected evaluation around a strategy: training untouched, private rows scored."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.serverapp.strategy import FedAvg

from flower_ldp.clients import LaplaceEvalRelease, LdpMod, SignDSRelease
from flower_ldp.mechanisms import BoundedMean, Laplace, SignDS
from flower_ldp.privacy import PrivacySpent, Unit
from flower_ldp.strategies import FixedStep, LaplaceEvalStrategy, ProxyCodebook, SignDSStrategy
from flower_ldp.wire.proposal import PAYLOAD_KEY, PROPOSAL_KEY, REPORT_KEY
from tests.extras import extra
from tests.fixtures import context, error_reply, message, record

cluster = extra("sklearn.cluster")
metrics = extra("sklearn.metrics")

MODEL = {"w": np.zeros((30, 20), dtype=np.float32)}
TRAINING = SignDS(epsilon=20.0, k=0.2)
PRECISE = Laplace(100.0, classes=4, rows=2)
CLIENTS = 40
_numbers = itertools.count()
pytestmark = pytest.mark.usefixtures("simulation_policy")


def clustered_rows(count: int, seed: int) -> np.ndarray:
    """Return rows in four clusters, one per class, of different confidence."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 4, count)
    return np.array([rng.dirichlet(0.5 + 8.0 * np.eye(4)[label]) for label in labels])


ROWS = {node: clustered_rows(2, node) for node in range(100, 100 + CLIENTS)}
TRUE = np.concatenate(list(ROWS.values()))
#: Clients where a test is not about a score.
FEW = list(ROWS)[:8]


class LocalGrid:
    """Delivers messages to real gates in this process."""

    def __init__(self, nodes: Iterable[int] = ROWS) -> None:
        self.nodes = list(nodes)
        self.seen: list[Message] = []
        self._pushed: dict[str, Message] = {}

    def get_node_ids(self) -> list[int]:
        return self.nodes

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        self._pushed = {given.metadata.message_id: given for given in messages}
        self.seen += self._pushed.values()
        return list(self._pushed)

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        return [self.answer(self._pushed[name]) for name in message_ids]

    def answer(self, given: Message) -> Message:
        node = given.metadata.dst_node_id

        def app(asked: Message, _: Context) -> Message:
            if asked.metadata.message_type == "train":
                (sent,) = asked.content.array_records.values()
                rng = np.random.default_rng(node)
                moved = {
                    name: array.numpy() + rng.normal(size=600).reshape(30, 20).astype("f4")
                    for name, array in sent.items()
                }
                return Message(RecordDict({"arrays": record(moved)}), reply_to=asked)
            rows = ArrayRecord({"p": Array(ROWS[node])})
            metrics = MetricRecord({"loss": (node - 100) / CLIENTS, "count": 17})
            return Message(RecordDict({"p": rows, "metrics": metrics}), reply_to=asked)

        mod = LdpMod(train=SignDSRelease(), evaluate=LaplaceEvalRelease())
        return mod(given, context(), app)


@pytest.fixture(autouse=True)
def _messages_outside_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def make(self: FedAvg, content: RecordDict, nodes: list[int], kind: str) -> list[Message]:
        return [
            message(
                RecordDict(dict(content)), node=node, kind=kind, message_id=f"m-{next(_numbers)}"
            )
            for node in nodes
        ]

    monkeypatch.setattr(FedAvg, "_construct_messages", make)


def signds() -> SignDSStrategy:
    return SignDSStrategy(TRAINING, FixedStep(0.5))


def evaluated(
    strategy: LaplaceEvalStrategy, grid: LocalGrid | None = None, server_round: int = 1
) -> dict[str, Any]:
    grid = grid or LocalGrid()
    asked = strategy.configure_evaluate(server_round, record(MODEL), ConfigRecord(), grid)  # type: ignore[arg-type]
    found = strategy.aggregate_evaluate(server_round, grid.pull_messages(grid.push_messages(asked)))
    assert found is not None
    return dict(found)


# With training.


def test_training_and_evaluation_run_together_under_one_sum() -> None:
    strategy = LaplaceEvalStrategy(
        signds(), PRECISE, metrics={"loss": BoundedMean(50.0, 0.0, 1.0)}, every=2
    )
    nodes = list(ROWS)[:16]
    grid = LocalGrid(nodes)
    result = strategy.start(grid, record(MODEL), num_rounds=4)  # type: ignore[arg-type]
    moved = result.arrays["w"].numpy()
    assert moved.shape == (30, 20)
    assert np.abs(moved).max() > 0
    assert list(result.train_metrics_clientapp) == [1, 2, 3, 4]
    assert list(result.evaluate_metrics_clientapp) == [2, 4]
    last = dict(result.evaluate_metrics_clientapp[4])
    rows = np.concatenate([ROWS[node] for node in nodes])
    true = metrics.silhouette_score(rows, rows.argmax(axis=1))
    assert last["score"] == pytest.approx(true, rel=0.1)
    # four rounds of training, two evaluations of two rows and a loss
    assert last["epsilon-evaluation"] == 250.0
    assert last["epsilon-total"] == 4 * 20.0 + 2 * 250.0
    report = strategy.privacy_spent()
    assert report.units == {unit: PrivacySpent(unit, 580.0) for unit in Unit}
    assert len(report.clients) == len(nodes)


def test_training_is_the_wrapped_strategys() -> None:
    plain, wrapped = signds(), LaplaceEvalStrategy(signds(), PRECISE)
    payloads = []
    for strategy in (plain, wrapped):
        asked = list(strategy.configure_train(1, record(MODEL), ConfigRecord(), LocalGrid()))  # type: ignore[arg-type]
        fields = [dict(given.content.config_records[PROPOSAL_KEY]) for given in asked]
        assert all(field["mechanism"] == "signds" for field in fields)
        payloads.append((len(asked), fields[0]))
    assert payloads[0] == payloads[1]
    replies = [LocalGrid().answer(given) for given in asked]
    arrays, metrics = wrapped.aggregate_train(1, replies)
    again, _ = signds_after(replies)
    assert arrays is not None
    assert again is not None
    np.testing.assert_array_equal(arrays["w"].numpy(), again["w"].numpy())
    assert metrics is not None
    assert metrics["accepted"] == CLIENTS


def signds_after(replies: list[Message]) -> tuple[ArrayRecord | None, MetricRecord | None]:
    strategy = signds()
    strategy.configure_train(1, record(MODEL), ConfigRecord(), LocalGrid())  # type: ignore[arg-type]
    return strategy.aggregate_train(1, replies)


def test_a_strategy_without_a_private_cost_is_not_counted() -> None:
    strategy = LaplaceEvalStrategy(FedAvg(), PRECISE)
    assert strategy.privacy_spent().units == {}
    evaluated(strategy, LocalGrid(FEW))
    assert strategy.privacy_spent().units == {unit: PrivacySpent(unit, 200.0) for unit in Unit}


# Scores.


@pytest.mark.parametrize(
    ("name", "clustered"), [("SILHOUETTE_SCORE", False), ("CALINSKI_HARABASZ_SCORE", True)]
)
def test_scores_are_near_those_of_the_true_rows(name: str, clustered: bool) -> None:
    clusterer = cluster.KMeans(4, n_init=2, random_state=0) if clustered else None
    labels = TRUE.argmax(axis=1) if clusterer is None else clusterer.fit_predict(TRUE)
    strategy = LaplaceEvalStrategy(signds(), PRECISE, score=name, clusterer=clusterer)
    found = evaluated(strategy)
    assert found["score"] == pytest.approx(getattr(metrics, name.lower())(TRUE, labels), rel=0.4)
    assert found["score-rows"] == 2 * CLIENTS


def test_any_function_scores_rows_on_the_simplex() -> None:
    seen = []

    def score(rows: np.ndarray, labels: np.ndarray) -> float:
        seen.append((rows, labels))
        return 7.0

    strategy = LaplaceEvalStrategy(signds(), Laplace(1.0, 4, rows=2), score=score)
    assert evaluated(strategy, LocalGrid(FEW))["score"] == 7.0
    ((rows, labels),) = seen
    assert rows.shape == (2 * len(FEW), 4)
    np.testing.assert_allclose(rows.sum(axis=1), 1.0)
    assert rows.min() >= 0
    assert labels.tolist() == rows.argmax(axis=1).tolist()


def test_a_codebook_made_from_the_rounds_model_scores_the_clients() -> None:
    models = []

    def proxy(arrays: ArrayRecord) -> np.ndarray:
        models.append(arrays["w"].numpy())
        return clustered_rows(600, seed=1)

    mechanism = ProxyCodebook(epsilon=20.0, proxy=proxy, rows=2)
    found = evaluated(LaplaceEvalStrategy(signds(), mechanism))
    np.testing.assert_array_equal(models[0], MODEL["w"])
    true = metrics.silhouette_score(TRUE, TRUE.argmax(axis=1))
    assert found["score"] == pytest.approx(true, rel=0.4)
    assert found["score-recovery"] > 0.3
    assert found["score-error"] < 0.5
    assert found["epsilon-evaluation"] == 40.0


def test_a_codebook_score_that_echoes_the_proxy_is_flagged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    mechanism = ProxyCodebook(0.1, lambda arrays: clustered_rows(600, seed=1), rows=2)
    with caplog.at_level(logging.WARNING, logger="flower_ldp"):
        found = evaluated(LaplaceEvalStrategy(signds(), mechanism))
    assert not found.get("score-error", np.nan) <= 0.05
    assert "a larger epsilon" in caplog.text


def test_rows_of_one_label_have_no_score(caplog: pytest.LogCaptureFixture) -> None:
    class OneCluster:
        def get_params(self, deep: bool = True) -> dict[str, Any]:
            return {}

        def fit_predict(self, X: np.ndarray) -> np.ndarray:  # noqa: N803
            return np.zeros(len(X), dtype=np.int64)

    with caplog.at_level(logging.WARNING):
        strategy = LaplaceEvalStrategy(signds(), PRECISE, clusterer=OneCluster())
        found = evaluated(strategy, LocalGrid(FEW))
    assert "score" not in found
    assert found["accepted"] == len(FEW)
    assert "no score" in caplog.text


# Metrics.


def test_named_metrics_are_means_of_clients_and_others_do_not_arrive() -> None:
    loss = BoundedMean(8.0, 0.0, 1.0)
    strategy = LaplaceEvalStrategy(signds(), PRECISE, metrics={"loss": loss})
    nodes = list(ROWS)[::3]
    found = evaluated(strategy, LocalGrid(nodes))
    true = np.mean([(node - 100) / CLIENTS for node in nodes])
    assert found["loss-noise"] == pytest.approx(loss.standard_deviation / len(nodes) ** 0.5)
    assert abs(found["loss"] - true) < 6 * found["loss-noise"]
    assert "count" not in found


@pytest.mark.parametrize("name", ["score", "score-rows", "accepted", "epsilon-total"])
def test_metrics_cannot_take_the_names_in_use(name: str) -> None:
    with pytest.raises(ValueError, match="in use"):
        LaplaceEvalStrategy(signds(), PRECISE, metrics={name: BoundedMean(1.0, 0.0, 1.0)})


# Who is asked, and what is left out.


def test_no_more_clients_score_than_the_cap_and_all_get_their_turn() -> None:
    strategy = LaplaceEvalStrategy(signds(), PRECISE, cluster_client_num=5)
    asked = set()
    for server_round in range(1, 61):
        messages = list(
            strategy.configure_evaluate(server_round, record(MODEL), ConfigRecord(), LocalGrid())  # type: ignore[arg-type]
        )
        assert len({given.metadata.dst_node_id for given in messages}) == 5
        asked |= {given.metadata.dst_node_id for given in messages}
    # one of 40 is missed by 60 choices of 5 once in 76
    assert len(asked) >= CLIENTS - 3
    spent = strategy.privacy_spent().units[Unit.CLIENT].epsilon / 200.0
    assert 60 * 5 / CLIENTS < spent < 60


def test_bad_replies_are_counted_and_left_out() -> None:
    strategy = LaplaceEvalStrategy(signds(), PRECISE)
    grid = LocalGrid()
    asked = list(strategy.configure_evaluate(1, record(MODEL), ConfigRecord(), grid))  # type: ignore[arg-type]
    good = [grid.answer(given) for given in asked[:10]]
    answered = {given.metadata.dst_node_id for given in asked[:10]}
    bad, other = [given.metadata.dst_node_id for given in asked[10:12]]
    short = message(
        RecordDict({REPORT_KEY: ConfigRecord({PAYLOAD_KEY: b"\1\1"})}), node=bad, reply=True
    )
    repeated = message(good[0].content, node=min(answered), reply=True)
    replies = [*good_from(good, asked), short, repeated, error_reply("ldp:refused:budget", other)]
    found = strategy.aggregate_evaluate(1, replies)
    assert found is not None
    assert found["accepted"] == 10
    assert found["rejected"] == 3
    assert found["rejected-length"] == 1
    assert found["rejected-sender"] == 1
    assert found["rejected-ldp:refused:budget"] == 1
    assert found["score-rows"] == 20


def good_from(replies: list[Message], asked: list[Message]) -> list[Message]:
    pairs = zip(replies, asked, strict=False)
    return [
        message(reply.content, node=given.metadata.dst_node_id, reply=True)
        for reply, given in pairs
    ]


def test_without_a_usable_reply_there_is_no_score() -> None:
    strategy = LaplaceEvalStrategy(signds(), PRECISE)
    strategy.configure_evaluate(1, record(MODEL), ConfigRecord(), LocalGrid())  # type: ignore[arg-type]
    found = strategy.aggregate_evaluate(1, [error_reply("ldp:failed", 100)])
    assert found is not None
    assert "score" not in found
    assert found["rejected-ldp:failed"] == 1
    assert found["epsilon-total"] == 200.0  # asked for is spent


def test_rounds_between_evaluations_ask_nobody() -> None:
    strategy = LaplaceEvalStrategy(signds(), PRECISE, every=3)
    for server_round in (1, 2):
        asked = strategy.configure_evaluate(
            server_round,
            record(MODEL),
            ConfigRecord(),
            LocalGrid(),  # type: ignore[arg-type]
        )
        assert list(asked) == []
        assert strategy.aggregate_evaluate(server_round, []) is None
    assert evaluated(strategy, LocalGrid(FEW), server_round=3)["accepted"] == len(FEW)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cluster_client_num": 0}, "cluster_client_num must be an integer in"),
        ({"every": 0}, "every must be an integer in"),
        ({"score": "silhouette"}, "score must be"),
    ],
)
def test_options_outside_their_intervals_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LaplaceEvalStrategy(signds(), PRECISE, **options)


def test_the_summary_states_the_cost(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="flwr"):
        LaplaceEvalStrategy(signds(), PRECISE, every=2).summary()
    assert "epsilon 200 per client, every 2 rounds" in caplog.text
    assert "SignDS" in caplog.text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epsilon": 0.0}, "epsilon must be in"),
        ({"rows": 0}, "rows must be"),
        ({"levels": 0}, "levels must be an integer in"),
        ({"trust_repeats": 1}, "trust_repeats must be"),
    ],
)
def test_codebook_options_outside_their_intervals_are_refused(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        ProxyCodebook(**{"epsilon": 4.0, "proxy": lambda arrays: np.eye(4), **options})
