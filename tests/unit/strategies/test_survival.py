"""Survival curves and the log-rank test of noisy counts, beside exact ones."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

from flower_ldp.mechanisms import JointCounts, RandomSource
from flower_ldp.strategies import CountsQuery, CountTable, log_rank, survival
from flower_ldp.strategies.count_tables import agreeing
from tests.extras import extra
from tests.unit.strategies.test_counts import answered

STEPS = JointCounts.steps

stats = extra("scipy.stats")
LAST = 40
COLUMNS = {"age": np.arange(0.0, LAST + 1.0), "dead": ["0", "1"], "arm": ["a", "b"]}
Rows = dict[str, list[Any]]


def patients(count: int, seed: int, scale: float = 12.0) -> Rows:
    """Return patients of two arms, whose times are whole and end in [1, 40)."""
    rng = np.random.default_rng(seed)
    arms = np.array(["a", "b"])[rng.integers(0, 2, count)]
    lives = rng.exponential(np.where(arms == "a", 12.0, scale), count)
    leaves = rng.uniform(5, LAST, count)
    ends = np.minimum(np.ceil(np.minimum(lives, leaves)), LAST - 1)
    return {"age": ends.tolist(), "dead": (lives <= leaves).astype(int).tolist(), "arm": list(arms)}


def table_of(rows: Rows, rng: RandomSource | None, epsilon: float = 1.0, sites: int = 1) -> Any:
    query = CountsQuery(COLUMNS, [("arm", "age", "dead")], epsilon=epsilon)
    parts = [{name: one[i::sites] for name, one in rows.items()} for i in range(sites)]
    return answered(query, parts, rng)["arm", "age", "dead"]


def exact(rows: Rows) -> CountTable:
    """Return the table of rows as one whose counts have no noise."""
    found = table_of(rows, None)
    return CountTable(found.levels, found.counts, found.noisy, 0.0)


def product_limit(times: np.ndarray, dead: np.ndarray, at: float) -> float:
    """Return the product over the times of events, by the definition."""
    found = 1.0
    for time in np.unique(times[(dead == 1) & (times <= at)]):
        found *= 1 - ((times == time) & (dead == 1)).sum() / (times >= time).sum()
    return found


def test_without_noise_the_curve_is_that_of_kaplan_and_meier() -> None:
    rows = patients(300, 1)
    found = survival(exact(rows), time="age", event="dead")
    times, dead = np.array(rows["age"]), np.array(rows["dead"])
    # A whole time t is in the interval [t, t + 1), whose end is t + 1.
    wanted = [product_limit(times, dead, end - 1) for end in found.time]
    np.testing.assert_allclose(found.survival, wanted, atol=1e-5)
    np.testing.assert_allclose(
        found.at_risk, [(times >= t - 1).sum() for t in found.time], atol=1e-3
    )
    assert found.median().value == found.time[np.array(wanted) <= 0.5][0]
    scipy = stats.ecdf(stats.CensoredData.right_censored(times, dead == 0)).sf
    np.testing.assert_allclose(found.survival, scipy.evaluate(found.time - 1), atol=1e-5)


@pytest.mark.filterwarnings("ignore:The confidence interval is undefined")
def test_the_band_without_noise_is_greenwoods() -> None:
    rows = patients(300, 2)
    table, alone = table_of(rows, None), exact(rows)
    found = survival(alone, time="age", event="dead")
    times, dead = np.array(rows["age"]), np.array(rows["dead"])
    scipy = stats.ecdf(stats.CensoredData.right_censored(times, dead == 0)).sf
    wanted = scipy.confidence_interval(0.95, method="linear")
    for ours, theirs in ((found.low, wanted.low), (found.high, wanted.high)):
        ends = theirs.evaluate(found.time - 1)
        is_known = np.isfinite(ends)  # not where nobody is left
        assert is_known.mean() > 0.9
        np.testing.assert_allclose(ours[is_known], ends[is_known], atol=1e-4)
    with_noise = survival(table, time="age", event="dead")
    assert (with_noise.high - with_noise.low >= found.high - found.low).all()


@pytest.mark.parametrize(("count", "epsilon", "sites"), [(1_000, 2.0, 2), (3_000, 1.0, 5)])
def test_the_band_holds_the_curve_of_the_population(count: int, epsilon: float, sites: int) -> None:
    """Where it is between .05 and .95, at 95 % of all ends over 80 samples."""
    whole = patients(200_000, 77)
    times, dead = np.array(whole["age"]), np.array(whole["dead"])
    truth = stats.ecdf(stats.CensoredData.right_censored(times, dead == 0)).sf
    rng, held, medians, farthest = RandomSource.seeded(sites), [], [], []
    for seed in range(80):
        table = table_of(patients(count, seed), rng, epsilon, sites)
        found = survival(table, time="age", event="dead")
        wanted = truth.evaluate(found.time - 1)
        middle = (wanted > 0.05) & (wanted < 0.95)
        held.append(((found.low <= wanted) & (wanted <= found.high))[middle].mean())
        farthest.append(np.abs(found.survival - wanted)[middle].max())
        median = found.median()
        medians.append(median.low <= found.time[wanted <= 0.5][0] <= median.high)
    assert np.mean(held) >= 0.93
    assert np.mean(medians) >= 0.9
    assert np.mean(farthest) < 0.06


def test_without_noise_log_rank_is_scipys() -> None:
    rows = patients(200, 3, scale=18.0)
    table, alone = table_of(rows, None), exact(rows)
    found = log_rank(alone, time="age", event="dead", group="arm")
    arms = [
        stats.CensoredData.right_censored(
            [t for t, arm in zip(rows["age"], rows["arm"], strict=True) if arm == which],
            [not d for d, arm in zip(rows["dead"], rows["arm"], strict=True) if arm == which],
        )
        for which in "ab"
    ]
    wanted = stats.logrank(*arms)
    assert found.statistic == pytest.approx(wanted.statistic, abs=1e-3)
    assert found.p_value == pytest.approx(wanted.pvalue, abs=1e-3)
    assert abs(log_rank(table, time="age", event="dead", group="arm").statistic) < abs(
        found.statistic
    )


def test_log_rank_finds_a_difference_and_hardly_one_that_is_not_there() -> None:
    rng, found = RandomSource.seeded(2), dict[float, list[bool]]()
    for scale, seed in itertools.product((12.0, 20.0), range(120)):
        table = table_of(patients(1_500, seed, scale), rng, 1.0, 3)
        rank = log_rank(table, time="age", event="dead", group="arm")
        found.setdefault(scale, []).append(rank.p_value < 0.05)
    assert np.mean(found[12.0]) <= 0.05 + 4 * (0.05 * 0.95 / 120) ** 0.5
    assert np.mean(found[20.0]) >= 0.7


def test_empty_cells_bend_no_curve_and_tell_no_groups_apart() -> None:
    """Nobody leaves alive, and a fifth are in the first group, which is like the other."""
    intervals, hazard, held, scores = 20, 0.05, [], []
    levels = {"age": range(intervals + 1), "dead": ["0", "1"], "arm": ["a", "b"]}
    wanted = (1 - hazard) ** np.arange(1, intervals + 1)
    law, rng = np.append(hazard * wanted / (1 - hazard), wanted[-1]), np.random.default_rng(9)
    for _ in range(150):
        truth = np.zeros((intervals + 1, 3, 3))
        for arm, size in enumerate((400, 1_600)):
            *died, alive = rng.multinomial(size, law)
            truth[:-1, 1, arm], truth[-2, 0, arm] = died, alive
        noisy = truth + rng.laplace(0, 2.0, (5, *truth.shape)).sum(axis=0)
        counts = agreeing({tuple(levels): noisy}, 2_000)[tuple(levels)]
        table = CountTable(levels, counts, noisy, 40**0.5, 0.6)
        curve = survival(table, time="age", event="dead")
        assert (curve.low <= curve.survival).all()
        assert (curve.survival <= curve.high).all()
        assert (np.diff(curve.survival) <= 0).all()
        held.append((curve.low <= wanted) & (wanted <= curve.high))
        scores.append(log_rank(table, time="age", event="dead", group="arm").statistic)
    assert np.mean(held, axis=0).min() >= 0.92
    assert abs(np.mean(scores)) < 4 / 150**0.5
    assert 0.8 < np.std(scores) < 1.2
    assert np.mean(np.abs(scores) > 1.96) <= 0.05 + 4 * (0.05 * 0.95 / 150) ** 0.5


def test_where_noise_hides_who_is_at_risk_the_band_is_open() -> None:
    levels = {"age": [0, 1, 2, 3], "dead": ["0", "1"], "arm": ["a", "b"]}
    counts = np.zeros((4, 3, 3))
    counts[:3, 1, :2] = [[50, 50], [40, 40], [1, 2]]
    table = CountTable(levels, counts, counts, 2.0)
    found = survival(table, time="age", event="dead")
    assert found.survival == pytest.approx([83 / 183, 3 / 183, 0])
    assert found.low[2] == 0.0
    assert found.high[2] == found.high[1] < 0.1
    nobody = CountTable(levels, counts * 0, counts * 0 - 1, 2.0)
    assert log_rank(nobody, time="age", event="dead", group="arm") == (0.0, 1.0)
    open_band = survival(nobody, time="age", event="dead")
    assert set(zip(open_band.low, open_band.high, strict=True)) == {(0.0, 1.0)}


def test_replacing_a_patient_with_one_record_moves_two_counts() -> None:
    """L1 2 and L2 sqrt 2, in units of an example, over all pairs of records."""
    columns = {"age": [0.0, 1.0, 2.0], "dead": ["0", "1"], "arm": ["a", "b"]}
    proposal = CountsQuery(columns, [tuple(columns)], epsilon=1.0).proposal
    records = itertools.product([0.5, 1.5, None], [0, 1, None], ["a", "b", "?"])
    totals = [
        proposal.mechanism.total(
            (
                proposal.places({n: [v] for n, v in zip(columns, one, strict=True)}, 1),
                np.zeros(1, dtype=np.int64),
            )
        )
        for one in records
    ]
    moved = (np.array(totals)[:, None] - totals) / STEPS
    assert np.abs(moved).sum(axis=2).max() == 2
    assert np.linalg.norm(moved, axis=2).max() == pytest.approx(math.sqrt(2))


def test_nobody_left_and_nobody_at_all() -> None:
    levels = {"age": [0.0, 1.0, 2.0, 3.0], "dead": ["0", "1"]}
    counts = np.zeros((4, 3))
    none = survival(CountTable(levels, counts, counts, 1.0), time="age", event="dead")
    assert np.isfinite([none.survival, none.low, none.high]).all()
    counts[0, 1], counts[1, 1] = 5.0, 5.0
    found = survival(CountTable(levels, counts, counts, 0.1), time="age", event="dead")
    assert found.survival.tolist() == [0.5, 0.0, 0.0]
    assert found.median().value == 1.0
    counts[1] = counts[0] = 0.0
    counts[0, 0] = 5.0
    lives = survival(CountTable(levels, counts, counts, 0.1), time="age", event="dead")
    assert lives.median().value == math.inf


@pytest.mark.parametrize(
    ("time", "event", "group", "text"),
    [
        ("dead", "dead", "arm", "must have edges"),
        ("age", "arm", "dead", "be ['0', '1']"),
        ("age", "dead", "age", "must have two categories"),
        ("weight", "dead", "arm", "weight"),
    ],
)
def test_wrong_columns_are_named(time: str, event: str, group: str, text: str) -> None:
    table = table_of(patients(20, 1), None)
    with pytest.raises((ValueError, KeyError)) as caught:
        log_rank(table, time=time, event=event, group=group)
    assert text in str(caught.value)
