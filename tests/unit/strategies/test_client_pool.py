"""Each client is asked so many times in a whole run, whatever becomes of nodes and servers."""

from __future__ import annotations

import json
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flower_ldp.accounting import Ledger
from flower_ldp.clients import CodewordRelease, SignDSRelease
from flower_ldp.errors import ConfigError
from flower_ldp.mechanisms import Codeword, Laplace, SignDS
from flower_ldp.policy import load_policy
from flower_ldp.privacy import Unit
from flower_ldp.strategies import (
    ClientPool,
    CodewordStrategy,
    FixedStep,
    ProtectedEvalStrategy,
    SignDSStrategy,
)
from flower_ldp.strategies.sampling import MOST_ANSWERS
from tests.unit.strategies.rounds import run


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "asked.json"


@pytest.mark.parametrize("times", [1, 2, 3])
def test_each_is_asked_so_many_times(times: int) -> None:
    pool, asked = ClientPool(times), Counter[int]()
    while chosen := pool.choose(range(10), 4):
        assert len(set(chosen)) == len(chosen) <= 4
        asked.update(chosen)
    assert asked == Counter(dict.fromkeys(range(10), times))
    assert pool.left(range(10)) == []
    assert pool.left([11, 3]) == [11]


def test_those_who_were_asked_less_come_first() -> None:
    pool = ClientPool(2)
    first = pool.choose(range(6), 4)
    second = pool.choose(range(6), 4)
    assert set(range(6)) - set(first) < set(second)


def test_the_choice_is_uniform() -> None:
    seen = Counter(tuple(sorted(ClientPool().choose(range(4), 2))) for _ in range(1_500))
    # Six pairs, each with mean 250 and deviation 14.4; five deviations.
    assert len(seen) == 6
    assert all(abs(count - 250) < 72 for count in seen.values())


def test_nodes_that_come_late_are_asked_and_those_that_left_are_not_missed() -> None:
    pool = ClientPool()
    assert sorted(pool.choose([1, 2], 5)) == [1, 2]
    assert sorted(pool.choose([2, 3, 4], 5)) == [3, 4]
    assert pool.choose([1, 2, 3, 4], 5) == []


def test_a_file_remembers_who_was_asked(path: Path) -> None:
    first = ClientPool(1, path).choose(range(5), 3)
    assert set(json.loads(path.read_text())["asked"]) == {str(node) for node in first}
    again = ClientPool(1, path)
    assert set(again.choose(range(5), 5)) == set(range(5)) - set(first)
    assert ClientPool(1, path).left(range(5)) == []


def test_two_pools_on_one_file_ask_nobody_twice(path: Path) -> None:
    """As two servers do that overlap at a restart: neither was told of the other."""
    one, other = ClientPool(1, path), ClientPool(1, path)
    first = one.choose(range(5, 9), 2)
    second = other.choose(range(5, 9), 4)
    assert sorted(first + second) == [5, 6, 7, 8]
    assert one.choose(range(5, 9), 4) == []
    assert ClientPool(1, path).left(range(5, 9)) == []


def test_two_pools_that_choose_at_the_same_time_ask_nobody_twice(path: Path) -> None:
    pools = [ClientPool(1, path) for _ in range(4)]

    def some(pool: ClientPool) -> list[int]:
        return [node for _ in range(5) for node in pool.choose(range(20), 1)]

    with ThreadPoolExecutor(len(pools)) as threads:
        found = [node for chosen in threads.map(some, pools) for node in chosen]
    assert sorted(found) == list(range(20))


def test_a_round_too_small_by_then_asks_nobody(path: Path) -> None:
    one, other = ClientPool(1, path), ClientPool(1, path)
    one.choose(range(4), 3)
    assert other.choose(range(4), 4, least=2) == []
    assert len(other.choose(range(4), 4, least=1)) == 1


