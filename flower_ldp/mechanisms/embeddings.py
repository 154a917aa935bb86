r"""Embeddings of records: randomized bits, one code, and a claim about the bottom model.

**Unary encoding** (EmbeddingDP; MistNet, Wang 2020; basic RAPPOR, Erlingsson, Pihur, Korolova 2014)
quantizes an embedding E of m numbers to the bits [E > 0]. Each bit is kept with probability
:math:`p = e^{\epsilon/2}/(e^{\epsilon/2}+1)`. **Codes**: a party's model scores each of k codes,
and the code of the largest score goes through k-ary response
(:mod:`~flower_ldp.mechanisms.randomized_response`).

**Relation**: any two records, with the function that computes the embedding *held fixed*. If it was
trained on the records, :class:`BottomModelClaim` and docs/embedding.md say what remains.

**Unit**: one release of one record; a second release costs it again.

**Guarantee**, pure and tight: :math:`m\epsilon/2`-LDP for bits of arbitrary records (published as
"epsilon"; :attr:`UnaryEncoding.record_epsilon` is the true figure); epsilon-LDP for bits of one-hot
records, m at least 2, and for a code.

**Proof**: a bit's report has a ratio of at most :math:`p/(1-p) = e^{\epsilon/2}` between the bit's
values, and bits are independent. Arbitrary records differ in up to m bits, one-hot ones in two. A
code is the response to one of k values.

**Exactness**: half of epsilon is rounded down and a record's figure up, so the odds of all its bits
together never exceed e to the figure.

**Invalid input**: an entry that is no number gets a fair bit, randomized. A record that is not
one-hot where this was promised counts as one with a uniform place (m fair bits would agree with a
one-hot record too seldom). A record without readable scores gets a uniform code.
"""

import math
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Annotated, Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flower_ldp.errors import quoted
from flower_ldp.mechanisms.base import Mechanism, NoProtectionWarning
from flower_ldp.mechanisms.inputs import INVALID, check_labels, fill_labels, note, read_records
from flower_ldp.mechanisms.random import Bools, Floats, Ints, RandomSource, uniform
from flower_ldp.mechanisms.randomized_response import BinaryResponse, KaryResponse
from flower_ldp.parameter_bounds import Bounded, check_in
from flower_ldp.privacy import CONDITIONAL_SUFFIX, PrivacyEvent, Unit, as_fraction, double_at_least

MAX_BITS = 2**20
#: The largest label that noise is made for; a bit keeps its value but for 1 in 10^21.
MOST_LABEL = 100.0


def double_at_most(exact: Fraction) -> float:
    """Return the largest double, at least 0, whose printed decimal is at most ``exact``."""
    return abs(double_at_least(-exact))


