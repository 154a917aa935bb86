r"""Binary randomized response (Warner 1965).

A private bit is kept with probability :math:`e^\epsilon / (1 + e^\epsilon)` and flipped
otherwise.

**Theorem.** Two bits are neighbours if they differ. Each report has probability
:math:`e^\epsilon/(1+e^\epsilon)` under one and :math:`1/(1+e^\epsilon)` under the other:
a ratio of :math:`e^\epsilon`, so one release is epsilon-LDP and tight. The sampler
flips with a probability rounded *up* to a multiple of :math:`2^{-256}`, so the ratio
never exceeds :math:`e^\epsilon`.

**Invalid input.** What is neither 0 nor 1 is answered by a fair bit: either bit with probability
1/2, randomized, which is fair for any flip probability.

**Estimate.** With N reports of which C are ones and P the keeping probability,
:math:`(C - N (1 - P)) / (2P - 1)` is an unbiased estimate of the true number of ones,
with standard deviation :math:`\sqrt{N P (1-P)} / (2P - 1)`, whatever the true bits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flower_ldp.errors import quoted
from flower_ldp.mechanisms.inputs import INVALID, fill_labels, note, read_label, read_labels
from flower_ldp.mechanisms.random import RandomSource
from flower_ldp.mechanisms.sampling.exact import EXP_BITS, exp_lower
from flower_ldp.privacy import PrivacyEvent, Unit

_PROBABILITY_BITS = 256
_WORD_BITS = 64


@dataclass(frozen=True)
class BinaryResponse:
    """Randomized response on one bit.

    Parameters
    ----------
    epsilon : float
        Per release of one bit; in (0, 100].
    name : str
        What the events are called in a ledger.
    unit : Unit
        Whose bit it is.

    Raises
    ------
    ValueError
        If epsilon is outside its interval.

    Examples
    --------
    >>> from flower_ldp.mechanisms.random import RandomSource
    >>> BinaryResponse(epsilon=100.0).randomize(1, RandomSource.seeded(0))
    1
    """

    epsilon: float
    name: str = "binary_response"
    unit: Unit = Unit.CLIENT

    def __post_init__(self) -> None:
        if not 0 < self.epsilon <= 100:
            raise ValueError(f"epsilon must be in (0, 100], got {self.epsilon}")

    @cached_property
    def _flip_weight(self) -> int:
        """Flip probability in units of 2^-256, rounded up."""
        one = 1 << EXP_BITS
        return -(-(one << _PROBABILITY_BITS) // (one + exp_lower(self.epsilon)))

    @property
    def keep_probability(self) -> float:
        """P(report = bit), as a double."""
        return 1.0 / (1.0 + math.exp(-self.epsilon))

    @property
    def _gain(self) -> float:
        """2P - 1, without the cancellation that a small epsilon would bring."""
        return math.tanh(self.epsilon / 2.0)

    def events(self) -> tuple[PrivacyEvent, ...]:
        """Return the cost of one release: epsilon per unit."""
        return (PrivacyEvent(self.name, self.epsilon, unit=self.unit),)

    def randomize(self, value: int | None, rng: RandomSource) -> int:
        """Return a report of one bit; a fair bit for what is neither 0 nor 1."""
        bit = read_label(value, 2)
        if bit == INVALID:
            note(self.name, "the value is neither 0 nor 1")
            bit = rng.bits(1)
        flip = rng.bits(_PROBABILITY_BITS) < self._flip_weight
        return bit ^ int(flip)

    def randomize_array(self, values: ArrayLike, rng: RandomSource) -> NDArray[np.uint8]:
        """Return independent reports of many bits, each costing epsilon.

        Parameters
        ----------
        values : array_like of bool or integers, any shape
            Zeros and ones; other entries are answered by fair bits.

        Returns
        -------
        ndarray of uint8, same shape
        """
        bits = fill_labels(read_labels(values, 2, np.int8), 2, rng, self.name)
        head_weight = self._flip_weight >> (_PROBABILITY_BITS - _WORD_BITS)
        heads = rng.words(bits.size)
        flips = heads < np.uint64(head_weight)
        # The first 64 of 256 bits decide, but for ties, which the remaining ones settle.
        tail_bits = _PROBABILITY_BITS - _WORD_BITS
        tail_weight = self._flip_weight & ((1 << tail_bits) - 1)
        for i in np.flatnonzero(heads == np.uint64(head_weight)):
            flips[i] = rng.bits(tail_bits) < tail_weight
        return bits.astype(np.uint8) ^ flips.reshape(bits.shape).astype(np.uint8)

    def log_prob(self, report: int, value: int | None) -> float:
        """Return log P(report | value) of the sampler as built, roundings included.

        Raises
        ------
        ValueError
            If ``report`` is neither 0 nor 1.
        """
        if report not in (0, 1):
            raise ValueError(f"report must be 0 or 1, got {quoted(report)}")
        bit = read_label(value, 2)
        if bit == INVALID:
            return -math.log(2)
        whole = 1 << _PROBABILITY_BITS
        weight = whole - self._flip_weight if report == bit else self._flip_weight
        return math.log(weight) - math.log(whole)

    def estimate(self, ones: int, total: int) -> float:
        """Return an unbiased estimate of the true number of ones.

        Parameters
        ----------
        ones, total : int
            Reports that are one, and reports in all.

        Raises
        ------
        ValueError
            If the counts are impossible.
        """
        if not 0 <= ones <= total:
            raise ValueError(f"ones must be in [0, {total}], got {ones}")
        return (ones - total * (1.0 - self.keep_probability)) / self._gain

    def standard_deviation(self, total: int) -> float:
        """Return the standard deviation of :meth:`estimate` over the noise."""
        keep = self.keep_probability
        return math.sqrt(total * keep * (1.0 - keep)) / self._gain
