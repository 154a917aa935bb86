"""Plain mistakes end in plain words: what is wrong, what to write, and no run in vain."""

from __future__ import annotations

import itertools
import logging
import warnings
from collections.abc import Iterable
from typing import Any, cast

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Strategy

from flower_ldp.clients import GaussianRelease, LaplaceEvalRelease, LdpMod, SignDSRelease
from flower_ldp.errors import RefusalError
from flower_ldp.mechanisms import (
    Gaussian,
    Laplace,
    MagRR,
    SignDS,
    SmallTopSetWarning,
)
from flower_ldp.strategies import (
    FixedStep,
    GaussianStrategy,
    LaplaceEvalStrategy,
    RunStopped,
    SignDSStrategy,
)
from tests.fixtures import Arrays, context, error_reply, message, record

pytestmark = pytest.mark.usefixtures("simulation_policy")

MODEL = {"w": np.zeros((30, 20), dtype=np.float32)}
LAPLACE = Laplace(1.0, classes=3, rows=2)
ROWS = np.tile(np.eye(3)[:1], (2, 1))
_numbers = itertools.count()


@pytest.fixture(autouse=True)
def _messages_outside_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def make(self: FedAvg, content: RecordDict, nodes: list[int], kind: str) -> list[Message]:
        return [
            message(
                RecordDict(dict(content)), node=node, kind=kind, message_id=f"p-{next(_numbers)}"
            )
            for node in nodes
        ]

    monkeypatch.setattr(FedAvg, "_construct_messages", make)
    logging.getLogger("flwr").propagate = True


def app(asked: Message, _: Context) -> Message:
    """An ordinary app, with metrics."""
    if asked.metadata.message_type == "evaluate":
        content = {"p": ArrayRecord({"p": Array(ROWS)}), "m": MetricRecord({"accuracy": 0.9})}
        return Message(RecordDict(cast(Any, content)), reply_to=asked)
    (sent,) = asked.content.array_records.values()
    moved = {
        name: array.numpy() + np.linspace(-1, 1, array.numpy().size, dtype="f4").reshape(
            array.numpy().shape
        )
        for name, array in sent.items()
    }  # fmt: skip
    metrics = MetricRecord({"num-examples": 3, "loss": 0.1})
    return Message(RecordDict({"arrays": record(moved), "m": metrics}), reply_to=asked)


def refusing(reason: str) -> Any:
    def mod(asked: Message, *_: Any) -> Message:
        return error_reply(reason, asked.metadata.dst_node_id)

    return mod


def no_gate(asked: Message, own: Context, call_next: Any) -> Message:
    reply: Message = call_next(asked, own)
    return reply


class LocalGrid:
    """Delivers messages to clients in this process, some of which have another mod."""

    def __init__(self, mod: Any, nodes: int = 4, others: Any = None, different: int = 0) -> None:
        self.nodes = list(range(100, 100 + nodes))
        self.asked: list[tuple[int, str]] = []
        self._mod, self._others = mod, others
        self._different = set(self.nodes[:different])
        self._pushed: dict[str, Message] = {}

    def get_node_ids(self) -> list[int]:
        return self.nodes

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        self._pushed = {given.metadata.message_id: given for given in messages}
        return list(self._pushed)

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        return [self._answer(self._pushed[name]) for name in message_ids]

    def _answer(self, given: Message) -> Message:
        node = given.metadata.dst_node_id
        self.asked.append((node, given.metadata.message_type))
        own = context()
        own.node_config["partition-id"] = node
        mod = self._others if node in self._different else self._mod
        reply: Message = mod(given, own, app)
        reply.metadata.__dict__["_reply_to_message_id"] = given.metadata.message_id
        return reply


def gate() -> LdpMod:
    """Return a new gate: one keeps to the first policy that it was named."""
    return LdpMod(train=SignDSRelease(), evaluate=LaplaceEvalRelease())


def signds() -> SignDSStrategy:
    return SignDSStrategy(SignDS(8.0, 0.2), FixedStep(0.5))


def strategies() -> dict[str, Strategy]:
    return {
        "signds": signds(),
        "gaussian": GaussianStrategy(Gaussian(8.0, 1e-5)),
        "around signds": LaplaceEvalStrategy(signds(), LAPLACE),
        "around FedAvg": LaplaceEvalStrategy(FedAvg(fraction_train=0.0), LAPLACE),
    }


def start(strategy: Any, grid: LocalGrid, rounds: int = 2) -> Any:
    return strategy.start(cast(Grid, grid), record(MODEL), num_rounds=rounds, timeout=60)


# LdpMod forgotten.


