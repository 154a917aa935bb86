"""Shuffled reports: the bounds against exact laws, enumerated, summed and drawn in other ways."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from itertools import combinations, combinations_with_replacement, permutations

import numpy as np
import pytest

from flower_ldp.accounting import (
    FavouredPart,
    ShuffleBound,
    ShuffledReports,
    codeword_for,
    favoured_part,
    rounds_epsilon,
    shuffle_bound,
    totals,
)
from flower_ldp.accounting.excess import ExcessOfSum
from flower_ldp.accounting.shuffled import MOST_BITS, MOST_REPORTS
from flower_ldp.mechanisms import Codeword, SignDS
from flower_ldp.mechanisms.labels import SubsetSelection
from flower_ldp.mechanisms.randomized_response import BinaryResponse, KaryResponse
from flower_ldp.mechanisms.signds import Selection
from flower_ldp.privacy import PrivacyEvent, Unit
from tests.extras import extra
from tests.lint import ROOT

stats = extra("scipy.stats")

M, DELTA = 16_384, 1e-6
#: Central epsilons at a delta of 1e-6, by local epsilon, K and n.
FIGURES = {
    (3.0, 2_106): {1_000: 0.6982, 1_667: 0.5241, 2_000: 0.4740, 3_333: 0.3585, 10_000: 0.1981},
    (4.0, 1_004): {1_000: 1.3726, 1_667: 0.9954, 2_000: 0.8922, 3_333: 0.6631, 10_000: 0.3607},
    (5.0, 556): {1_000: 2.5839, 1_667: 2.1388, 2_000: 1.8942, 3_333: 1.3083, 10_000: 0.6648},
}
Law = np.ndarray[tuple[int], np.dtype[np.float64]]
CASES = [(*key, n, value) for key, row in FIGURES.items() for n, value in row.items()]


def codewords(epsilon: float, favoured: int, reports: int, of: int = M) -> ShuffledReports:
    return ShuffledReports((FavouredPart(epsilon, favoured / of),), reports)


@pytest.mark.parametrize(("epsilon", "favoured", "reports", "value"), CASES)
def test_figures_of_codewords(epsilon: float, favoured: int, reports: int, value: float) -> None:
    assert codewords(epsilon, favoured, reports).epsilon(DELTA) == pytest.approx(value, rel=1e-3)


def test_the_page_has_the_figures() -> None:
    page = (ROOT / "docs" / "shuffled.md").read_text(encoding="utf-8")
    for (epsilon, favoured), row in FIGURES.items():
        (line,) = re.findall(rf"^\| {epsilon:g} \| {favoured:,} \|(.*)\|$", page, re.MULTILINE)
        assert [float(cell) for cell in line.split("|")] == pytest.approx([*row.values()], abs=6e-4)


@pytest.mark.parametrize(("epsilon", "favoured", "reports"), [row[:3] for row in CASES[::4]])
def test_the_best_test_is_hardly_below(epsilon: float, favoured: int, reports: int) -> None:
    round_ = codewords(epsilon, favoured, reports)
    below, above = round_.attained(DELTA), round_.epsilon(DELTA)
    assert below is not None
    assert 0.9993 * above < below < above


def by_sums(local: float, share: float, reports: int, epsilon: float) -> float:
    """Return the blanket's delta by sums over binomials: uniform reports, in S or S', in S."""
    grown, factor = math.exp(local), math.exp(epsilon)
    blanket = 1.0 / (1.0 + share * (grown - 1.0))
    total = 0.0
    least, most = stats.binom.interval(1 - 1e-15, reports, blanket)
    for m in range(max(1, int(least)), int(most) + 1):
        either = np.arange(m + 1)
        weights = stats.binom.pmf(either, m, 2 * share)
        for s in either[weights > 1e-16]:
            one = np.arange(s + 1)
            sums = (
                one * (grown - factor) + (s - one) * (1 - factor * grown) + (m - s) * (1 - factor)
            )
            inner = stats.binom.pmf(one, s, 0.5) @ np.maximum(sums, 0.0)
            total += stats.binom.pmf(m, reports, blanket) * weights[s] * inner
    return total / reports


@pytest.mark.parametrize(
    ("local", "share", "reports", "epsilon"),
    [(4.0, 1_004 / M, 300, 2.0), (1.0, 0.2, 100, 0.3), (6.0, 0.01, 400, 4.0), (2.0, 0.1, 60, 0.0)],
)
def test_delta_is_that_of_sums_over_binomials(
    local: float, share: float, reports: int, epsilon: float
) -> None:
    exact = by_sums(local, share, reports, epsilon)
    found = ShuffledReports((FavouredPart(local, share),), reports).delta(epsilon)
    assert exact * (1 - 1e-9) <= found <= exact * (1 + 2e-5) + 1e-12


# Enumeration: the laws of all multisets, from the mechanism's own probabilities.


def of_multisets(laws: Sequence[Law]) -> dict[tuple[int, ...], float]:
    """Return the probability of each multiset of reports, one for each law."""
    found = {(): 1.0}
    for law in laws:
        grown: dict[tuple[int, ...], float] = {}
        for held, chance in found.items():
            for value, own in enumerate(law):
                key = tuple(sorted((*held, value)))
                grown[key] = grown.get(key, 0.0) + chance * float(own)
        found = grown
    return found


def exact_delta(one: Law, other: Law, rest: Sequence[Law], epsilon: float) -> float:
    first, second = of_multisets([*rest, one]), of_multisets([*rest, other])
    return sum(max(p - math.exp(epsilon) * second[key], 0.0) for key, p in first.items())


def worst_deltas(laws: Sequence[Law], reports: int, epsilons: Sequence[float]) -> list[float]:
    """Return the largest delta over all neighbours and all data of the other clients."""
    found = [0.0] * len(epsilons)
    for rest in combinations_with_replacement(laws, reports - 1):
        every = [np.array([*of_multisets([*rest, law]).values()]) for law in laws]
        for one, other in permutations(every, 2):
            for i, epsilon in enumerate(epsilons):
                excess = float(np.maximum(one - math.exp(epsilon) * other, 0.0).sum())
                found[i] = max(found[i], excess)
    return found


def favouring(epsilon: float, values: int, favoured: Iterable[int]) -> Law:
    law = np.ones(values)
    law[list(favoured)] = math.exp(epsilon)
    return np.asarray(law / law.sum())


@pytest.mark.parametrize(
    ("values", "favoured", "reports"), [(4, 1, 6), (4, 2, 5), (6, 2, 3), (8, 1, 4), (8, 3, 2)]
)
@pytest.mark.parametrize("local", [0.5, 2.0])
def test_bound_holds_for_all_multisets(
    values: int, favoured: int, reports: int, local: float
) -> None:
    sets = list(combinations(range(values), favoured))
    # All sets that differ but for the values' names, and so many that three can be disjoint.
    chosen = sets if len(sets) <= 8 else sets[:: len(sets) // 6]
    laws = [favouring(local, values, one) for one in chosen]
    round_ = codewords(local, favoured, reports, values)
    epsilons = (0.0, local / 4, local / 2, 0.9 * local)
    for epsilon, exact in zip(epsilons, worst_deltas(laws, reports, epsilons), strict=True):
        assert exact <= round_.delta(epsilon)
        assert exact >= 0.4 * (round_.delta(epsilon) - 1e-12)


@pytest.mark.parametrize("reports", [1, 2, 4])
def test_the_best_test_is_that_of_enumeration(reports: int) -> None:
    laws = [favouring(2.0, 6, one) for one in ((0, 1), (2, 3), (4, 5))]
    exact = exact_delta(laws[0], laws[1], [laws[2]] * (reports - 1), 1.0)
    round_ = codewords(2.0, 2, reports, 6)
    found = round_.attained(exact)
    assert found is not None
    assert found <= 1.0
    assert found == pytest.approx(1.0, abs=2e-3)


def laws_of(log_prob: Callable[[object, object], float], reports: list, inputs: list) -> list[Law]:  # type: ignore[type-arg]
    laws = [np.exp([log_prob(report, value) for report in reports]) for value in inputs]
    assert all(law.sum() == pytest.approx(1.0) for law in laws)
    return laws


def shipped(name: str) -> tuple[list[Law], tuple[FavouredPart, ...]]:
    """Return the laws of a shipped mechanism's inputs, from its log_prob, and its parts."""
    if name == "bit":
        bit = BinaryResponse(1.5)
        return laws_of(bit.log_prob, [0, 1], [0, 1]), (favoured_part(bit),)
    if name == "kary":
        kary = KaryResponse(1.5, 4)
        return laws_of(kary.log_prob, [*range(4)], [*range(4)]), (favoured_part(kary),)
    if name == "subset":
        subset = SubsetSelection(1.5, 4, size=2)
        sets = [a | b for a, b in combinations((1, 2, 4, 8), 2)]
        return laws_of(subset.log_prob, sets, [*range(4)]), (favoured_part(subset),)
    if name == "most":
        subset = SubsetSelection(1.5, 4, size=3)
        sets = [15 - 2**i for i in range(4)]
        return laws_of(subset.log_prob, sets, [*range(4)]), (favoured_part(subset),)
    updates = [np.array(u, dtype=np.float64) for u in ((3, -1, 1, 2), (-3, 1, 2, 1), (1, 3, -2, 0))]
    if name == "signds":
        signds = SignDS(1.5, 0.25, dim_out=1)
        drawn = [Selection(np.array([i]), s) for i in range(4) for s in (-1, 1)]
        return laws_of(signds.log_prob, drawn, updates), (favoured_part(signds, 4),)
    codeword = Codeword(1.5, favoured=2, rotations=1)
    drawn = [codeword.decode(bytes((1, i)), 4) for i in range(8)]
    laws = laws_of(codeword.log_prob, drawn, updates)
    if name == "codeword":
        return laws, (favoured_part(codeword, 4),)
    bit = BinaryResponse(0.7)
    bits = laws_of(bit.log_prob, [0, 1], [0, 1])
    return (
        [np.outer(law, own).ravel() for law in laws[:2] for own in bits],
        (favoured_part(codeword, 4), favoured_part(bit)),
    )


