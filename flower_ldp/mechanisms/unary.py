r"""Symmetric unary encoding of embeddings: the randomizer of EmbeddingDP (MistNet, Wang 2020).

A record's embedding E of m numbers is quantized to the bits [E > 0]. Each bit is kept with
probability :math:`p = e^{\epsilon/2}/(e^{\epsilon/2}+1)`; a zero becomes one with
:math:`q = 1 - p` (basic RAPPOR; Erlingsson, Pihur, Korolova 2014).

**Theorem.** A bit's report has a ratio of at most :math:`p/q = e^{\epsilon/2}` between the
two values of the bit, and bits are drawn independently. Two records are neighbours if they
differ at all.

* One-hot records differ in two bits at most: one release of a record is epsilon-LDP.
* Arbitrary records may differ in all m bits: one release is :math:`m\epsilon/2`-LDP.

Both are tight (m of at least 2 for the first), and pure. The published texts call both
"epsilon"; :attr:`UnaryEncoding.record_epsilon` is the true figure. Releasing a record again
costs it again.

**What is fixed.** The theorem is about a record's embedding *with the function that computes
it held fixed*. If that function was trained on the records, docs/embedding.md says what is left.

**Estimate.** (b - q)/(p - q) is an unbiased estimate of a true bit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flower_ldp.mechanisms.random import RandomSource
from flower_ldp.mechanisms.randomized_response import BinaryResponse
from flower_ldp.privacy import PrivacyEvent, Unit

#: The most bits that an embedding may have.
MAX_BITS = 2**20


@dataclass(frozen=True)
class UnaryEncoding:
    """One-bit quantization and randomized response on every bit of an embedding.

    Parameters
    ----------
    epsilon : float or None
        The published label: in [0, 100]. 0 sends fair coins that say nothing; None
        quantizes and adds no noise, so it protects nothing.
    bits : int
        Length m of an embedding; in [1, 2^20].
    one_hot : bool
        Whether each record has exactly one positive entry. It is checked, and makes a
        release cost ``epsilon`` instead of ``bits * epsilon / 2``.
    name : str
        What the events are called in a ledger.

    Raises
    ------
    ValueError
        If a parameter is outside its interval.

    Examples
    --------
    >>> UnaryEncoding(epsilon=5.0, bits=128).record_epsilon
    320.0
    >>> UnaryEncoding(epsilon=5.0, bits=128, one_hot=True).record_epsilon
    5.0
    """

    epsilon: float | None
    bits: int
    one_hot: bool = False
    name: str = "embedding_dp"

    def __post_init__(self) -> None:
        if self.epsilon is not None and not 0 <= self.epsilon <= 100:
            raise ValueError(f"epsilon must be None or in [0, 100], got {self.epsilon}")
        if isinstance(self.bits, bool) or not isinstance(self.bits, int):
            raise TypeError(f"bits must be an integer, got {self.bits!r}")
        if not 1 <= self.bits <= MAX_BITS:
            raise ValueError(f"bits must be in [1, {MAX_BITS}], got {self.bits}")

    @property
    def record_epsilon(self) -> float:
        """Epsilon of one release of one record; infinite without noise."""
        if self.epsilon is None:
            return math.inf
        return self.epsilon if self.one_hot else self.bits * self.epsilon / 2

    @property
    def keep_probability(self) -> float:
        """The probability p with which a bit is kept; 1 without noise."""
        return 1.0 if self.epsilon is None else 1.0 / (1.0 + math.exp(-self.epsilon / 2))

    def events(self) -> tuple[PrivacyEvent, ...]:
        """Return the cost of one release of one record; empty at epsilon 0, which tells nothing.

        Raises
        ------
        ValueError
            Without noise (epsilon None): no epsilon bounds what that tells.
        """
        if self.epsilon is None:
            raise ValueError("quantization alone (epsilon None) has no privacy guarantee")
        if self.epsilon == 0:
            return ()
        return (PrivacyEvent(self.name, self.record_epsilon, unit=Unit.EXAMPLE),)

    def quantize(self, values: ArrayLike) -> NDArray[np.uint8]:
        """Return the bits [E > 0] of one record or of many, without noise.

        Parameters
        ----------
        values : array_like of real numbers, shape (bits,) or (n, bits)
            Never changed. Infinities count by their sign.

        Returns
        -------
        ndarray of uint8, same shape

        Raises
        ------
        ValueError
            If the shape or kind is another, an entry is NaN, or a record is not one-hot
            where that was promised.
        """
        found = np.asarray(values)
        if found.dtype.kind not in "biuf":
            raise ValueError(f"values must be real numbers, got dtype {found.dtype}")
        if found.ndim not in (1, 2) or found.shape[-1] != self.bits:
            raise ValueError(
                f"values must have shape ({self.bits},) or (n, {self.bits}), got {found.shape}"
            )
        # NaN > 0 is false: it would pass for a zero.
        if found.dtype.kind == "f" and np.isnan(found).any():
            raise ValueError("values must not hold NaN")
        bits = (found > 0).astype(np.uint8)
        if self.one_hot and not (bits.sum(axis=-1, dtype=np.int64) == 1).all():
            raise ValueError("every record must be one-hot: exactly one positive entry")
        return bits

    def randomize(self, values: ArrayLike, rng: RandomSource) -> NDArray[np.uint8]:
        """Return the randomized bits of one record or of many; see :meth:`quantize`."""
        bits = self.quantize(values)
        if self.epsilon is None:
            return bits
        if self.epsilon == 0:
            coins = np.frombuffer(rng.random_bytes(bits.size), dtype=np.uint8) & 1
            return np.asarray(coins.reshape(bits.shape), dtype=np.uint8)
        return BinaryResponse(self.epsilon / 2).randomize_array(bits, rng)

    def log_prob(self, report: ArrayLike, value: ArrayLike) -> float:
        """Return log P(report | value) of the sampler as built, over all records given.

        Raises
        ------
        ValueError
            If the two have no common shape, or are not what :meth:`randomize` takes and gives.
        """
        bits, told = self.quantize(value), self._reported(report)
        if bits.shape != told.shape:
            raise ValueError(f"report has shape {told.shape}, value {bits.shape}")
        changed = int((bits != told).sum())
        if self.epsilon is None:
            return 0.0 if changed == 0 else -math.inf
        if self.epsilon == 0:
            return -bits.size * math.log(2)
        response = BinaryResponse(self.epsilon / 2)
        kept = (bits.size - changed) * response.log_prob(1, 1)
        return kept + changed * response.log_prob(1, 0)

    def estimate(self, reports: ArrayLike) -> NDArray[np.float64]:
        """Return unbiased estimates of the true bits, shape as the reports.

        Raises
        ------
        ValueError
            If epsilon is 0, when reports say nothing; or a report is not of zeros and ones.
        """
        told = self._reported(reports)
        if self.epsilon is None:
            return told.astype(np.float64)
        if self.epsilon == 0:
            raise ValueError("at epsilon 0 reports say nothing about the bits")
        # p - q and q, without the cancellation that a small or large epsilon would bring
        gain = math.tanh(self.epsilon / 4)
        flip = 1.0 / (1.0 + math.exp(self.epsilon / 2))
        return np.asarray((told - flip) / gain)

    def _reported(self, reports: ArrayLike) -> NDArray[np.uint8]:
        told = np.asarray(reports)
        if told.ndim not in (1, 2) or told.shape[-1] != self.bits:
            raise ValueError(
                f"reports must have shape ({self.bits},) or (n, {self.bits}), got {told.shape}"
            )
        if told.dtype.kind not in "biu" or not np.isin(told, (0, 1)).all():
            raise ValueError("reports must be zeros and ones")
        return told.astype(np.uint8)
