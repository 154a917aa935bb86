"""Steps as long as rounds agree: from the model's size, up and down by directions alone."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from flower_ldp.mechanisms import Codeword, Gaussian, MagRR, RandomSource, SignDS
from flower_ldp.strategies import (
    AgreedLength,
    ClientPool,
    CodewordStrategy,
    FixedLength,
    GaussianStrategy,
    LearnedStep,
    SignDSStrategy,
)
from flower_ldp.strategies.training import TrainingStrategy
from tests.fixtures import record
from tests.unit.strategies.rounds import FakeGrid, aggregated, answer, ask

DIMENSION = 200
#: Of 40 rounds' first step, over the norm.
FIRST = 4.0 / (40 - 0.7 * 39 / 2)
AHEAD = np.eye(1, DIMENSION, dtype=np.float32)[0]
#: Of length 1, as if trained before.
TRAINED = [np.full(DIMENSION, DIMENSION**-0.5)]
FRESH = {"w": np.zeros((10, 20), dtype=np.float32)}
outside_a_run = pytest.mark.usefixtures("outside_a_run")


def length(step: NDArray[np.floating[Any]]) -> float:
    return float(np.linalg.norm(step.astype(float)))


def lengths(
    proposals: Iterable[NDArray[np.float32]],
    signal: float,
    weights: list[NDArray[Any]] = TRAINED,
    rounds: int = 40,
    momentum: float = 0.9,
) -> list[float]:
    """Return the lengths of a run's steps, of 10 reports a round with that signal."""
    rule = AgreedLength(momentum)
    rule.on_run_start(rounds, weights)
    found = []
    for number, proposed in enumerate(proposals, start=1):
        rule.on_signal(signal, 10)
        found.append(length(rule.step(proposed, number)))
    return found


def noise(rounds: int, seed: int = 1) -> list[NDArray[np.float32]]:
    rng = np.random.default_rng(seed)
    return [rng.normal(size=DIMENSION).astype(np.float32) for _ in range(rounds)]


def plain(rounds: int, first: float) -> NDArray[np.float64]:
    """Return the lengths of a run that changes none."""
    return first * (1.0 - 0.7 * np.arange(rounds) / rounds)


def test_all_steps_together_are_four_times_the_norm_if_none_is_changed() -> None:
    """Rounds that agree neither within nor between say nothing of the length."""
    across = [np.roll(AHEAD, number) for number in range(40)]
    found = lengths(across, signal=0.0)
    np.testing.assert_allclose(found, plain(40, FIRST), rtol=1e-6)
    assert sum(found) == pytest.approx(4.0)


@pytest.mark.parametrize("rounds", [1, 3, 10])
def test_no_first_step_is_longer_than_half_the_norm(rounds: int) -> None:
    assert lengths([AHEAD], signal=1.0, rounds=rounds) == [pytest.approx(0.5)]


@pytest.mark.parametrize(
    ("weights", "norm"),
    [
        ([np.zeros((10, 64))], 3.0 * math.sqrt(10 / 3)),
        ([np.zeros((64, 10), dtype=np.float16)], 3.0 * math.sqrt(10 / 3)),
        ([np.zeros((10, 64)), np.zeros(10)], 3.0 * math.sqrt(11 / 3)),
        ([np.zeros(())], 3.0 * math.sqrt(1 / 3)),
        ([np.full((2, 2), 3.0), np.zeros((0, 5))], 6.0),
        ([np.full((2, 2), 3.0), np.zeros((10, 30))], math.sqrt(36 + 3.0**2 * 10 / 3)),
        ([np.full(4, np.inf)], 3.0 * math.sqrt(1 / 3)),
        ([np.full((10, 64), 1e-6)], 3.0 * math.sqrt(10 / 3)),
        ([np.full((10, 64), 0.01)], 0.01 * math.sqrt(640)),
    ],
)
def test_zeros_count_as_they_would_usually_start(weights: list[NDArray[Any]], norm: float) -> None:
    (first,) = lengths([AHEAD], signal=1.0, weights=weights)
    assert first == pytest.approx(norm * FIRST)


def test_steps_grow_while_rounds_want_the_same() -> None:
    found = lengths([AHEAD] * 7, signal=100.0) / plain(40, FIRST)[:7]
    assert (np.diff(found) > 0).all()
    assert found[-1] > 7


def test_steps_shrink_where_rounds_want_them_back() -> None:
    found = lengths([AHEAD * (-1) ** number for number in range(9)], 100.0, momentum=0.0)
    changes = np.diff(np.log2(found / plain(40, FIRST)[:9]))
    assert (changes < 0).all()
    assert changes.min() >= -1.0 - 1e-6  # float32