@pytest.mark.parametrize(
    "name", ["bit", "kary", "subset", "most", "signds", "codeword", "codeword and bit"]
)
@pytest.mark.parametrize("reports", [2, 3])
def test_bound_holds_for_the_shipped_mechanisms(name: str, reports: int) -> None:
    laws, parts = shipped(name)
    round_ = ShuffledReports(parts, reports)
    epsilons = (0.1, 0.6, 1.2)
    for epsilon, exact in zip(epsilons, worst_deltas(laws, reports, epsilons), strict=True):
        assert exact <= round_.delta(epsilon) * (1 + 1e-9)
        assert exact >= 0.1 * round_.delta(epsilon)
        if exact > 0:
            assert round_.epsilon(exact) >= epsilon * (1 - 1e-9)
    # Without a crowd the bound is the mechanism's own.
    alone = ShuffledReports(parts, 1)
    assert worst_deltas(laws, 1, [0.6]) == pytest.approx([alone.delta(0.6)], rel=1e-4)


def test_a_part_that_all_favour_counts_for_less() -> None:
    apart, overlapping = FavouredPart(2.0, 0.3), FavouredPart(2.0, 0.3, 0.1)
    found = [ShuffledReports((part,), 500).epsilon(DELTA) for part in (overlapping, apart)]
    assert found[0] < 0.95 * found[1]