@dataclass(frozen=True)
class UnaryEncoding(Mechanism[object, Any]):
    """One-bit quantization and randomized response on every bit of an embedding.

    Parameters
    ----------
    epsilon : float or None
        The published label: in [0, 100]. 0 sends fair coins; None quantizes without noise and
        protects nothing.
    bits : int
        Length m of an embedding; in [1, 2^20].
    one_hot : bool
        Whether each record has exactly one positive entry. A release then costs ``epsilon``; any
        other record is invalid.

    Examples
    --------
    >>> UnaryEncoding(epsilon=5.0, bits=128).record_epsilon
    320.0
    >>> UnaryEncoding(epsilon=5.0, bits=128, one_hot=True).record_epsilon
    5.0
    """

    epsilon: Annotated[float | None, Bounded(f"[0, {MOST_LABEL:g}]")]
    bits: Annotated[int, Bounded(f"[1, {MAX_BITS}]")]
    one_hot: bool = False
    name: str = "embedding_dp"

    @classmethod
    def from_published(cls, epsilon: float | None, bits: int, one_hot: bool = False) -> Self:
        """Return the randomizer for any label, in [0, inf): above 100 with the noise of 100.

        Warns
        -----
        NoProtectionWarning
            Above 100.
        """
        if epsilon is not None:
            check_in("[0, inf)", "epsilon", epsilon)
        if epsilon is not None and epsilon > MOST_LABEL:
            told = (
                f"epsilon {quoted(epsilon)} protects nothing: the noise is that of {MOST_LABEL:g}"
            )
            warnings.warn(told, NoProtectionWarning, stacklevel=2)
            epsilon = MOST_LABEL
        return cls(epsilon, bits, one_hot)

    @property
    def width(self) -> int:
        """Length of an embedding."""
        return self.bits

    @property
    def entries(self) -> str:
        """The kind of an embedding's entries, in words."""
        return "bits, one-hot" if self.one_hot else "bits"

    @property
    def record_epsilon(self) -> float:
        """Epsilon of one release of one record; infinite without noise."""
        if self.epsilon is None:
            return math.inf
        if self.one_hot:
            return self.epsilon
        return double_at_least(self.bits * as_fraction(self.epsilon) / 2)

    @property
    def bit_epsilon(self) -> float:
        """Half of ``epsilon``, rounded down; infinite without noise."""
        return math.inf if self.epsilon is None else double_at_most(as_fraction(self.epsilon) / 2)

    @property
    def keep_probability(self) -> float:
        """The probability p; 1 without noise."""
        return 1.0 if self.epsilon is None else 1.0 / (1.0 + math.exp(-self.epsilon / 2))

    def events(self) -> tuple[PrivacyEvent, ...]:
        """Return the cost of one release of one record; empty at epsilon 0.

        Raises
        ------
        ValueError
            Without noise (epsilon None): no epsilon bounds the release.
        """
        if self.epsilon is None:
            raise ValueError("quantization alone (epsilon None) has no privacy guarantee")
        if self.epsilon == 0:
            return ()
        return (PrivacyEvent(self.name, self.record_epsilon, unit=Unit.EXAMPLE),)

    def unread(self, values: object) -> Bools:
        """Return which records have an unreadable bit, shape (n,). **Private**."""
        return np.asarray((self.quantize(values) == INVALID).any(axis=-1))

    def quantize(self, values: object, shape: tuple[int, ...] | None = None) -> NDArray[np.int8]:
        """Return the bits [E > 0], int8, and -1 where there is none. **Private**.

        A whole record is -1 if it breaks a promise of one-hot records.

        Parameters
        ----------
        values : array_like of real numbers, shape (bits,) or (n, bits)
            Infinities count by their sign; NaN has no bit.
        shape : tuple of int, optional
            The public shape of values and bits. By default the number of rows is public.
        """
        found, shape = read_records(values, self.bits, shape)
        if found is None:
            return np.full(shape, INVALID, dtype=np.int8)
        bits = (found > 0).astype(np.int8)
        # NaN > 0 is false: it would pass for a zero.
        bits[found != found] = INVALID
        if self.one_hot:
            good = (bits >= 0).all(axis=-1) & ((bits == 1).sum(axis=-1) == 1)
            bits[~good] = INVALID
        return bits

    def _filled(self, bits: NDArray[np.int8], rng: RandomSource) -> NDArray[np.int8]:
        if not self.one_hot:
            return fill_labels(bits, 2, rng, self.name)
        rows = bits.reshape(-1, self.bits)
        (wrong,) = np.nonzero(rows[:, 0] == INVALID)
        if len(wrong):
            note(self.name, f"{len(wrong)} of {len(rows)} records are not one-hot")
            rows[wrong] = 0
            rows[wrong, uniform(self.bits, len(wrong), rng)] = 1
        return bits

    def randomize(
        self, values: object, rng: RandomSource, shape: tuple[int, ...] | None = None
    ) -> NDArray[np.uint8]:
        """Return the randomized bits; see :meth:`quantize`."""
        bits = self._filled(self.quantize(values, shape), rng)
        if self.epsilon is None:
            return bits.astype(np.uint8)
        if self.bit_epsilon == 0:
            coins = np.frombuffer(rng.random_bytes(bits.size), dtype=np.uint8) & 1
            return np.asarray(coins.reshape(bits.shape), dtype=np.uint8)
        return BinaryResponse(self.bit_epsilon).randomize_array(bits, rng)

    def log_prob(self, report: ArrayLike, value: object) -> float:
        """Return log P(report | value) of all records."""
        reported = self._reported(report)
        bits = self.quantize(value, reported.shape)
        if self.one_hot:
            rows = zip(bits.reshape(-1, self.bits), reported.reshape(-1, self.bits), strict=True)
            return math.fsum(self._log_row(row, ones) for row, ones in rows)
        lost = int((bits == INVALID).sum())
        changed = int((bits != reported).sum()) - lost
        return self._log_law(changed, bits.size - lost) - lost * math.log(2)

    def _log_row(self, row: NDArray[np.int8], reported: NDArray[np.uint8]) -> float:
        if row[0] != INVALID:
            return self._log_law(int((row != reported).sum()), self.bits)
        ones = int(reported.sum())
        # A uniform place is one of the reported ones, or one of the other bits.
        within = self._log_law(ones - 1, self.bits) + math.log(ones) if ones else -math.inf
        rest = self.bits - ones
        without = self._log_law(ones + 1, self.bits) + math.log(rest) if rest else -math.inf
        return float(np.logaddexp(within, without)) - math.log(self.bits)

    def _log_law(self, changed: int, size: int) -> float:
        if self.epsilon is None:
            return 0.0 if changed == 0 else -math.inf
        if self.bit_epsilon == 0:
            return -size * math.log(2)
        response = BinaryResponse(self.bit_epsilon)
        kept = (size - changed) * response.log_prob(1, 1)
        return kept + changed * response.log_prob(1, 0)

    def estimate(self, reports: ArrayLike) -> Floats:
        """Return unbiased estimates of the true bits, shape as the reports.

        Raises
        ------
        ValueError
            If epsilon is 0 or almost 0, or a report is not of zeros and ones.
        """
        reported = self._reported(reports)
        if self.epsilon is None:
            return reported.astype(np.float64)
        # p - q and q, without the cancellation that a small or large epsilon would bring
        gain = math.tanh(self.epsilon / 4)
        if gain == 0:
            raise ValueError(f"at epsilon {self.epsilon:g} reports say nothing about the bits")
        flip = 1.0 / (1.0 + math.exp(self.epsilon / 2))
        return np.asarray((reported - flip) / gain)

    def _reported(self, reports: ArrayLike) -> NDArray[np.uint8]:
        reported = np.asarray(reports)
        if reported.ndim not in (1, 2) or reported.shape[-1] != self.bits:
            raise ValueError(f"reports must have {self.bits} bits, got shape {reported.shape}")
        if reported.dtype.kind not in "biu" or not np.isin(reported, (0, 1)).all():
            raise ValueError("reports must be zeros and ones")
        return reported.astype(np.uint8)


