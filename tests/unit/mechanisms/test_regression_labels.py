"""RR-on-bins: its law by enumeration, its bins against brute force, and reading of labels."""

from __future__ import annotations

import bisect
import decimal
import functools
import itertools
import math
from fractions import Fraction

import numpy as np
import pytest

from flower_ldp.labels import LabelStages
from flower_ldp.mechanisms import KaryResponse, RandomSource, RROnBins
from flower_ldp.mechanisms.labels import reports_are_labels
from flower_ldp.privacy import PrivacyEvent, Unit
from tests.extras import extra
from tests.statistical.follows import assert_follows

GRID = (-3.0, -1.0, 0.0, 0.5, 4.0, 10.0)
PRIORS = [
    (1, 1, 1, 1, 1, 1),
    (0, 0, 0, 0, 0, 0),
    (1, 0, 0, 0, 0, 3),
    (0, 0, 1, 0, 0, 0),
    (0.1, 2, 5, 3, 0.01, 1),
    (0, 4, 0, 1, 1, 0),
    (1e308, 1e308, 3.0, 0, 1e308, 5e-324),
]
LOSSES = ("squared", "absolute")
BOTH = pytest.mark.parametrize("loss", LOSSES)
OF_TEN = RROnBins(3.0, range(10), [1] * 10)


# The law.


@BOTH
@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("epsilon", [1e-3, 0.5, 2.0, 8.0, 100.0])
def test_every_ratio_of_the_law_is_at_most_e_to_the_epsilon(
    epsilon: float, prior: tuple[float, ...], loss: str
) -> None:
    mechanism = RROnBins(epsilon, GRID, prior, loss)
    reports = range(mechanism.categories)
    labels = [*GRID, 0.2, 7.0, -1e9, math.inf, math.nan, None]
    law = np.array([[mechanism.log_prob(one, label) for one in reports] for label in labels])
    np.testing.assert_allclose(np.exp(law).sum(axis=1), 1.0, rtol=1e-12)
    assert np.ptp(law, axis=0).max() == pytest.approx(epsilon, abs=1e-12)
    # As built, in integers of 2^-256: the ratio of the two probabilities to 80 digits.
    truth = Fraction(mechanism.response._truth_weight, 2**256)
    ratio = 1 + mechanism.categories * truth / (1 - truth)
    with decimal.localcontext(prec=80):
        bound = decimal.Decimal(repr(epsilon)).exp()
        assert 1 < decimal.Decimal(ratio.numerator) / ratio.denominator <= bound
    np.testing.assert_allclose(law[-2:], -math.log(mechanism.categories))
    found = mechanism.likelihood(reports)[:, mechanism.read(GRID)].T
    np.testing.assert_allclose(np.log(found), law[: len(GRID)], atol=1e-12)


def test_the_cost_is_epsilon_per_label() -> None:
    assert OF_TEN.events() == (PrivacyEvent("rr_on_bins", 3.0, unit=Unit.LABEL),)
    assert OF_TEN.response == KaryResponse(3.0, 3, "rr_on_bins", Unit.LABEL)
    assert not reports_are_labels(OF_TEN)


# The bins.


def best_loss(
    epsilon: float, prior: tuple[float, ...], loss: str, grid: tuple[float, ...] = GRID
) -> float:
    """Return the least expected loss over all ways to cut the grid, by exact fractions."""
    n, gain = len(grid), Fraction(math.exp(epsilon))
    total = sum(map(Fraction, prior))
    law = [Fraction(p) / total if total else Fraction(1, n) for p in prior]
    values = [Fraction(value) for value in grid]

    @functools.cache
    def of_bin(begin: int, end: int) -> Fraction:
        weights = [p * (gain if begin <= place < end else 1) for place, p in enumerate(law)]
        pairs = list(zip(weights, values, strict=True))
        if loss == "squared":
            mean = sum(w * v for w, v in pairs) / sum(weights)
            return sum((w * (v - mean) ** 2 for w, v in pairs), Fraction(0))
        return min(sum((w * abs(v - out) for w, v in pairs), Fraction(0)) for out in values)

    found = []
    for size in range(n):
        for cuts in itertools.combinations(range(1, n), size):
            ends = (0, *cuts, n)
            losses = (of_bin(a, b) for a, b in itertools.pairwise(ends))
            found.append(sum(losses, Fraction(0)) / (gain + size))
    return float(min(found))