# Bits.


@pytest.mark.parametrize("reports", [1, 2, 5, 6])
@pytest.mark.parametrize("local", [0.5, 3.0])
def test_bits_are_exact(reports: int, local: float) -> None:
    laws = [favouring(local, 2, [0]), favouring(local, 2, [1])]
    round_ = ShuffledReports((FavouredPart(local, 0.5),), reports)
    epsilons = (local / 5, local / 2)
    for epsilon, exact in zip(epsilons, worst_deltas(laws, reports, epsilons), strict=True):
        found = round_.epsilon(exact)
        assert epsilon * (1 - 1e-9) <= found <= epsilon * (1 + 1e-4) + 1e-12


@pytest.mark.parametrize("local", [37.0, 50.0, 100.0])
def test_bits_of_a_large_epsilon_have_one(local: float) -> None:
    """Beside 1 the chance of the other bit is no double, and it is still no 0."""
    found = ShuffledReports((FavouredPart(local, 0.5),), 1_000).epsilon(1e-6)
    assert 0.9 * local < found <= local


def test_parts_beyond_doubles_have_the_local_epsilon() -> None:
    parts = FavouredPart(100.0, 0.1), FavouredPart(100.0, 0.5)
    assert ShuffledReports(parts, 2_000).epsilon(1e-6) == 200.0


