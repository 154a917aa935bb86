"""Bounds on sums of releases: never below the exact value, at most 1 % above, units apart."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Sequence
from functools import cache, reduce
from itertools import product

import pytest

from flower_ldp.accounting.composition import composed_epsilon, totals
from flower_ldp.mechanisms import Gaussian
from flower_ldp.privacy import PrivacyEvent, PrivacySpent, Unit
from tests.extras import extra

mpmath = extra("mpmath")
dp_accounting = extra("dp_accounting")
pld = extra("dp_accounting.pld")

Groups = Sequence[tuple[float, int]]


def events(*groups: tuple[float, int]) -> list[PrivacyEvent]:
    return [PrivacyEvent("m", epsilon, count=count) for epsilon, count in groups]


def approximate(groups: Groups, delta: float) -> float:
    """Return the package's approximate epsilon."""
    bound = totals(events(*groups), delta=delta)[Unit.CLIENT].approximate
    assert bound is not None
    assert bound.delta == delta
    return bound.epsilon


@cache
def losses(groups: tuple[tuple[float, int], ...]) -> list[tuple[mpmath.mpf, mpmath.mpf]]:
    """Return loss and probability of every outcome of composed responses, the largest first."""
    atoms = {mpmath.mpf(0): mpmath.mpf(1)}
    for epsilon, count in groups:
        lie = 1 / (1 + mpmath.exp(mpmath.mpf(epsilon)))
        composed: dict[mpmath.mpf, mpmath.mpf] = {}
        for (loss, weight), k in product(atoms.items(), range(count + 1)):
            other = loss + (2 * k - count) * mpmath.mpf(epsilon)
            chance = mpmath.binomial(count, k) * (1 - lie) ** k * lie ** (count - k)
            composed[other] = composed.get(other, mpmath.mpf(0)) + weight * chance
        atoms = composed
    return sorted(atoms.items(), reverse=True)


def exact(groups: Groups, delta: float) -> mpmath.mpf:
    """Return the exact epsilon of composed responses: sums over binomials, 40 digits.

    Between two outcomes delta(eps) = A - e^eps B, where A and B are the sums of the
    probabilities, under either input, of the outcomes of a larger loss.
    """
    with mpmath.workdps(40):
        above, mirrored = mpmath.mpf(0), mpmath.mpf(0)
        for loss, weight in losses(tuple(groups)):
            if above - mpmath.exp(loss) * mirrored > delta:
                break
            above += weight
            mirrored += weight * mpmath.exp(-loss)
        return max(mpmath.mpf(0), mpmath.log((above - delta) / mirrored))


def test_exact_agrees_with_two_hand_computed_cases() -> None:
    # One response at epsilon 1: delta(eps) = P - e^eps (1 - P), P = e / (1 + e).
    keep = math.e / (1 + math.e)
    by_hand = math.log((keep - 0.01) / (1 - keep))
    assert float(exact([(1.0, 1)], 0.01)) == pytest.approx(by_hand, rel=1e-14)
    # Two at ln 3, P = 3/4: above loss 0 lies 9/16 against 1/16, so delta(ln 5) = 4/16.
    assert float(exact([(math.log(3), 2)], 0.25)) == pytest.approx(math.log(5), rel=1e-12)


GRID: list[Groups] = [
    [(1.0, 1)],
    [(1.0, 10)],
    [(0.1, 1000)],
    [(0.01, 1000)],
    [(1.0, 1000)],
    [(0.0031415926, 700)],
    [(8.0, 60)],
    [(29.0, 3)],
    # Commensurable, as a round of SignDS with a bit of MagRR is, and not.
    [(7.0, 40), (1.0, 40)],
    [(6.5, 20), (0.5, 20)],
    [(0.137, 60), (0.0511113, 40)],
    [(3.3333333, 1), (0.01, 500)],
    [(0.13711, 15), (0.0511113, 12), (1.77777, 6)],
]


@pytest.mark.parametrize("turn", range(2))
@pytest.mark.parametrize("place", range(len(GRID)))
def test_bound_is_above_the_exact_value_by_at_most_one_percent(place: int, turn: int) -> None:
    delta = (1e-2, 1e-5, 1e-9)[(place + turn) % 3]
    truth = exact(GRID[place], delta)
    assert truth <= approximate(GRID[place], delta) <= truth * mpmath.mpf("1.01")


def test_three_epsilons_without_a_common_step_make_a_fine_grid() -> None:
    # Here rounding to the grid is all the error there is, and it is far from 1 %.
    assert approximate(GRID[-1], 1e-5) <= exact(GRID[-1], 1e-5) * mpmath.mpf("1.002")


# Another implementation.


def response_parameter(epsilon: float) -> float:
    """Return dp-accounting's parameter: the chance of a uniformly random answer."""
    return 2.0 / (1.0 + math.exp(epsilon))