def test_a_round_changes_the_length_by_a_factor_of_two_at_most_and_a_run_by_8() -> None:
    found = lengths([AHEAD] * 40, signal=0.0) / plain(40, FIRST)
    np.testing.assert_allclose(np.diff(np.log2(found)).max(), 1.0, rtol=1e-5)
    assert found[-1] == pytest.approx(2.0**3)


def test_noise_moves_the_length_little() -> None:
    """Over runs it stays where it was, give or take a factor of two."""
    last = [lengths(noise(40, seed), 0.0)[-1] / plain(40, FIRST)[-1] for seed in range(30)]
    doublings = np.log2(last)
    assert abs(doublings.mean()) < 0.6
    assert doublings.std() < 1.5


def test_where_models_say_nothing_of_their_scale_lengths_move_faster() -> None:
    fresh = lengths([AHEAD] * 5, 100.0, [np.zeros((10, 20))])
    trained = lengths([AHEAD] * 5, 100.0, [np.ones((10, 20))])
    assert fresh[-1] / fresh[0] > trained[-1] / trained[0]


def far_from_goal(sizes: list[int], scale: float, noise: float = 1.0) -> float:
    """Return how far off a run ends whose rounds have so many reports, over the goal's scale."""
    draw = np.random.default_rng(3)
    goal = scale * draw.normal(size=DIMENSION) / math.sqrt(DIMENSION)
    rule, model = AgreedLength(), np.zeros(DIMENSION)
    rule.on_run_start(len(sizes), [np.zeros((10, 20))])
    for number, count in enumerate(sizes, start=1):
        wanted = (goal - model) / max(length(goal - model), 1e-12)
        summed = count * wanted + noise * math.sqrt(count) * draw.normal(size=DIMENSION)
        rule.on_signal(float(summed @ summed) / (count * noise**2 * DIMENSION) - 1.0, count)
        model += rule.step((summed / count).astype(np.float32), number)
    return length(model - goal) / scale


def test_a_round_of_one_report_does_not_decide_a_step() -> None:
    """Its direction is as long as that of all others together, and nearly all noise."""
    assert far_from_goal([50] * 40, 3.0) < 0.3
    assert far_from_goal([50, 1] * 20, 3.0) < 0.45


def test_a_round_counts_by_its_reports() -> None:
    rule = AgreedLength(momentum=0.5)
    rule.on_run_start(40, TRAINED)
    for number, count in enumerate((8, 2), start=1):
        rule.on_signal(0.0, count)
        step = rule.step(np.roll(AHEAD, number), number)
    along = step[1] / step[2]  # 0.5 * 8 reports of the first round beside 2 of the second
    assert along == pytest.approx(2.0)


@pytest.mark.parametrize("scale", [0.3, 3.0, 30.0])
def test_a_goal_is_come_near_whatever_its_scale(scale: float) -> None:
    """Of one scale only steps of the first length would be right."""
    assert far_from_goal([10] * 40, scale, noise=DIMENSION**-0.5) < 0.35


@pytest.mark.parametrize("planned", [1, 4])
def test_steps_of_a_run_longer_than_planned_go_on_to_fall(planned: int) -> None:
    across = [np.roll(AHEAD, number) for number in range(40)]
    found = np.array(lengths(across, 0.0, rounds=planned))
    assert found.min() > 0
    falls = found[0] * max(0.3 * planned, 1.0)
    np.testing.assert_allclose(found[planned:], falls / np.arange(planned + 1, 41), rtol=1e-6)


def test_a_plan_may_become_longer_and_no_shorter() -> None:
    rule = AgreedLength()
    rule.on_run_start(4, TRAINED)
    rule.extend_run(40)
    rule.extend_run(3)
    assert length(rule.step(AHEAD, 1)) == pytest.approx(FIRST)
    assert length(rule.step(np.roll(AHEAD, 1), 11)) == pytest.approx(
        (1 - 0.7 / 4) * FIRST, rel=1e-2
    )


@pytest.mark.parametrize("broken", [0.0, np.nan, np.inf])
def test_a_proposal_without_a_direction_moves_nothing_and_is_forgotten(broken: float) -> None:
    steps = [AHEAD, np.full(DIMENSION, broken, dtype=np.float32), AHEAD]
    first, nothing, third = lengths(steps, 0.0)
    assert nothing == 0.0
    assert 0 < third < 2 * first


def test_a_new_run_knows_nothing_of_the_last() -> None:
    rule = AgreedLength()
    for _ in range(2):
        rule.on_run_start(10, TRAINED)
        assert length(rule.step(AHEAD, 1)) == pytest.approx(0.5)
        rule.on_signal(5.0, 10)
        rule.step(AHEAD, 2)