def test_many_bits_are_those_of_polynomials() -> None:
    local, reports, delta = 1.0, 60, 1e-4
    keep = 1.0 / (1.0 + math.exp(-local))
    found = ShuffledReports((FavouredPart(local, 0.5),), reports).epsilon(delta)
    worst = 0.0
    for having in range(reports):
        laws = [np.array([1 - keep, keep])] * having + [np.array([keep, 1 - keep])] * (
            reports - 1 - having
        )
        counts = np.array([1.0])
        for law in laws:
            counts = np.convolve(counts, law)
        one, none = np.convolve(counts, [1 - keep, keep]), np.convolve(counts, [keep, 1 - keep])
        worst = max(worst, float(np.maximum(one - math.exp(found) * none, 0.0).sum()))
    assert 0.999 * delta <= worst <= delta


@pytest.mark.parametrize(("local", "reports"), [(1.0, 1_000), (2.0, 1_000), (0.5, 300)])
def test_the_blanket_is_loose_for_bits(local: float, reports: int) -> None:
    exact = ShuffledReports((FavouredPart(local, 0.5),), reports).epsilon(DELTA)
    blanket = bound_of(local, reports, DELTA)
    assert 1.05 < blanket / exact < 1.3


# Draws.


@pytest.mark.parametrize("epsilon", [0.0, 0.1])
def test_delta_is_that_of_drawn_rounds(epsilon: float) -> None:
    """The best test with all others on a third set, in drawn rounds; it fails once in a million."""
    local, favoured, reports, draws = 4.0, 1_004, 2_000, 600_000
    grown = math.exp(local)
    rng = np.random.default_rng(20_261_128)

    def law(weights: Sequence[float]) -> Law:
        found = np.array([favoured] * 3 + [M - 3 * favoured]) * np.array(weights)
        return np.asarray(found / found.sum())

    def counts(own: Sequence[float]) -> np.ndarray:  # type: ignore[type-arg]
        others = rng.multinomial(reports - 1, law((1, 1, grown, 1)), size=draws)
        return np.asarray(others + rng.multinomial(1, law(own), size=draws))

    ratios = np.array([grown, 1, 1 / grown, 1]) - math.exp(epsilon) * np.array(
        [1, grown, 1 / grown, 1]
    )
    hits = [
        float((counts(own) @ ratios > 0).mean()) for own in ((grown, 1, 1, 1), (1, grown, 1, 1))
    ]
    drawn = hits[0] - math.exp(epsilon) * hits[1]
    # Hoeffding's bound for both means, each with half of the millionth.
    radius = (1 + math.exp(epsilon)) * math.sqrt(math.log(4e6) / (2 * draws))
    bound = codewords(local, favoured, reports).delta(epsilon)
    assert bound > 3 * radius
    assert drawn - radius <= bound <= drawn + radius + 1e-3


# Any randomizer.


@pytest.mark.parametrize("seed", range(6))
def test_any_randomizer_is_no_worse_than_half_favoured(seed: int) -> None:
    rng = np.random.default_rng(seed)
    local, reports = 1.2, 4
    base = rng.dirichlet(np.ones(3))
    laws: list[Law] = []
    while len(laws) < 3:
        tilted = base * np.exp(local / 2 * rng.choice([-1.0, 1.0, rng.uniform(-1, 1)], 3))
        law = tilted / tilted.sum()
        if all(np.abs(np.log(law / other)).max() <= local for other in laws):
            laws.append(law)
    half = ShuffledReports((FavouredPart(local, 0.5),), reports)
    for epsilon, exact in zip((0.05, 0.3), worst_deltas(laws, reports, (0.05, 0.3)), strict=True):
        assert exact <= half.delta(epsilon)