@dataclass(frozen=True)
class CodebookEmbedding(Mechanism[object, Any]):
    """k-ary randomized response on the code with the largest score.

    Parameters
    ----------
    epsilon : float
        Per release of one record; in (0, 100].
    codes : int
        Number of codes k; in [2, 2^16].

    Examples
    --------
    >>> CodebookEmbedding(epsilon=8.0, codes=10).record_epsilon
    8.0
    """

    epsilon: Annotated[float, Bounded("(0, 100]")]
    codes: Annotated[int, Bounded("[2, 65536]")]
    name: str = "codebook_embedding"
    unit = Unit.EXAMPLE
    #: A code needs no promise of one positive entry.
    one_hot = False

    @property
    def response(self) -> KaryResponse:
        """The randomizer of a code."""
        return KaryResponse(self.epsilon, self.codes, self.name, Unit.EXAMPLE)

    @property
    def width(self) -> int:
        """Length of an embedding."""
        return self.codes

    @property
    def entries(self) -> str:
        """The kind of an embedding's entries, in words."""
        return "codes"

    @property
    def record_epsilon(self) -> float:
        """Epsilon of one release of one record."""
        return self.epsilon

    def unread(self, scores: object) -> Bools:
        """Return which records have no readable code, shape (n,). **Private**."""
        return np.asarray(self.encode(scores) == INVALID)

    def encode(self, scores: object, shape: tuple[int, ...] | None = None) -> Ints:
        """Return the first code of the largest score, int64 of shape () or (n,). **Private**.

        Scores have the shape (codes,) or (n, codes); the public ``shape`` is as for
        :meth:`UnaryEncoding.quantize`. The code is -1 for a record without readable scores.
        """
        found, shape = read_records(scores, self.codes, shape)
        if found is None:
            return np.full(shape[:-1], INVALID, dtype=np.int64)
        missing = (found != found).any(axis=-1)
        return np.asarray(np.where(missing, INVALID, found.argmax(axis=-1)), dtype=np.int64)

    def randomize(
        self, values: object, rng: RandomSource, shape: tuple[int, ...] | None = None
    ) -> Ints:
        """Return the randomized codes; see :meth:`encode`."""
        return self.response.randomize_array(self.encode(values, shape), rng)

    def log_prob(self, report: ArrayLike, value: object) -> float:
        """Return log P(report | value) of all records."""
        reported = check_labels("report", report, self.codes)
        codes = self.encode(value, (*reported.shape, self.codes))
        response, lost = self.response, int((codes == INVALID).sum())
        kept = int((codes == reported).sum())
        law = kept * response.log_prob(0, 0) + lost * response.log_prob(0, None)
        return law + (codes.size - kept - lost) * response.log_prob(1, 0)

    def estimate(self, reports: ArrayLike) -> Floats:
        """Return unbiased estimates of the true codes as one-hot rows, float64.

        Reports have the shape (n,) or (). Each row adds up to 1.

        Raises
        ------
        ValueError
            If epsilon is almost 0, or a report names no code.
        """
        reported = check_labels("reports", reports, self.codes)
        truth = self.response.truth
        if truth == 0 or not math.isfinite(1.0 / truth):
            raise ValueError(f"at epsilon {self.epsilon:g} reports say nothing about the codes")
        return np.asarray((np.eye(self.codes)[reported] - (1.0 - truth) / self.codes) / truth)