@pytest.mark.parametrize("name", strategies())
def test_clients_without_a_gate_end_the_run_at_once_and_no_epsilon_is_counted(name: str) -> None:
    strategy: Any = strategies()[name]
    grid = LocalGrid(no_gate)
    with pytest.raises(RunStopped, match=r"round 1: 4 clients .* has no LdpMod: write ClientApp"):
        start(strategy, grid)
    assert len(grid.asked) == 4
    spent = strategy.privacy_spent()
    assert spent.units == {}
    assert spent.raw == (100, 101, 102, 103)
    assert str(spent).startswith("NOT PRIVATE: 4 clients sent raw replies")
    assert "epsilon 8" not in str(spent)


def test_a_client_without_a_gate_is_named_left_out_and_asked_no_more(
    caplog: pytest.LogCaptureFixture,
) -> None:
    strategy = signds()
    grid = LocalGrid(gate(), nodes=4, others=no_gate, different=1)
    with caplog.at_level(logging.WARNING):
        result = start(strategy, grid, rounds=3)
    assert "replies rejected in this run: record 1 times" in caplog.text
    assert [metrics["accepted"] for metrics in result.train_metrics_clientapp.values()] == [3] * 3
    assert [node for node, _ in grid.asked].count(100) == 1
    assert "clients 100 has no LdpMod" in caplog.text
    spent = strategy.privacy_spent()
    assert spent.raw == (100,)
    assert spent.clients[100] == {}
    assert "NOT PRIVATE: 1 clients" in str(spent)


def test_a_client_without_a_gate_does_not_end_a_round_that_the_others_refuse() -> None:
    grid = LocalGrid(refusing("ldp:refused:budget"), nodes=4, others=no_gate, different=1)
    with pytest.raises(RunStopped, match=r"round 1: no report came.*ldp:refused:budget 3 times"):
        start(signds(), grid)


def test_what_a_mod_outside_the_gate_adds_is_told_apart(caplog: pytest.LogCaptureFixture) -> None:
    guarded = gate()

    def adding(asked: Message, own: Context, call_next: Any) -> Message:
        reply = guarded(asked, own, call_next)
        reply.content["more"] = MetricRecord({"loss": 0.1})
        return reply

    with (
        caplog.at_level(logging.WARNING, logger="flower_ldp"),
        pytest.raises(RunStopped, match=r"record 8 times"),
    ):
        start(signds(), LocalGrid(adding))
    assert "LdpMod must be the first of the app's mods" in caplog.text


# Runs in which every round is refused.


@pytest.mark.parametrize(
    ("reason", "hint"),
    [
        ("ldp:refused:policy", "FLOWER_LDP_POLICY"),
        ("ldp:refused:budget", "ledger show"),
        ("ldp:refused:message", "has no release"),
        ("ldp:refused:proposal", "release is not the strategy's"),
        ("ldp:failed", "logs hold the error"),
        ("anything else", "error 8 times"),
    ],
)
@pytest.mark.parametrize("name", strategies())
def test_a_run_in_which_nothing_was_of_use_ends_with_an_error(
    name: str, reason: str, hint: str
) -> None:
    with pytest.raises(RunStopped, match=hint):
        start(strategies()[name], LocalGrid(refusing(reason)))


def test_a_run_that_trained_and_could_not_evaluate_keeps_its_model(
    caplog: pytest.LogCaptureFixture,
) -> None:
    strategy = LaplaceEvalStrategy(signds(), LAPLACE)
    with caplog.at_level(logging.ERROR, logger="flwr"):
        result = start(strategy, LocalGrid(LdpMod(train=SignDSRelease())))
    assert len(result.arrays) == 1
    assert "no evaluation had a usable report" in caplog.text
    assert "ldp:refused:message 8 times" in caplog.text


def test_a_run_of_no_rounds_or_of_one_good_round_is_none_in_vain() -> None:
    assert not start(signds(), LocalGrid(gate()), rounds=0).arrays
    private = LdpMod(train=GaussianRelease())
    assert start(GaussianStrategy(Gaussian(8.0, 1e-5)), LocalGrid(private), rounds=1).arrays


@pytest.mark.parametrize("name", strategies())
@pytest.mark.parametrize("reason", ["ldp:refused:policy", "ldp:refused:proposal", "ldp:failed"])
def test_a_run_that_all_refuse_stops_in_its_first_round(name: str, reason: str) -> None:
    grid = LocalGrid(refusing(reason))
    with pytest.raises(RunStopped, match="round 1: no report came"):
        start(strategies()[name], grid, rounds=5)
    assert len(grid.asked) == 4


def test_evaluation_around_a_strategy_of_another_package_still_runs() -> None:
    found = start(strategies()["around FedAvg"], LocalGrid(gate()), rounds=1)
    assert found.evaluate_metrics_clientapp[1]["accepted"] == 4


# Said once.