def test_the_bound_for_any_randomizer_is_below_the_closed_form() -> None:
    """That of Feldman, McMillan and Talwar 2021, Theorem 3.1, which was used before."""
    for local, clients in ((1.0, 10**5), (4.0, 10**5), (1.0, 10**6)):
        growth = math.exp(local) / clients
        spread = 8.0 * math.sqrt(growth * math.log(4.0 / DELTA)) + 8.0 * growth
        closed = math.log1p(math.tanh(local / 2.0) * spread)
        assert bound_of(local, clients) < 0.7 * closed


def bound_of(epsilon: float, clients: int, delta: float = DELTA) -> float:
    found = shuffle_bound(epsilon, clients=clients, delta=delta)
    assert found is not None
    return found.epsilon


def test_shuffling_never_costs_more_than_the_report() -> None:
    for clients in (1, 2, 40):
        for epsilon in (1e-6, 0.1, 100.0):
            half = ShuffledReports((FavouredPart(epsilon, 0.5),), clients)
            assert half.epsilon(1e-9) <= epsilon


def test_no_bound_where_nothing_is_gained() -> None:
    for epsilon, clients, delta in ((0.5, 3, DELTA), (8.0, 100, 5e-324), (200.0, 10**6, DELTA)):
        assert shuffle_bound(epsilon, clients=clients, delta=delta) is None


def test_more_reports_larger_delta_or_smaller_epsilon_cost_less() -> None:
    by_reports = [bound_of(2.0, 10**k, DELTA) for k in (8, 4, 2)]
    by_delta = [bound_of(2.0, 10**4, 10.0**-k) for k in (2, 6, 10)]
    by_epsilon = [bound_of(k / 2, 10**4, DELTA) for k in (1, 3, 8)]
    for values in (by_reports, by_delta, by_epsilon):
        assert values == sorted(set(values))
    assert bound_of(2.0, 10**12, DELTA) == bound_of(2.0, MOST_REPORTS)


def test_the_text_says_the_condition() -> None:
    bound = shuffle_bound(1.0, clients=10**5, delta=DELTA)
    assert isinstance(bound, ShuffleBound)
    assert "ONLY IF a shuffler outside the server's control mixes 100,000 reports" in str(bound)
    assert "delta 1e-06" in str(bound)


# Sums.


@pytest.mark.parametrize("seed", range(8))
def test_sums_lie_between_both_bounds(seed: int) -> None:
    rng = np.random.default_rng(seed)
    masses, number = rng.dirichlet(np.ones(3)), int(rng.integers(1, 9))
    values = rng.normal(size=3) * 10.0 ** rng.uniform(-2, 3)
    values -= masses @ values + 0.2 * np.abs(values).max()
    sums, chances = np.zeros(1), np.ones(1)
    for _ in range(number):
        sums = np.add.outer(sums, values).ravel()
        chances = np.multiply.outer(chances, masses).ravel()
    exact = float(chances @ np.maximum(sums, 0.0))
    law = ExcessOfSum(values, masses, number, 1 << 16)
    slack = 1e-13 * float(np.abs(values).max())
    assert law.below() - slack <= exact <= law.above() + slack
    assert law.above() <= exact * (1 + 1e-3) + 1e-9 * float(np.abs(values).max())


# Several rounds.


@pytest.mark.parametrize(("rounds", "value"), [(1, 0.892), (2, 1.268), (5, 2.057), (10, 2.998)])
def test_figures_of_several_rounds(rounds: int, value: float) -> None:
    one = codewords(4.0, 1_004, 2_000)
    assert rounds_epsilon([(one, rounds)], DELTA) == pytest.approx(value, rel=1e-3)


def test_rounds_without_a_crowd_are_those_of_randomized_responses() -> None:
    pure = totals([PrivacyEvent("bit", 0.2, count=60)], delta=1e-5)[Unit.CLIENT].approximate
    assert pure is not None
    every = ShuffledReports((FavouredPart(0.2, 0.5),), 1)
    assert rounds_epsilon([(every, 60)], 1e-5) == pytest.approx(pure.epsilon, rel=2e-3)
    # Of values that neither input favours the loss is 0.
    some = ShuffledReports((FavouredPart(0.2, 0.2),), 1)
    assert rounds_epsilon([(some, 60)], 1e-5) < 0.8 * pure.epsilon


