"""An error of the configuration costs nobody its answer, and a used pool is told of as used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message
from flwr.serverapp.strategy import FedAvg

from flower_ldp.mechanisms import Codeword, Laplace, SignDS
from flower_ldp.privacy import Unit
from flower_ldp.strategies import (
    ClientPool,
    CodewordStrategy,
    FixedLength,
    FixedStep,
    ProtectedEvalStrategy,
    ProxyCodebook,
    SignDSStrategy,
)
from flower_ldp.strategies.forecast import rounds_left
from flower_ldp.strategies.training import TrainingStrategy
from tests.fixtures import record
from tests.unit.strategies import rounds
from tests.unit.strategies.rounds import ask_evaluation, proposed

pytestmark = pytest.mark.usefixtures("outside_a_run")

MODEL = {"w": np.zeros(200, dtype=np.float32), "head": np.zeros(50, dtype=np.float32)}
STEP = FixedLength(0.5, rounds=4)


def ask(strategy: Any, server_round: int = 1, nodes: int = 6) -> list[Message]:
    return rounds.ask(strategy, MODEL, server_round, nodes)


def codewords(pool: ClientPool | int | None, **rest: Any) -> CodewordStrategy:
    rest.setdefault("fraction_train", 1.0)
    return CodewordStrategy(Codeword(8.0), STEP, answers_per_client=pool, **rest)


@pytest.mark.parametrize("told", [False, True])
@pytest.mark.parametrize(
    "make",
    [
        lambda **given: CodewordStrategy(
            Codeword(8.0, blocks=100), STEP, trainable="head", **given
        ),
        lambda **given: SignDSStrategy(
            SignDS(8.0, 0.2, dim_out=60), FixedStep(0.1), trainable="head", **given
        ),
    ],
)
def test_what_could_make_no_step_uses_nobody_up(make: Any, told: bool, tmp_path: Path) -> None:
    path = tmp_path / "asked.json"
    pool = ClientPool(1, path)
    strategy: TrainingStrategy[Any] = make(answers_per_client=pool, fraction_train=1.0)
    if told:
        strategy.expect(1, record(MODEL))
    with pytest.raises(ValueError, match=r"blocks|dim_out|h "):
        ask(strategy)
    assert pool.left(range(100, 106)) == list(range(100, 106))
    assert not path.exists()


def test_an_evaluation_that_cannot_be_asked_for_uses_nobody_up(tmp_path: Path) -> None:
    path = tmp_path / "asked.json"

    def proxy(_: Any) -> np.ndarray:
        raise ValueError("no public inputs")

    strategy = ProtectedEvalStrategy(
        FedAvg(), ProxyCodebook(8.0, proxy), answers_per_client=ClientPool(1, path)
    )
    with pytest.raises(ValueError, match="no public inputs"):
        ask_evaluation(strategy, MODEL)
    assert not path.exists()


def test_a_model_without_anybody_left_to_ask_is_not_run() -> None:
    ran: list[object] = []
    pool = ClientPool(1)
    pool.choose(range(100, 106), 6)
    strategy = ProtectedEvalStrategy(
        FedAvg(),
        ProxyCodebook(8.0, ran.append),
        answers_per_client=pool,  # type: ignore[arg-type]
    )
    assert ask_evaluation(strategy, MODEL) == []
    assert ran == []


def test_a_round_is_told_how_many_take_part(monkeypatch: pytest.MonkeyPatch) -> None:
    shares: list[float] = []
    made = CodewordStrategy._next

    def note(self: CodewordStrategy, entries: int, participation: float) -> Any:
        shares.append(participation)
        return made(self, entries, participation)

    monkeypatch.setattr(CodewordStrategy, "_next", note)
    strategy = codewords(1, fraction_train=0.5)
    for server_round in (1, 2, 3):
        ask(strategy, server_round, nodes=10)
    assert shares == [0.5, 0.5]


def used(times: int, nodes: range, path: Path | None = None, answers: int = 2) -> ClientPool:
    pool = ClientPool(answers, path)
    for _ in range(times):
        pool.choose(nodes, len(nodes))
    return pool


def test_the_total_of_a_server_that_begins_again_is_that_of_both_runs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for total, times in ((8, "once"), (16, "2 times")):
        strategy = codewords(ClientPool(3, tmp_path / "asked.json"))
        strategy.expect(1, record(MODEL))
        sent = ask(strategy)
        caplog.clear()
        strategy.summary()
        assert f"at most epsilon {total} per client, asked {times}" in caplog.text
        assert ("in earlier runs included" in caplog.text) is (total == 16)
        _, metrics = strategy.aggregate_train(1, [])
        assert metrics is not None
        assert (metrics["epsilon-total"], metrics["epsilon-round"]) == (total, 8.0)
        spent = strategy.privacy_spent()
        assert spent.units[Unit.CLIENT].epsilon == total
        assert len(spent.clients) == len(sent) == 6


@pytest.mark.parametrize(
    ("rounds", "total"),
    [(30, "24 per client, asked 3 times"), (0, "8 per client, asked once")],
)
def test_a_total_is_what_was_asked_before_and_no_more_than_the_pools_number(
    rounds: int, total: str, caplog: pytest.LogCaptureFixture
) -> None:
    strategy = codewords(used(1, range(100, 106), answers=3))
    strategy.expect(rounds, record(MODEL))
    strategy.summary()
    assert f"at most epsilon {total}" in caplog.text


def test_the_outlook_is_that_of_the_clients_who_are_left(caplog: pytest.LogCaptureFixture) -> None:
    strategy = codewords(used(1, range(100, 290), answers=1), fraction_train=0.05)
    strategy.expect(20, record(MODEL))
    assert len(ask(strategy, nodes=200)) == 10
    (verdict,) = [one for one in caplog.messages if one.startswith("outlook")]
    assert "the steps of 1 rounds of 10 clients" in verdict
    assert not verdict.startswith("outlook: good")


@pytest.mark.parametrize(
    ("left", "each", "rounds", "found"),
    [
        ([1] * 10, 5, 9, 2),
        ([2] * 10, 5, 9, 4),
        ([2] * 10, 5, 3, 3),
        ([20] * 10, 10, 40, 20),
        ([20, 1, 1, 1], 2, 40, 3),  # nobody is asked twice in a round
        ([10**12] * 4, 4, 30, 30),
        ([1] * 3, 4, 30, 0),
    ],
)
def test_how_many_rounds_answers_are_enough_for(
    left: list[int], each: int, rounds: int, found: int
) -> None:
    assert rounds_left(left, each, rounds) == found


def test_training_and_evaluation_with_one_pool_count_it_once(tmp_path: Path) -> None:
    path = tmp_path / "asked.json"
    used(1, range(100, 106), path)
    pool = ClientPool(2, path)
    training = codewords(pool, fraction_train=0.5)
    both = ProtectedEvalStrategy(training, Laplace(2.0, classes=4), answers_per_client=pool)
    ask(both)
    assert len(ask_evaluation(both, MODEL)) == 6 - 3
    spent = both.privacy_spent().clients
    assert sorted(one[Unit.CLIENT].epsilon for one in spent.values()) == [10.0] * 3 + [16.0] * 3


def test_an_evaluation_with_a_pool_of_its_own_counts_that(tmp_path: Path) -> None:
    path = tmp_path / "asked.json"
    used(1, range(100, 106), path)
    both = ProtectedEvalStrategy(
        codewords(1), Laplace(2.0, classes=4), answers_per_client=ClientPool(2, path)
    )
    ask(both)
    assert ask_evaluation(both, MODEL)
    assert both.privacy_spent().units[Unit.CLIENT].epsilon == 8.0 + 2 * 2.0


def test_codes_and_clients_are_not_used_again_by_a_server_that_begins_again(
    tmp_path: Path,
) -> None:
    seeds: list[int] = []
    asked: list[int] = []
    for _ in range(3):
        strategy = codewords(ClientPool(1, tmp_path / "asked.json"), fraction_train=0.1)
        for server_round in (1, 2):
            sent = ask(strategy, server_round, nodes=30)
            seeds.append(proposed(sent[0]).mechanism.seed)
            asked += [one.metadata.dst_node_id for one in sent]
    assert seeds[:2] == [0, 1]
    assert len(set(seeds)) == 6
    assert len(set(asked)) == len(asked) == 18


def test_a_round_whose_clients_another_server_asked_meanwhile_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ClientPool, "choose", lambda *_, **__: [])
    both = ProtectedEvalStrategy(codewords(1), Laplace(2.0, classes=4), answers_per_client=1)
    assert ask(both) == []
    assert both.aggregate_train(1, []) == (None, None)
    assert ask_evaluation(both, MODEL) == []
    assert both.aggregate_evaluate(1, []) is None