def test_refusals_are_logged_once_per_run_on_the_server(caplog: pytest.LogCaptureFixture) -> None:
    refuses = refusing("ldp:refused:policy")
    with caplog.at_level(logging.WARNING):
        start(signds(), LocalGrid(gate(), nodes=20, others=refuses, different=7), rounds=5)
    warned = [entry.getMessage() for entry in caplog.records if entry.levelno >= logging.WARNING]
    (left_out,) = [text for text in warned if "left out" in text]
    assert left_out.count("ldp:refused:policy") == 1


def test_refusals_are_logged_once_per_run_on_a_client(caplog: pytest.LogCaptureFixture) -> None:
    class Refusing:
        def authorize(self, *_: object) -> Any:
            raise RefusalError("ldp:refused:budget", "spent")

        def acknowledge(self, *_: object) -> None:
            """Nothing."""

    grid = LocalGrid(LdpMod(train=SignDSRelease(), authorizer=Refusing()), nodes=10)
    strategy = signds()
    with caplog.at_level(logging.INFO, logger="flower_ldp"):
        sent = list(strategy.configure_train(1, record(MODEL), ConfigRecord(), cast(Grid, grid)))
        for one in sent:
            one.metadata.__dict__["_run_id"] = 424_242
        grid.pull_messages(grid.push_messages(sent))
    said = [entry.levelno for entry in caplog.records if "refused: ldp" in entry.getMessage()]
    assert said == [logging.WARNING, *[logging.INFO] * 9]


@pytest.mark.filterwarnings("default::flower_ldp.mechanisms.SmallTopSetWarning")
@pytest.mark.parametrize(
    ("k", "weights", "advice"),
    [
        (0.01, 600, "raise k to 0.0834 at least, or leave it out"),
        (0.25, 150, "no k does better for so few weights"),
        (None, 150, "k was chosen by what a report is worth"),
    ],
)
def test_a_small_top_set_is_warned_of_once_with_advice_that_can_be_followed(
    k: float | None, weights: int, advice: str
) -> None:
    small: Arrays = {"w": np.zeros(weights, dtype=np.float32)}
    strategy = SignDSStrategy(SignDS(8.0, k), FixedStep(0.5))
    grid = LocalGrid(gate())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        strategy.start(cast(Grid, grid), record(small), num_rounds=3, timeout=60)
    told = [str(one.message) for one in caught if one.category is SmallTopSetWarning]
    assert len(told) == 1
    assert advice in told[0]


def test_the_advised_k_is_enough() -> None:
    for weights in (200, 201, 333, 600, 4_999, 61_706):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            SignDS(8.0, 1e-4).plan(weights)
        (told,) = (str(one.message) for one in caught)
        advised = float(told.partition("raise k to ")[2].split()[0])
        assert SignDS(8.0, advised).plan(weights).top_size >= 50


# The wrong thing in the right place.


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: LdpMod(train=cast(Any, SignDSRelease)), "write train=SignDSRelease()"),
        (lambda: LdpMod(evaluate=cast(Any, SignDS(8.0))), "as SignDSRelease() or"),
        (
            lambda: LdpMod(actions={"train.x": cast(Any, GaussianRelease)}),
            "write train.x=GaussianRelease()",
        ),
        (lambda: SignDSStrategy(cast(Any, 8.0), FixedStep(0.1)), "as SignDS(epsilon=8.0), got 8.0"),
        (lambda: SignDSStrategy(cast(Any, SignDS), FixedStep(0.1)), "got the class SignDS"),
        (lambda: SignDSStrategy(SignDS(8.0), cast(Any, 0.1)), "or FixedStep(0.1), got 0.1"),
        (lambda: SignDSStrategy(SignDS(8.0), cast(Any, MagRR(1.0))), "LearnedStep(MagRR(epsilon"),
        (
            lambda: SignDSStrategy(SignDS(8.0), FixedStep(0.1), health=cast(Any, 0.5)),
            "as Health(epsilon=0.5), got 0.5",
        ),
        (lambda: GaussianStrategy(cast(Any, 8.0)), "as Gaussian(epsilon=8.0"),
        (lambda: LaplaceEvalStrategy(cast(Any, LAPLACE), LAPLACE), "as SignDSStrategy(...)"),
        (lambda: LaplaceEvalStrategy(signds(), cast(Any, 4.0)), "as Laplace(4.0, classes=10)"),
        (
            lambda: LaplaceEvalStrategy(signds(), LAPLACE, metrics={"loss": cast(Any, 1.0)}),
            "as BoundedMean(1.0, 0.0, 1.0), got 1.0",
        ),
    ],
)
def test_the_wrong_type_is_refused_with_what_to_write(make: Any, text: str) -> None:
    with pytest.raises(TypeError) as caught:
        make()
    assert text in str(caught.value)
