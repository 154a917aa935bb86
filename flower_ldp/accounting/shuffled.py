r"""Central epsilon of shuffled reports, by the privacy blanket of the mechanism's own law.

n honest clients report once each, and a shuffler mixes the reports and drops who sent which.

**Relation**: replace-one; n is public. **Unit**: client. docs/shuffled.md has whom one must trust.

**Law.** A report is uniform on some values, but that each of those which the input *favours* is
:math:`E = e^{\epsilon_0}` times likelier. A report of several parts has their product law.

**Theorem** (Balle, Bell, Gascon, Nissim 2019, Lemma 5.3). Every report is uniform with a
probability :math:`\gamma`, the *blanket*, whatever the input. The shuffled reports have

.. math:: \delta(\epsilon) \le \frac{1}{n}\, E\Big[\sum_{i=1}^{n} X_i\Big]_+

for independent X, which are 0 with probability :math:`1 - \gamma` and else :math:`u - e^\epsilon
v`, u and v being the weights (E or 1) of a uniform value under the two inputs.

**Worst inputs** favour no common value. If they do, mass of X moves from :math:`E - e^\epsilon` and
:math:`1 - e^\epsilon E` inwards, to :math:`E (1 - e^\epsilon)` and :math:`1 - e^\epsilon`, of the
same sum. No mean of a convex function grows by that. The same holds for each part of a product.

**Any randomizer** that is :math:`\epsilon_0`-LDP is no worse than one with half of the values
favoured (docs/shuffled.md has the proof).

**Exactness**: the mean is rounded up (:mod:`.excess`). For the values in doubles :math:`10^{-14} (1
+ e^\epsilon)` is added to delta, above the mean of what they are off.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import product
from typing import Annotated

import numpy as np

from flower_ldp.accounting.excess import ExcessOfSum
from flower_ldp.accounting.loss_sums import Array
from flower_ldp.mechanisms import Codeword, SignDS
from flower_ldp.mechanisms.labels import SubsetSelection
from flower_ldp.mechanisms.randomized_response import BinaryResponse, KaryResponse
from flower_ldp.parameter_bounds import Bounded, check_fields, check_in, halved, least

#: More reports count as so many: the transform's error grows with them.
MOST_REPORTS = 10**8
#: Of more responses of one bit the blanket is the bound: the exact one would take seconds.
MOST_BITS = 4_096
_POINTS, _POINTS_BELOW = 1 << 16, 1 << 19
_PRECISION = 1e-5
_ROUNDED_VALUES = 1e-14
_LARGEST_EPSILON, _A_GAIN = 100.0, 0.99
# Binomials are cut where Hoeffding's bound is 2 e^-40; masses by lgamma are right to 1e-9.
_LOG_CUT, _ROUNDED_BITS = 40.0, 1e-9


@dataclass(frozen=True)
class FavouredPart:
    """Law of one part of a report.

    Parameters
    ----------
    epsilon : float
        Local, of this part; in (0, 100].
    share : float
        Part of all values that an input favours, in (0, 1): K / M for codewords.
    overlap : float
        Part of all values that any two inputs both favour, at least.
    """

    epsilon: Annotated[float, Bounded("(0, 100]")]
    share: Annotated[float, Bounded("(0, 1)")]
    overlap: float = 0.0

    def __post_init__(self) -> None:
        check_fields(self)
        check_in(f"[0, {self.share}]", "overlap", self.overlap)

    @property
    def log_blanket(self) -> float:
        """Logarithm of gamma."""
        return -math.log1p(self.share * math.expm1(self.epsilon))

    @property
    def weights(self) -> list[tuple[float, float, float]]:
        """Weights of a value under two inputs, and the part of all values that have these."""
        grown = math.exp(self.epsilon)
        own = min(self.share - self.overlap, 1.0 - self.share)
        both, neither = self.share - own, max(0.0, 1.0 - self.share - own)
        return [(grown, 1.0, own), (1.0, grown, own), (grown, grown, both), (1.0, 1.0, neither)]


@dataclass(frozen=True)
class ShuffledReports:
    """One round of shuffled reports.

    Parameters
    ----------
    parts : tuple of FavouredPart
        Of each report.
    reports : int
        n, of honest clients, the client's in question among them.

    Examples
    --------
    >>> codeword = FavouredPart(epsilon=4.0, share=1_004 / 16_384)
    >>> round(ShuffledReports((codeword,), reports=2_000).epsilon(delta=1e-6), 3)
    0.892
    """

    parts: tuple[FavouredPart, ...]
    reports: int

    def __post_init__(self) -> None:
        check_in("[1, inf)", "reports", self.reports, int)
        if not self.parts:
            raise ValueError("parts must hold at least one part")

    @property
    def local_epsilon(self) -> float:
        """Sum of the parts'."""
        return math.fsum(part.epsilon for part in self.parts)

    def delta(self, epsilon: float) -> float:
        """Return an upper bound on the delta at ``epsilon``, which is at least 0."""
        check_in("[0, inf)", "epsilon", epsilon)
        if epsilon >= self.local_epsilon:
            return 0.0
        if self.local_epsilon > _LARGEST_EPSILON:  # of weights that doubles do not hold
            return 1.0
        factor, number = math.exp(epsilon), min(self.reports, MOST_REPORTS)
        log_blanket = math.fsum(part.log_blanket for part in self.parts)
        values, masses = [0.0], [-math.expm1(log_blanket)]
        for weights in product(*(part.weights for part in self.parts)):
            of_one, of_other, shares = zip(*weights, strict=True)
            values.append(math.prod(of_one) - factor * math.prod(of_other))
            masses.append(math.exp(log_blanket) * math.prod(shares))
        found = ExcessOfSum(np.array(values), np.array(masses), number, _POINTS).above() / number
        return min(1.0, found + _ROUNDED_VALUES * (1.0 + factor))

    def epsilon(self, delta: float) -> float:
        """Return the least epsilon at ``delta``, in (0, 1), rounded up; at most the local one.

        Of bits alone, up to :data:`MOST_BITS`, it is the exact one and not the blanket's.
        """
        check_in("(0, 1)", "delta", delta)
        if len(self.parts) == 1 and self.parts[0].share == 0.5 and self.reports <= MOST_BITS:
            return _epsilon_of_bits(self.local_epsilon, self.reports, delta)
        return _least(lambda epsilon: self.delta(epsilon) <= delta, 0.0, self.local_epsilon)

    def attained(self, delta: float) -> float | None:
        """Return an epsilon, rounded down, that no valid bound at ``delta`` is below.

        It is that of the best test of two inputs where all other clients have a third one, and the
        three favour different values. None where this is not known to be possible: for several
        parts, a share above a third, or more reports than :data:`MOST_REPORTS`.
        """
        check_in("(0, 1)", "delta", delta)
        share = self.parts[0].share
        if len(self.parts) > 1 or share > 1.0 / 3.0 or self.reports > MOST_REPORTS:
            return None
        grown = math.exp(self.local_epsilon)
        masses = np.array([share, share, share * grown, max(0.0, 1.0 - 3.0 * share)])
        masses /= 1.0 + share * (grown - 1.0)

        def is_enough(epsilon: float) -> bool:
            factor = math.exp(epsilon)
            ratios = [grown - factor, 1.0 - factor * grown, (1.0 - factor) / grown, 1.0 - factor]
            found = ExcessOfSum(np.array(ratios), masses, self.reports, _POINTS_BELOW).below()
            return found / self.reports - _ROUNDED_VALUES * (1.0 + factor) <= delta

        above = self.epsilon(delta)
        for low in (above * (1.0 - 2.0**-8), above / 2.0):  # mostly it is little less
            if not is_enough(low):
                return halved(is_enough, low, above, 2.0 * _PRECISION)[0]
        return 0.0