def test_two_rounds_of_few_are_bounded() -> None:
    laws, parts = shipped("kary")
    one = of_multisets([laws[2], laws[0]]), of_multisets([laws[2], laws[1]])
    first = np.multiply.outer([*one[0].values()], [*one[0].values()])
    second = np.multiply.outer([*one[1].values()], [*one[1].values()])
    for epsilon in (0.5, 1.5):
        exact = float(np.maximum(first - math.exp(epsilon) * second, 0.0).sum())
        assert rounds_epsilon([(ShuffledReports(parts, 2), 2)], exact) >= epsilon


def test_different_rounds_and_at_most_the_local_sum() -> None:
    small, large = codewords(4.0, 1_004, 2_000), codewords(3.0, 2_106, 10_000)
    both = rounds_epsilon([(small, 1), (large, 1)], DELTA)
    assert small.epsilon(DELTA) < both < small.epsilon(DELTA / 2) + large.epsilon(DELTA / 2)
    hopeless = codewords(4.0, 1_004, 2)
    assert rounds_epsilon([(hopeless, 3)], 1e-9) <= 12.0


@pytest.mark.parametrize("epsilon", [1e-9, 100.0])
def test_the_smallest_and_the_largest_local_epsilon(epsilon: float) -> None:
    for share in (0.01, 1 / 3):
        one = ShuffledReports((FavouredPart(epsilon, share),), 1_000)
        below, above = one.attained(DELTA), one.epsilon(DELTA)
        assert below is not None
        assert 0.0 <= below <= above <= epsilon
        assert rounds_epsilon([(one, 3)], DELTA) <= 3 * epsilon


def test_codewords_are_chosen_for_a_central_epsilon() -> None:
    found = codeword_for(2.0, 1_000, delta=DELTA, order=M // 2)
    central = codewords(found.epsilon, found.favoured, 1_000).epsilon(DELTA)
    assert 1.99 < central <= 2.0
    efficiency = found.plan(M // 2).efficiency
    assert efficiency > 1.3 * Codeword(4.0).plan(M // 2).efficiency
    for epsilon, favoured in ((4.5, 400), (5.5, 180), (4.2, 800)):
        if codewords(epsilon, favoured, 1_000).epsilon(DELTA) <= 2.0:
            assert Codeword(epsilon, favoured).plan(M // 2).efficiency < 1.03 * efficiency


# Arguments.

REFUSED: dict[str, tuple[str, list[object]]] = {
    "epsilon": (r"must be in \(0, inf\), got", [0.0, -1.0, math.inf, math.nan]),
    "clients": ("must be an integer in", [0, -1, 1.5, True, math.nan]),
    "delta": (r"must be in \(0, 1\), got", [0.0, 1.0, -1.0, math.nan]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_arguments_are_checked(name: str) -> None:
    text, values = REFUSED[name]
    for value in values:
        with pytest.raises(ValueError, match=f"{name} {text}.*{value}"):
            shuffle_bound(**{"epsilon": 1.0, "clients": 100, "delta": 0.1, name: value})  # type: ignore[arg-type]


def test_parts_and_rounds_are_checked() -> None:
    part = FavouredPart(1.0, 0.3)
    with pytest.raises(ValueError, match="overlap must be in"):
        FavouredPart(1.0, 0.3, 0.4)
    with pytest.raises(ValueError, match="share must be in"):
        FavouredPart(1.0, 1.0)
    with pytest.raises(ValueError, match="parts must hold at least one part"):
        ShuffledReports((), 10)
    with pytest.raises(ValueError, match="reports must be an integer in"):
        ShuffledReports((part,), 0)
    with pytest.raises(ValueError, match="codeword needs dimension"):
        favoured_part(Codeword(1.0))
    with pytest.raises(ValueError, match="number of rounds must be an integer in"):
        rounds_epsilon([(ShuffledReports((part,), 10), 0)], DELTA)
    assert ShuffledReports((FavouredPart(1.0, 0.4),), 10).attained(DELTA) is None
    assert ShuffledReports((part, part), 10).attained(DELTA) is None
    assert MOST_BITS < MOST_REPORTS