def test_who_could_not_be_written_down_may_be_asked_later(tmp_path: Path) -> None:
    folder = tmp_path / "later"
    pool = ClientPool(1, folder / "asked.json")
    with pytest.raises(OSError, match="later"):
        pool.choose(range(5), 3)
    folder.mkdir()
    assert sorted(pool.choose(range(5), 5)) == list(range(5))


def test_what_this_server_knows_outlives_its_file(path: Path) -> None:
    pool = ClientPool(1, path)
    first = pool.choose(range(5), 3)
    path.unlink()
    assert set(pool.choose(range(5), 5)) == set(range(5)) - set(first)
    assert ClientPool(1, path).left(range(5)) == []


def test_a_link_is_followed_and_stays(tmp_path: Path) -> None:
    real, link = tmp_path / "store" / "asked.json", tmp_path / "link.json"
    real.parent.mkdir()
    ClientPool(1, real).choose([1], 1)
    link.symlink_to(real)
    ClientPool(1, link).choose([2], 1)
    assert link.is_symlink()
    assert ClientPool(1, real).left([1, 2, 3]) == [3]


def test_a_link_to_nothing_is_refused(tmp_path: Path) -> None:
    """A store that is not mounted is no new run."""
    link = tmp_path / "link.json"
    link.symlink_to(tmp_path / "store.json")
    with pytest.raises(ConfigError, match=r"link\.json.*leads to nothing"):
        ClientPool(1, link)


def test_many_answers_take_no_time() -> None:
    began, pool = time.process_time(), ClientPool(MOST_ANSWERS)
    assert len(pool.choose(range(50), 20)) == 20
    assert len(set(pool.choose(range(50), 40))) == 40
    assert time.process_time() - began < 1.0


def test_a_node_that_is_named_twice_is_one() -> None:
    assert ClientPool(1).choose([5, 5, 5], 3) == [5]


def test_who_refused_before_the_charge_is_asked_again_after_all_others(path: Path) -> None:
    pool = ClientPool(1, path)
    first = pool.choose(range(9), 3)
    pool.put_back(first[:2])
    assert json.loads(path.read_text())["asked"] == {str(first[2]): 1}
    assert set(pool.choose(range(9), 6)) == set(range(9)) - set(first)
    assert set(pool.choose(range(9), 6)) == set(first[:2])
    assert ClientPool(1, path).left(range(9)) == []


def test_a_client_that_always_refuses_takes_no_place_of_another() -> None:
    pool, asked = ClientPool(2), Counter[int]()
    for _ in range(8):
        chosen = pool.choose(range(6), 2)
        asked.update(chosen)
        pool.put_back({0} & set(chosen))
    assert [asked[node] for node in range(1, 6)] == [2] * 5
    assert pool.left(range(6)) == [0]


def of(asked: str, kind: str = "flower-ldp clients asked, 1", answers: object = 1) -> str:
    return f'{{"kind": "{kind}", "answers-per-client": {json.dumps(answers)}, "asked": {asked}}}'


ASKED = ["[5]", '{"a": 1}', '{"5": 0.9}', '{"5": 1e999}', '{"5": true}', '{"5": null}']
ASKED += ['{"5": -1}', '{"5": 2}', '{"5": 1, "05": 0}', '{" 5": 1}', '{"1_0": 1}']
ASKED += ['{"5": 1, "5": 0}', f'{{"{"9" * 5_000}": 1}}']
OTHERS = ["", "[]", "{}", "[" * 100_000, of("{}", kind="other")]
OTHERS += [of("{}", answers=2), of("{}", answers=True), *map(of, ASKED)]


def test_what_is_written_down_can_be_read(path: Path) -> None:
    path.write_text(of('{"5": 1}'))
    assert ClientPool(1, path).asked() == {5: 1}


@pytest.mark.parametrize("text", OTHERS)
def test_a_file_of_something_else_is_refused(path: Path, text: str) -> None:
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"asked\.json"):
        ClientPool(1, path)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is no file"):
        ClientPool(1, tmp_path)