@pytest.mark.parametrize("groups", [[(0.5, 100)], [(1.0, 25), (0.25, 50)]])
def test_their_response_composed_by_itself_agrees(groups: Groups) -> None:
    step = 1e-4
    of = pld.privacy_loss_distribution.from_randomized_response
    parts = [
        of(response_parameter(epsilon), 2, value_discretization_interval=step).self_compose(count)
        for epsilon, count in groups
    ]
    theirs = reduce(lambda one, other: one.compose(other), parts).get_epsilon_for_delta(1e-5)
    releases = sum(count for _, count in groups)
    # Theirs rounds each loss up to a multiple of the step: pessimistic, by a step each at most.
    assert float(exact(groups, 1e-5)) - 1e-9 <= theirs
    assert approximate(groups, 1e-5) == pytest.approx(theirs, abs=releases * step)


# Which bound is reported.


def test_the_smaller_bound_is_reported_with_its_delta() -> None:
    many = totals(events((0.1, 1000)), delta=1e-5)[Unit.CLIENT]
    assert many.pure == PrivacySpent(Unit.CLIENT, 100.0)
    assert many.smaller is many.approximate
    assert many.smaller.delta == 1e-5
    one = totals(events((40.0, 1)), delta=1e-5)[Unit.CLIENT]
    assert one.smaller is one.pure
    assert one.smaller.delta == 0.0


def test_units_are_bounded_with_all_that_is_about_coarser_ones() -> None:
    mixed = [PrivacyEvent("m", 0.1, unit=unit, count=100 * (n + 1)) for n, unit in enumerate(Unit)]
    found = totals(mixed, delta=1e-5)
    for unit, releases in zip(Unit, (100, 300, 600), strict=True):
        alone = totals([PrivacyEvent("m", 0.1, unit=unit, count=releases)], delta=1e-5)[unit]
        assert found[unit].pure.epsilon == pytest.approx(alone.pure.epsilon)
        assert found[unit].approximate == alone.approximate
    claim = PrivacyEvent("m:conditional", 0.1)
    assert totals([*mixed, claim], delta=1e-5) == found


def test_how_events_are_cut_up_does_not_matter() -> None:
    whole = totals(events((0.3, 20), (0.2, 10)), delta=1e-5)
    cut = totals(events(*[(0.3, 5)] * 4, *[(0.2, 1)] * 10), delta=1e-5)
    assert whole == cut


def test_nothing_spent_is_no_line_at_all() -> None:
    assert totals([], delta=1e-5) == {}


def test_large_epsilons_are_added_to_the_bound_of_the_rest() -> None:
    alone = approximate([(0.1, 1000)], 1e-5)
    assert approximate([(0.1, 1000), (1e5, 2)], 1e-5) == pytest.approx(2e5 + alone, rel=1e-9)
    assert approximate([(1e6, 1000)], 1e-5) == 1e9


def test_bound_never_exceeds_the_pure_sum() -> None:
    for groups in ([(29.99999, 7)], [(1e-9, 3)], [(5e-324, 1)], [(1e-300, 2), (20.0, 1)]):
        assert approximate(groups, 1e-5) <= math.fsum(e * n for e, n in groups)


def test_a_delta_that_covers_everything_leaves_epsilon_zero() -> None:
    # The total variation of one response at epsilon 0.01 is tanh(0.005) < 0.01.
    assert approximate([(0.01, 1)], 0.01) == 0.0


def test_bound_falls_as_delta_grows_and_rises_with_each_release() -> None:
    deltas = [approximate([(0.2, 100)], 10.0**-k) for k in range(1, 10)]
    assert deltas == sorted(deltas)
    counts = [approximate([(0.2, n)], 1e-5) for n in (1, 2, 5, 20, 100, 101, 1000)]
    assert counts == sorted(counts)
    assert len(set(counts)) == len(counts)


# Releases with a delta of their own.


def test_own_deltas_are_taken_off_the_delta_asked_for() -> None:
    leaky = [PrivacyEvent("gauss", 0.1, 1e-8, count=500)]
    found = totals(leaky, delta=1e-5)[Unit.CLIENT]
    assert found.pure == PrivacySpent(Unit.CLIENT, 50.0, 5e-6)
    assert found.approximate is not None
    assert found.approximate.delta == 1e-5
    rest = approximate([(0.1, 500)], 5e-6)
    assert found.approximate.epsilon == pytest.approx(rest, rel=1e-6)
    assert found.approximate.epsilon >= exact([(0.1, 500)], 5e-6)


def test_own_deltas_that_use_up_the_delta_leave_the_pure_sum() -> None:
    found = totals([PrivacyEvent("gauss", 0.1, 1e-8, count=1000)], delta=1e-5)[Unit.CLIENT]
    assert found.approximate is None
    assert found.smaller == PrivacySpent(Unit.CLIENT, 100.0, 1e-5)