def test_without_a_run_there_is_no_plan() -> None:
    with pytest.raises(RuntimeError, match="by the strategy's start"):
        AgreedLength().step(AHEAD, 1)
    with pytest.raises(ValueError, match="rounds must be an integer in"):
        AgreedLength().on_run_start(0, TRAINED)


@pytest.mark.parametrize(
    "make",
    [
        lambda pool: CodewordStrategy(Codeword(8.0), answers_per_client=pool),
        lambda pool: GaussianStrategy(
            Gaussian(1.0, 1e-6), server_optimizer=AgreedLength(), answers_per_client=pool
        ),
    ],
)
@pytest.mark.parametrize("pooled", [True, False])
@outside_a_run
def test_without_a_run_nobody_is_asked(make: Any, pooled: bool) -> None:
    """The round's step could not be made, when all its clients have paid for it."""
    pool = ClientPool(1)
    strategy: TrainingStrategy[Any] = make(pool if pooled else None)
    with pytest.raises(RuntimeError, match="by the strategy's start"):
        ask(strategy, FRESH)
    assert not pool.asked()
    assert not strategy.privacy_spent().clients
    strategy.expect(3, record(FRESH))
    assert ask(strategy, FRESH)


def test_it_is_what_strategies_do_where_nothing_is_named() -> None:
    assert SignDSStrategy(SignDS(8.0)).server_optimizer == AgreedLength()
    assert CodewordStrategy(Codeword(8.0)).server_optimizer == AgreedLength()
    planned = FixedLength(1.0, rounds=3)
    assert SignDSStrategy(SignDS(8.0), server_optimizer=planned).server_optimizer is planned
    assert GaussianStrategy(Gaussian(1.0, 1e-6)).server_optimizer is None
    with pytest.raises(ValueError, match="for a bit that is never used"):
        SignDSStrategy(SignDS(8.0), LearnedStep(MagRR(1.0)), server_optimizer=AgreedLength())


def test_no_bit_is_advised_where_it_would_be_refused(caplog: pytest.LogCaptureFixture) -> None:
    strategy = SignDSStrategy(SignDS(8.0))
    strategy.expect(4, record({"w": np.zeros(DIMENSION, dtype=np.float32)}))
    strategy.summary()
    assert "Step rule: steps as long as rounds agree" in caplog.text
    assert "only the direction of the sum counts" in caplog.text
    assert "sign_mag_eps" not in caplog.text


@outside_a_run
def test_a_strategy_tells_it_of_the_run_and_of_each_round() -> None:
    """Clients that agree are followed, in rounds as many as those who are left allow."""
    strategy = CodewordStrategy(Codeword(8.0), answers_per_client=1, fraction_train=1 / 12)
    update, source = np.random.default_rng(1).normal(size=DIMENSION), RandomSource.seeded(2)
    model, moves = FRESH, []
    strategy.expect(12, record(model))
    for number in range(1, 13):
        asked = ask(strategy, model, number, nodes=120)
        after, _ = aggregated(strategy, [answer(one, update, source) for one in asked], number)
        moves.append(length(after["w"] - model["w"]))
        model = after
    assert moves[0] == pytest.approx(3.0 * math.sqrt(10 / 3) * 4 / (12 - 0.7 * 11 / 2), rel=1e-5)
    assert max(moves) > 2 * moves[0]


def test_what_rounds_have_in_common_beyond_noise_is_about_what_reports_are_worth() -> None:
    """Of clients that agree the strategies' signal is that of the efficiency."""
    update, source = np.random.default_rng(1).normal(size=DIMENSION), RandomSource.seeded(2)
    mechanism, found = Codeword(8.0), []
    plan = mechanism.plan(DIMENSION)
    for _ in range(20):
        named = [mechanism.randomize(update, source, DIMENSION) for _ in range(20)]
        summed = mechanism.total(named, DIMENSION)
        found.append(plan.null_distribution.beyond(float(summed @ summed), 20))
    assert np.mean(found) == pytest.approx(20 * plan.efficiency / DIMENSION, rel=0.25)


@outside_a_run
def test_a_plan_grows_with_the_clients_that_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is there at first is enough for two rounds, and the run has twenty."""
    # Twelve nodes in each round, others than before.
    monkeypatch.setattr(
        FakeGrid, "get_node_ids", lambda grid: list(range(grid.nodes, grid.nodes + 12))
    )
    rule, planned = AgreedLength(), []
    strategy = CodewordStrategy(Codeword(8.0), rule, answers_per_client=1, fraction_train=0.5)
    strategy.expect(20, record(FRESH))
    for number in range(1, 21):
        assert len(ask(strategy, FRESH, number, nodes=100 * number)) == 6
        planned.append(rule.rounds)
    assert planned == [*range(2, 21), 20]