def loss_of(mechanism: RROnBins, prior: tuple[float, ...]) -> float:
    """Return the expected loss by the law of reports and what they stand for."""
    law = np.array(prior) / max(prior) if any(prior) else np.ones(len(prior))
    power = {"squared": 2, "absolute": 1}[mechanism.loss]
    found = 0.0
    for value, p in zip(mechanism.values, law, strict=True):
        for report, output in enumerate(mechanism.outputs):
            found += p * math.exp(mechanism.log_prob(report, value)) * abs(output - value) ** power
    return float(found / law.sum())


@BOTH
@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("epsilon", [1e-3, 1.0, 3.5, 12.0])
def test_no_way_to_cut_the_grid_has_a_smaller_loss(
    epsilon: float, prior: tuple[float, ...], loss: str
) -> None:
    mechanism = RROnBins(epsilon, GRID, prior, loss)
    best = best_loss(epsilon, prior, loss)
    assert loss_of(mechanism, prior) == pytest.approx(best, rel=1e-11, abs=1e-11)
    # And the map from values to outputs does not fall.
    assert (np.diff(mechanism.decode(mechanism.read(GRID))) >= -1e-12).all()


@BOTH
def test_bins_of_many_random_grids_are_the_best_ones(loss: str) -> None:
    rng = np.random.default_rng(5)
    for _ in range(30):
        grid = tuple(np.sort(rng.normal(size=rng.integers(2, 8))).tolist())
        prior = tuple(rng.dirichlet(np.full(len(grid), 0.5)).tolist())
        epsilon = float(rng.uniform(0.01, 8))
        found = loss_of(RROnBins(epsilon, grid, prior, loss), prior)
        assert found == pytest.approx(best_loss(epsilon, prior, loss, grid), rel=1e-10, abs=1e-13)


optimize = extra("scipy.optimize")


@BOTH
@pytest.mark.parametrize("epsilon", [0.4, 1.5, 3.0])
def test_no_other_private_report_has_a_smaller_loss(epsilon: float, loss: str) -> None:
    # The best epsilon-LDP law of 13 outputs given 4 values, by linear programming (Theorem 1).
    rng, values = np.random.default_rng(6), np.array([0.0, 1.0, 2.5, 6.0])
    for prior in rng.dirichlet(np.full(4, 0.7), size=5):
        mechanism = RROnBins(epsilon, values, prior, loss)
        outputs = np.concatenate([mechanism.outputs, np.linspace(0, 6, 13 - mechanism.categories)])
        pairs = list(itertools.product(range(13), itertools.permutations(range(4), 2)))
        bounds = np.zeros((len(pairs), 4, 13))
        for row, (report, (value, other)) in zip(bounds, pairs, strict=True):
            row[value, report], row[other, report] = 1.0, -math.exp(epsilon)
        losses = np.abs(values[:, np.newaxis] - outputs) ** (2 if loss == "squared" else 1)
        best = optimize.linprog(
            (prior[:, np.newaxis] * losses).ravel(),
            A_ub=bounds.reshape(len(bounds), -1),
            b_ub=np.zeros(len(bounds)),
            A_eq=np.kron(np.eye(4), np.ones(13)),
            b_eq=np.ones(4),
        )
        assert loss_of(mechanism, tuple(prior)) == pytest.approx(best.fun, abs=1e-8)