def best_accuracy(epsilon: float, classes: int) -> float:
    """Return the best accuracy of any epsilon-LDP report of one of some equally likely classes.

    Raises
    ------
    ValueError
        If epsilon is negative or NaN, or there is less than one class.
    """
    check_in("[0, inf]", "epsilon", epsilon)
    check_in("[1, inf)", "classes", classes, int)
    return 1.0 / (1.0 + (classes - 1) * math.exp(-epsilon))


Kind = Literal["public", "dp", "conditional"]
KINDS: tuple[Kind, ...] = ("public", "dp", "conditional")

#: Names the event of a bottom's own private training.
TRAINING = "bottom_training"


@dataclass(frozen=True)
class BottomModelClaim:
    """A party's declaration about its bottom model, which nothing here can check.

    Parameters
    ----------
    kind : {"public", "dp", "conditional"}
        Trained on public data, or frozen at random; by DP-SGD on the records; or on the records in
        any other way, where epsilon holds *given the bottom* only.
    epsilon, delta : float
        Of a ``dp`` bottom's training: epsilon finite and positive, delta in (0, 1). They are added
        to those of the releases, so they must hold for **replace-one** neighbours. Accountants of
        DP-SGD mostly state add-or-remove-one, which is smaller for the same noise.

    Raises
    ------
    ValueError
        If the kind is unknown, or the amounts do not belong to it.
    """

    kind: Kind
    epsilon: float = 0.0
    delta: float = 0.0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {quoted(self.kind)}")
        if self.kind != "dp":
            if self.epsilon != 0 or self.delta != 0:
                raise ValueError("epsilon and delta are for kind 'dp' only")
            return
        check_in("(0, inf)", "epsilon", self.epsilon)
        check_in("(0, 1)", "delta", self.delta)

    def events(self, release: Iterable[PrivacyEvent]) -> tuple[PrivacyEvent, ...]:
        """Return the events of a release that states ``release``."""
        suffix = CONDITIONAL_SUFFIX if self.kind == "conditional" else ""
        return tuple(replace(event, mechanism=event.mechanism + suffix) for event in release)

    def training(self) -> tuple[PrivacyEvent, ...]:
        """Return the one-time cost of the bottom's training, for all records."""
        if self.kind != "dp":
            return ()
        return (PrivacyEvent(TRAINING, self.epsilon, self.delta, Unit.EXAMPLE),)

    @property
    def covers(self) -> str:
        """What the ledger's epsilon covers, in words for logs."""
        return {
            "public": "all that this party's embeddings tell about a record",
            "dp": f"all that this party's embeddings tell about a record, its training at "
            f"epsilon {self.epsilon:g}, delta {self.delta:g} included",
            "conditional": "what a record's own embedding tells, conditional on the bottom model: "
            "what its training on the records lets other embeddings tell is not covered",
        }[self.kind]