def favoured_part(
    mechanism: Codeword | SignDS | BinaryResponse | KaryResponse | SubsetSelection,
    dimension: int | None = None,
) -> FavouredPart:
    """Return the law of a mechanism's report, of an update of ``dimension`` entries if of one.

    Of SignDS it is the selection's: its magnitude bit is another part.
    """
    epsilon = mechanism.epsilon
    if isinstance(mechanism, BinaryResponse):
        return FavouredPart(epsilon, 0.5)
    if isinstance(mechanism, KaryResponse):
        return FavouredPart(epsilon, 1.0 / mechanism.categories)
    if isinstance(mechanism, SubsetSelection):
        size, most = mechanism.size, mechanism.categories
        return FavouredPart(epsilon, size / most, size * (size - 1) / (most * (most - 1)))
    if dimension is None:
        raise ValueError(f"{mechanism.name} needs dimension, the number of entries of an update")
    if isinstance(mechanism, Codeword):
        code = mechanism.plan(dimension)
        return FavouredPart(epsilon, code.favoured / code.codewords)
    law = mechanism.plan(dimension, quiet=True).law
    favoured = Fraction(law.total - law.below, law.high)
    return FavouredPart(epsilon, float(favoured / (favoured + Fraction(law.below, law.low))))


@dataclass(frozen=True)
class ShuffleBound:
    """The cost of one report among shuffled ones: conditional on the shuffler.

    ``epsilon`` and ``delta`` are per client and round, towards whoever sees the shuffled reports
    only. ``clients`` is the number of reports shuffled together.
    """

    epsilon: float
    delta: float
    clients: int

    def __str__(self) -> str:
        return (
            f"epsilon {self.epsilon:.4g}, delta {self.delta:g} per client and round, ONLY IF a "
            f"shuffler outside the server's control mixes {self.clients:,} reports; Flower has none"
        )