@pytest.mark.parametrize("epsilon", [1.0, 4.0])
def test_a_production_grid_and_set_of_labels_follow_plain_oracles(epsilon: float) -> None:
    rng = np.random.default_rng(7)
    grid, prior = np.sort(rng.gamma(2.0, 50.0, 256)).tolist(), rng.dirichlet(np.ones(256)).tolist()
    mechanism = RROnBins(epsilon, grid, prior)
    gain, most = math.exp(epsilon), 24
    sums = [[0.0], [0.0], [0.0]]
    for value, p in zip(grid, prior, strict=True):
        for power, column in enumerate(sums):
            column.append(column[-1] + p * value**power)

    def of_bin(begin: int, end: int) -> float:
        mass, first, second = (c[-1] + (gain - 1) * (c[end] - c[begin]) for c in sums)
        return second - first**2 / mass

    costs = [[of_bin(begin, end) for begin in range(end)] for end in range(257)]
    best = [math.inf, *(row[0] for row in costs[1:])]
    losses = [best[256] / gain]
    for bins in range(2, most):
        best = [min(map(sum, zip(best, row, strict=False)), default=math.inf) for row in costs]
        losses.append(best[256] / (gain + bins - 1))
    assert loss_of(mechanism, tuple(prior)) == pytest.approx(min(losses), rel=1e-9)
    # More bins are worse: each costs what a constant does at least, times e^-epsilon.
    assert most * losses[0] / (gain + most - 1) > min(losses)

    labels = np.append(rng.gamma(2.0, 50.0, 99_997), [-5.0, 1e9, grid[77]])
    firsts = [value for value in grid if int(mechanism.read(value)) > 0]
    starts = [
        min(v for v in firsts if int(mechanism.read(v)) == b)
        for b in range(1, mechanism.categories)
    ]
    expected = []
    for label in labels.tolist():
        place = bisect.bisect(grid, label)
        near = min(grid[max(place - 1, 0) : place + 1], key=lambda value: abs(value - label))
        expected.append(sum(start <= near for start in starts))
    assert mechanism.read(labels).tolist() == expected
    reports = mechanism.randomize_array(labels, RandomSource.seeded(8))
    assert (reports.dtype, reports.shape) == (np.int64, (100_000,))
    for bin_ in range(mechanism.categories):
        counts = np.bincount(reports[np.array(expected) == bin_], minlength=mechanism.categories)
        law = mechanism.response.transition()[bin_]
        assert_follows(counts.tolist(), law.tolist())


def test_the_largest_grid_takes_seconds_and_equal_losses_give_the_fewest_bins() -> None:
    assert RROnBins(100.0, range(512), [0] * 511 + [1]).categories == 2
    found = RROnBins(2.0, np.arange(512) / 7, np.ones(512))
    assert found.categories == len(found.outputs) == len(found.edges) + 1 == 2


# Values of reports.


@BOTH
@pytest.mark.parametrize("prior", PRIORS)
def test_the_mean_of_unbiased_values_is_the_mean_in_the_bin(
    prior: tuple[float, ...], loss: str
) -> None:
    mechanism = RROnBins(1.5, GRID, prior, loss)
    found = mechanism.unbiased(range(mechanism.categories))
    means = mechanism.response.transition() @ found
    law = np.array(prior) / max(prior) if any(prior) else np.ones(6)
    for bin_ in range(mechanism.categories):
        held = mechanism.read(GRID) == bin_
        weights = law[held] if law[held].any() else np.ones(held.sum())
        wanted = np.average(np.array(GRID)[held], weights=weights)
        assert means[bin_] == pytest.approx(wanted, abs=1e-9)


def test_squared_losses_with_unbiased_values_differ_by_a_constant() -> None:
    law, values = OF_TEN.response.transition(), OF_TEN.unbiased([0, 1, 2])
    means = law @ values
    found = [[law[b] @ (f - values) ** 2 - (f - means[b]) ** 2 for f in (-3, 0, 9)] for b in (0, 2)]
    assert np.ptp(found, axis=1) == pytest.approx([0.0, 0.0], abs=1e-9)


def test_samples_have_the_means_that_are_stated() -> None:
    """Each of the three fails by chance once in 10^6."""
    n, labels = 200_000, np.repeat([1.0, 5.2, 11.0], 200_000)
    reports = OF_TEN.randomize_array(labels, RandomSource.seeded(9)).reshape(3, n)
    values = OF_TEN.unbiased(reports)
    wanted = OF_TEN.response.transition() @ OF_TEN.unbiased([0, 1, 2])
    assert (np.abs(values.mean(axis=1) - wanted) < 4.9 * values.std(axis=1) / n**0.5).all()
    assert wanted == pytest.approx([1.5, 5.0, 8.0])
    for row, label in zip(reports, (1.0, 5.2, 11.0), strict=True):
        law = [math.exp(OF_TEN.log_prob(report, label)) for report in range(3)]
        assert_follows(np.bincount(row, minlength=3).tolist(), law)


def test_outputs_are_the_means_of_labels_given_their_report() -> None:
    law = OF_TEN.response.transition()[OF_TEN.read(range(10))]
    means = (np.arange(10) @ law) / law.sum(axis=0)
    np.testing.assert_allclose(OF_TEN.decode([2, 0, 1]), means[[2, 0, 1]])