@pytest.mark.parametrize("delta", [1e-12, 1e-30])
def test_a_small_delta_is_resolved(delta: float) -> None:
    truth = exact([(0.1, 1000)], delta)
    assert truth <= approximate([(0.1, 1000)], delta) <= truth * mpmath.mpf("1.0001")


@pytest.mark.parametrize("groups", [[(1.0, 1)], [(8.0, 20)], [(0.137, 60), (0.0511113, 40)]])
def test_a_large_delta_is_no_looser(groups: Groups) -> None:
    truth = exact(groups, 0.3)
    assert truth <= approximate(groups, 0.3) <= truth * mpmath.mpf("1.0001")


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-9, math.nan, math.inf])
def test_delta_must_be_a_probability(delta: float) -> None:
    with pytest.raises(ValueError, match=rf"delta must be in \(0, 1\), got {delta}"):
        totals(events((1.0, 1)), delta=delta)


# Gaussian releases, whose noise is known.


def test_gaussian_releases_agree_with_dp_accounting() -> None:
    accountant = pld.PLDAccountant(value_discretization_interval=1e-3)
    for shift, count in ((0.3, 40), (1.0, 3)):
        accountant.compose(dp_accounting.GaussianDpEvent(1 / shift), count)
    found = composed_epsilon([0.3] * 40 + [1.0] * 3, delta=1e-5)
    assert found == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-3)


@pytest.mark.parametrize(("epsilon", "delta"), [(0.1, 1e-6), (8.0, 1e-5), (100.0, 0.01)])
def test_one_gaussian_release_costs_what_it_states(epsilon: float, delta: float) -> None:
    shift = Gaussian(epsilon, delta).shift
    assert composed_epsilon([shift], delta=delta) == pytest.approx(epsilon, rel=1e-5)


def test_gaussian_rounds_cost_less_than_their_sum() -> None:
    shift = Gaussian(1.0, 1e-6).shift
    assert composed_epsilon([shift] * 50, delta=50e-6) < 10
    assert composed_epsilon([shift] * 50, delta=1e-5) == pytest.approx(8.04, abs=0.01)


@pytest.mark.parametrize("rounds", [1, 10, 60])
def test_the_bound_that_knows_only_epsilon_and_delta_is_never_below(rounds: int) -> None:
    """totals() treats a release with delta as one that tells all with probability delta."""
    mechanism = Gaussian(0.2, 1e-8)
    known = totals([*mechanism.events()] * rounds, delta=1e-5)[Unit.CLIENT]
    assert known.approximate is not None
    true = composed_epsilon([mechanism.shift] * rounds, delta=1e-5)
    assert known.pure.epsilon >= known.approximate.epsilon >= true
    assert known.pure.delta == pytest.approx(rounds * 1e-8)


@pytest.mark.parametrize(
    ("shifts", "delta", "text"),
    [([value], 1e-5, "shifts must be positive") for value in (0.0, math.nan, math.inf)]
    + [([1.0], value, "delta must be in") for value in (0.0, 1e-13, 1.0, math.nan)]
    + [([], 1e-5, "shifts must be positive")],
)
def test_shifts_and_deltas_that_are_refused(shifts: list[float], delta: float, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        composed_epsilon(shifts, delta=delta)


def test_the_ends_of_a_gaussian_release() -> None:
    assert composed_epsilon([1e-6], delta=1e-3) == 1e-3
    assert composed_epsilon([100.0], delta=1e-5) == math.inf


# Size, and what is imported when.


def test_a_thousand_rounds_of_their_own_epsilons_are_bounded() -> None:
    plan = [(0.5 + 0.00037 * n, 1) for n in range(1000)]
    bound = approximate(plan, 1e-5)
    smallest, largest = approximate([(0.5, 1000)], 1e-5), approximate([(0.86963, 1000)], 1e-5)
    assert smallest < bound < largest


def test_a_hundred_thousand_releases_are_bounded() -> None:
    # By Hoeffding's inequality for the sum of losses: a bound that is above the exact value.
    epsilon, count, delta = 0.01, 100_000, 1e-5
    mean = count * epsilon * math.tanh(epsilon / 2)
    hoeffding = mean + epsilon * math.sqrt(2 * count * math.log(1 / delta))
    assert mean < approximate([(epsilon, count)], delta) < hoeffding


def test_pure_sums_do_not_load_numpy() -> None:
    program = (
        "import sys, flower_ldp.accounting.composition, flower_ldp.privacy as p\n"
        "p.compose([p.PrivacyEvent('m', 1.0)])\n"
        "sys.exit(any(name in sys.modules for name in ('numpy', 'scipy')))"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


# The neighbouring relation.


@pytest.mark.parametrize("unit", Unit)
def test_events_carry_their_neighbouring_relation(unit: Unit) -> None:
    assert PrivacyEvent("m", 1.0, unit=unit).relation == f"replace-one {unit.value}"