@lru_cache(maxsize=64)
def shuffle_bound(epsilon: float, *, clients: int, delta: float) -> ShuffleBound | None:
    """Return the cost of one report of each of ``clients`` clients if they are shuffled.

    It holds for any randomizer, and for a report of several parts. None if less than a hundredth of
    epsilon is gained.

    Parameters
    ----------
    epsilon : float
        Of one client's whole report in the round (pure, local); finite and positive.
    clients : int
        Those whose reports are shuffled together, without any that drop out or help the server.
    delta : float
        Probability with which the bound may fail, in (0, 1).

    Raises
    ------
    ValueError
        If a parameter is outside its interval.
    """
    check_in("(0, inf)", "epsilon", epsilon)
    check_in("[1, inf)", "clients", clients, int)
    check_in("(0, 1)", "delta", delta)
    if epsilon > _LARGEST_EPSILON:
        return None
    half = ShuffledReports((FavouredPart(epsilon, 0.5),), clients)
    found = _least(lambda value: half.delta(value) <= delta, 0.0, epsilon)
    return ShuffleBound(found, delta, clients) if found < _A_GAIN * epsilon else None


def _least(enough: Callable[[float], bool], low: float, high: float) -> float:
    return low if enough(low) else least(enough, low, high, _PRECISION)


@lru_cache(maxsize=64)
def _epsilon_of_bits(local: float, reports: int, delta: float) -> float:
    """Return the epsilon of randomized responses of bits: the largest for all others' bits."""
    keep, flip = 1.0 / (1.0 + math.exp(-local)), 1.0 / (1.0 + math.exp(local))
    found = 0.0
    # The largest is mostly that of the first: all others have the bit of the one in question.
    for law in _counts_of_ones(reports - 1, keep, flip):
        more, same = np.append(0.0, law), np.append(law, 0.0)
        one, none = keep * more + flip * same, flip * more + keep * same

        def enough(epsilon: float, one: Array = one, none: Array = none) -> bool:
            excess = float(np.maximum(one - math.exp(epsilon) * none, 0.0).sum())
            return excess * (1.0 + _ROUNDED_BITS) + 4.0 * math.exp(-_LOG_CUT) <= delta

        found = _least(enough, found, local)
    return found


def _counts_of_ones(others: int, keep: float, flip: float) -> Iterator[Array]:
    """Yield the law of the number of ones that ``others`` report, for each number who have one."""
    logs = np.array([math.lgamma(i + 1.0) for i in range(others + 1)])

    def binomial(number: int, chance: float, rest: float) -> Array:
        reach, mean = math.sqrt(number * _LOG_CUT / 2.0), number * chance
        ones = np.arange(max(0, math.floor(mean - reach)), min(number, math.ceil(mean + reach)) + 1)
        exponents = logs[number] - logs[ones] - logs[number - ones]
        exponents += ones * math.log(chance) + (number - ones) * math.log(rest)
        return np.asarray(np.exp(exponents))

    for having in range(others, -1, -1):
        yield np.convolve(binomial(having, keep, flip), binomial(others - having, flip, keep))