# Reading labels.


def test_a_number_counts_as_the_nearest_value_and_nothing_else_as_any() -> None:
    exact = RROnBins(100.0, GRID, PRIORS[0])
    assert exact.categories == 6
    labels = [-math.inf, -9, -2, -1.9, 0.24, 0.25, 6.9, 7.0, 10**200, math.inf, True]
    assert exact.read(labels).tolist() == [0, 0, 1, 1, 2, 3, 4, 5, 5, 5, 3]
    assert exact.read(np.float32([0.3, 0.2])).tolist() == [3, 2]
    assert exact.read([math.nan, None, "1", 1j, [1], 3]).tolist() == [-1, -1, -1, -1, -1, 4]
    rng = RandomSource.seeded(1)
    assert exact.randomize_array(labels, rng).tolist() == exact.read(labels).tolist()
    assert [exact.randomize(label, rng) for label in labels] == exact.read(labels).tolist()
    unread = exact.randomize_array(np.full(60_000, np.nan), rng)
    assert_follows(np.bincount(unread, minlength=6).tolist(), [1 / 6] * 6)


@pytest.mark.parametrize("change", [1.0, 1e-200, 1e300])
def test_bins_do_not_depend_on_the_units(change: float) -> None:
    found = RROnBins(2.0, np.array(GRID) * change, PRIORS[4])
    first = RROnBins(2.0, GRID, PRIORS[4])
    np.testing.assert_allclose(np.array(found.outputs) / change, first.outputs)
    np.testing.assert_allclose(np.array(found.edges) / change, first.edges)


@pytest.mark.parametrize(
    ("values", "prior", "loss", "text"),
    [
        ([1.0], [1.0], "squared", "values must be 2 to 512"),
        (range(513), [1] * 513, "squared", "values must be 2 to 512"),
        ([[1.0, 2.0]], [1, 1], "squared", "values must be 2 to 512"),
        (["a", "b"], [1, 1], "squared", "values must be 2 to 512"),
        ([1.0, 1.0], [1, 1], "squared", "ascend"),
        ([2.0, 1.0], [1, 1], "squared", "ascend"),
        ([0.0, 5e-324], [1, 1], "squared", "ascend"),
        ([0.0, math.nan, 1.0], [1] * 3, "squared", "ascend"),
        ([0.0, math.inf], [1, 1], "squared", "finite"),
        ([-1.7e308, 1.7e308], [1, 1], "squared", "finite"),
        (GRID, [1] * 5, "squared", "prior must have shape"),
        (GRID, [1] * 5 + [-1], "squared", "prior must be finite"),
        (GRID, [1] * 5 + [math.nan], "squared", "prior must be finite"),
        (GRID, [1] * 6, "huber", "loss must be one of absolute, squared, got 'huber'"),
    ],
)
def test_what_is_no_grid_prior_or_loss_is_refused(
    values: object, prior: object, loss: str, text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        RROnBins(1.0, values, prior, loss)  # type: ignore[arg-type]


@pytest.mark.parametrize("bad", [3, -1, 0.5, "x"])
def test_what_is_no_report_is_refused(bad: object) -> None:
    for call in (OF_TEN.decode, OF_TEN.unbiased, OF_TEN.likelihood):
        with pytest.raises(ValueError, match="reports must be integers"):
            call([bad])  # type: ignore[operator]
    with pytest.raises(ValueError, match="report must be an integer"):
        OF_TEN.log_prob(bad, 1.0)


def test_a_prior_with_the_labels_is_refused() -> None:
    with pytest.raises(ValueError, match="prior must be left out"):
        OF_TEN.randomize_array([1.0], RandomSource.seeded(1), [1.0] * 3)


def test_stages_read_labels_alike_and_a_ledger_keeps_the_edges() -> None:
    (kept,) = LabelStages.of(OF_TEN).terms(5)["mechanisms"]
    assert kept == ["RROnBins", "rr_on_bins", 3.0, 3.5, 6.5]
    for other in (RROnBins(3.0, range(3), [1] * 3), KaryResponse(1.0, 3, unit=Unit.LABEL)):
        assert other.categories <= 3
        with pytest.raises(ValueError, match="the same categories"):
            LabelStages((OF_TEN, other), (1, 1))