MODEL, TRAINED = {"w": np.zeros(400, np.float32)}, {"w": np.ones(400, np.float32)}


def signds(pool: ClientPool | int, share: float) -> SignDSStrategy:
    mechanism, step = SignDS(4.0, 0.2), FixedStep(0.1)
    return SignDSStrategy(mechanism, step, fraction_train=share, answers_per_client=pool)


def paid(policy: Path) -> list[float]:
    """Return what the answers of each client cost it."""
    with Ledger.open(load_policy(policy).ledger, read_only=True) as ledger:
        totals = [ledger.totals(account)[Unit.CLIENT] for account in ledger.data_ids()]
    return [one.spent(Unit.CLIENT).epsilon for one in totals]


@pytest.mark.parametrize(("times", "rounds", "answers"), [(1, 3, 9), (2, 7, 20)])
def test_a_run_costs_each_client_so_many_reports(
    times: int, rounds: int, answers: int, simulation_policy: Path
) -> None:
    """And rounds in which nobody is left change nothing."""
    strategy = signds(times, share=0.3)
    options = {"num_rounds": rounds + 1, "nodes": 10}
    metrics = run(strategy, SignDSRelease(), MODEL, TRAINED, **options).train_metrics_clientapp
    # Three of ten a round: in the last round of all, whoever is left, if two at least.
    assert sorted(metrics) == list(range(1, rounds + 1))
    assert sum(one["accepted"] for one in metrics.values()) == answers
    assert max(one["epsilon-total"] for one in metrics.values()) == 4.0 * times
    assert strategy.privacy_spent().units[Unit.CLIENT].epsilon == 4.0 * times
    costs = paid(simulation_policy)
    assert (max(costs), sum(costs)) == (4.0 * times, 4.0 * answers)


def test_training_and_evaluation_share_one_pool(simulation_policy: Path) -> None:
    pool, rows = ClientPool(), Laplace(2.0, classes=4, rows=3)
    options: dict[str, Any] = {"cluster_client_num": 2, "answers_per_client": pool}
    both = ProtectedEvalStrategy(signds(pool, share=0.2), rows, **options)
    run(both, SignDSRelease(), MODEL, TRAINED, num_rounds=4, nodes=10)
    costs = paid(simulation_policy)
    assert (len(costs), set(costs)) == (10, {4.0, 6.0})
    assert both.privacy_spent().units[Unit.CLIENT].epsilon == 6.0


@pytest.mark.parametrize(
    ("nodes", "rounds", "sizes"),
    [
        (50, 8, [6] * 6 + [7] * 2),
        (9, 1, [9]),
        (16, 16, [2] * 8),
        (7, 2, [3, 4]),
    ],
)
def test_each_client_is_asked_once_spread_over_the_rounds(
    nodes: int, rounds: int, sizes: list[int], simulation_policy: Path
) -> None:
    """Nothing but the mechanism is given; no round has fewer than two clients."""
    strategy = CodewordStrategy(Codeword(4.0))
    options = {"num_rounds": rounds, "nodes": nodes}
    metrics = run(strategy, CodewordRelease(), MODEL, TRAINED, **options).train_metrics_clientapp
    assert [one["accepted"] for one in metrics.values()] == sizes
    assert paid(simulation_policy) == [4.0] * nodes


def test_too_few_clients_for_the_rounds_are_told_with_what_to_change(
    simulation_policy: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options = {"num_rounds": 40, "nodes": 10}
    run(CodewordStrategy(Codeword(4.0)), CodewordRelease(), MODEL, TRAINED, **options)
    (said,) = (one for one in caplog.messages if one.startswith("the answers of"))
    assert said.startswith("the answers of 10 clients are enough for 5 of 40 rounds of 2 clients")
    assert "Take num_rounds=5, more clients, or" in said
    (verdict,) = (one for one in caplog.messages if one.startswith("outlook: "))
    assert "the route is DP-SGD per person" in verdict
    assert "the steps of 5 rounds of 2 clients" in verdict
