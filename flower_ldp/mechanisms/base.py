r"""What every mechanism offers: a randomizer and its price.

A mechanism is a frozen dataclass of public parameters. Its ``randomize`` is the only
place where private data and noise meet; ``events`` states the cost of one release
without asking an accountant; where the output space is finite, ``log_prob`` gives the
exact law of the sampler, so that privacy is tested by enumeration and not by faith.

``randomize`` answers **every** value, since a refusal that depends on a private value is an
outcome that no epsilon counts. What cannot be read (NaN, another shape or dtype, a category that
there is not) is answered by the mechanism's *neutral law*, which each module states: a mixture
of its laws for valid values, so the same epsilon holds (:mod:`flower_ldp.mechanisms.inputs`).
None is never a valid value, so ``randomize(None, rng)`` is a neutral report and
``log_prob(report, None)`` the neutral law. Where a value's public shape is not among the
parameters (an update's dimension, the number of records), it is a further argument; without it the
shape of the value is taken for public. What is public (parameters, a dimension, a prior, a
report) is not private, and raises ValueError where it is wrong.

The server's half is called ``estimate``, and it sees reports only.

What a mechanism that randomizes a whole update offers: its law, its bytes, its parameters.

One class is all that proposals, releases and strategies know of a mechanism. Its public parameters
are the fields of a frozen dataclass; a proposal states them under these names.

What sums of private reports are worth: how far they point along what clients have in common.

**Efficiency.** The sum of N reports of clients that agree has with their direction about the cosine

.. math:: \cos = \sqrt{\frac{x}{1 + x}}, \qquad x = \frac{N e}{d},

e being the *efficiency* of a report, the number of weights whose noise it outweighs, and d the
number of weights. It holds for a round and for a run, whose steps all together are the sum of all
its reports. Clients that differ have less, by the share that they have in common.

**Verdict.** :data:`GOOD_COSINE` and :data:`POOR_COSINE` are drawn from runs on MNIST, 1,000 clients
that are asked once each, a linear head of 2,010 weights, which has 96.3 % without privacy: cosines
of .89, .73, .48 and .27 gave 93, 88, 72 and 40 %; .66 with 10,000 clients at an epsilon of 1 gave
64 %; and LeNet-5 with 100 clients at 8, whose cosine is .11, learns nothing.

**Noise.** Reports that say nothing of an update are uniform, and the square length of their sum has
a known mean and variance (:class:`NullDistribution`). So the sum itself tells whether it is more
than noise, at no cost in privacy: it is post-processing.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import Field, dataclass, fields
from enum import Enum
from functools import cache
from typing import Any, ClassVar, Generic, Self, TypeVar, get_type_hints

import numpy as np
from numpy.typing import NDArray

from flower_ldp.errors import WireError, quoted
from flower_ldp.mechanisms.random import Floats, RandomSource
from flower_ldp.parameter_bounds import Checked
from flower_ldp.privacy import PrivacyEvent, Unit

ValueT = TypeVar("ValueT", contravariant=True)
ReportT = TypeVar("ReportT")


class Mechanism(Checked, ABC, Generic[ValueT, ReportT]):
    """A local randomizer with an exactly known law; the base of frozen dataclasses."""

    epsilon: Any
    #: What ledgers and policies call it.
    name: str
    #: Whose value it is.
    unit: Unit = Unit.CLIENT

    def events(self) -> tuple[PrivacyEvent, ...]:
        """Return what one release costs one client: by default epsilon."""
        return (PrivacyEvent(self.name, self.epsilon, unit=self.unit),)

    @abstractmethod
    def randomize(self, value: ValueT, rng: RandomSource) -> ReportT:
        """Return a private report of ``value``, whatever it is; never raise because of it."""

    @abstractmethod
    def log_prob(self, report: ReportT, value: ValueT) -> float:
        """Return the natural logarithm of P(report | value); any value has a law."""


@dataclass(frozen=True)
class Contrast:
    """Two inputs of an audit, and the statistic that tells their reports apart.

    Parameters
    ----------
    check : str
        What is tried, in a few words.
    pair : tuple of two values
        Neighbouring inputs.
    statistic : callable
        Reports to scores: a sequence to as many numbers.
    label : str
        What a score is.
    """

    check: str
    pair: tuple[Any, Any]
    statistic: Callable[[Sequence[Any]], Any]
    label: str

    @classmethod
    def exact(
        cls, check: str, pair: tuple[Any, Any], log_prob: Callable[[Any, Any], float]
    ) -> Contrast:
        """Return a contrast by the exact logarithm of reports' ratio of probabilities.

        Each report is looked up once. One that the law refuses is an outcome by itself.
        """
        known: dict[object, float] = {}

        def score(report: Any) -> float:
            try:
                first, second = (log_prob(report, value) for value in pair)
            except ValueError:
                return NO_REPORT
            # Rounded: what has one ratio has one score. Impossible under both, it has none.
            return 0.0 if first == second else round(first - second, 9)

        def scores(reports: Sequence[Any]) -> Floats:
            keys = [one.tobytes() if isinstance(one, np.ndarray) else one for one in reports]
            for key, report in zip(keys, reports, strict=True):
                if key not in known:
                    known[key] = score(report)
            return np.array([known[key] for key in keys])

        return cls(check, pair, scores, "log-ratio")


#: A score above that of each report: of what is none.
NO_REPORT = 1e6
#: The first byte of each report of an update.
REPORT_VERSION = 1
Parameter = int | float | str


class UpdateMechanism(Mechanism[object, Any]):
    """A randomizer of updates, with the bytes of its reports; the base of frozen dataclasses."""

    #: Parameters that a proposal leaves out where they have their default.
    left_out: ClassVar[frozenset[str]] = frozenset()
    #: The parameter that a mechanism may leave open, and a proposal may not.
    stated: ClassVar[str] = ""

    @abstractmethod
    def randomize(self, value: object, rng: RandomSource, dimension: int | None = None) -> Any:
        """Return a private report of an update of ``dimension`` entries, whatever it is."""

    @abstractmethod
    def log_prob(self, report: Any, value: object, dimension: int | None = None) -> float:
        """Return the natural logarithm of P(report | value); any value has a law.

        Raises
        ------
        ValueError
            If ``report`` is none of this mechanism.
        """

    def audit_pairs(self, dimension: int) -> tuple[Contrast, ...]:
        """Return what an audit tries: updates that are far apart, with what tells them apart.

        By default an update without equal entries against its negative, and against zeros. A
        mechanism whose law separates others more, or knows a quicker score, has its own.
        """
        slope = np.sqrt(np.arange(1.0, dimension + 1.0)).astype(np.float32)
        pairs = {"opposite directions": (slope, -slope), "zeros": (np.zeros_like(slope), slope)}
        return tuple(Contrast.exact(check, pair, self.log_prob) for check, pair in pairs.items())

    @abstractmethod
    def report_length(self, dimension: int) -> int:
        """Return the number of bytes of every report about ``dimension`` entries.

        Raises
        ------
        ValueError
            If no update of so many entries can be reported.
        """

    @abstractmethod
    def encode(self, report: Any, dimension: int) -> bytes:
        """Return the bytes of a report.

        Raises
        ------
        ValueError
            If it is none of this mechanism.
        """

    @abstractmethod
    def decode(self, data: bytes, dimension: int) -> Any:
        """Decode a report, strictly: encoding what is returned gives the same bytes.

        Raises
        ------
        WireError
            If no client can have sent these bytes.
        """

    def check_length(self, data: bytes, dimension: int) -> None:
        """Raise WireError unless bytes have the version and the length of a report.

        Raises
        ------
        WireError
            ``"version"`` or ``"length"``.
        """
        check_report_length(data, self.report_length(dimension))

    def total(self, reports: Iterable[Any], dimension: int) -> NDArray[Any]:
        """Return the sum of decoded reports, shape (d,); of none it is zeros.

        Reports are added as they come, so that any number of them needs no more memory.
        """
        found = np.zeros(dimension)
        for report in reports:
            found += report
        return found

    def parameters(self) -> dict[str, Parameter]:
        """Return what a proposal states.

        Raises
        ------
        ValueError
            If a parameter is open that a proposal states.
        """
        if self.stated and not getattr(self, self.stated):
            raise ValueError(f"a proposal states {self.stated}: use mechanism.sized(dimension)")
        found = {}
        for name, (field, kind) in _parameters(type(self)).items():
            value = getattr(self, field.name)
            if field.name not in self.left_out or value != field.default:
                found[name] = kind(value)
        return found

    @classmethod
    def of_parameters(cls, given: Mapping[str, object]) -> Self:
        """Return the mechanism that a proposal states, refusing anything unknown.

        Raises
        ------
        WireError
            ``"fields"`` for missing, unknown or ill-typed parameters.
        ValueError
            For values outside their intervals, and for an open parameter.
        """
        known = _parameters(cls)
        optional = {name for name, (field, _) in known.items() if field.name in cls.left_out}
        if known.keys() - optional != given.keys() - optional:
            raise WireError("fields", f"not a {cls.name} proposal: {quoted(sorted(given))}")
        values = {known[name][0].name: typed(given, name, known[name][1]) for name in given}
        if cls.stated and not values[cls.stated]:
            raise ValueError(f"{cls.stated} must be stated, got {values[cls.stated]}")
        return cls(**values)


def check_report_length(data: bytes, expected: int) -> None:
    """Raise WireError unless a report has this version and so many bytes."""
    if data and data[0] != REPORT_VERSION:
        raise WireError("version", f"version {data[0]}, expected {REPORT_VERSION}")
    if len(data) != expected:
        raise WireError("length", f"{len(data)} bytes, expected {expected}")


def typed(given: Mapping[str, object], name: str, kind: type[Any]) -> Any:
    """Return a parameter of the very type; raise WireError if it is of another.

    A bool is no integer here. A float may be of a subclass, as numpy's is.
    """
    value = given[name]
    right = isinstance(value, float) if kind is float else type(value) is kind
    if not right:
        raise WireError("fields", f"{name} must be of type {kind.__name__}, got {quoted(value)}")
    return value


@cache
def _parameters(kind: type[Any]) -> dict[str, tuple[Field[Any], type[Any]]]:
    """Return a mechanism's fields and their plain types by their names on the wire."""
    types = get_type_hints(kind)
    return {one.name.replace("_", "-"): (one, types[one.name]) for one in fields(kind)}


#: From this cosine of a run on most of the accuracy is there: 88 % of 96 at .73.
GOOD_COSINE = 0.7
#: Below this cosine most of it is lost: 72 % at .48, 40 % at .27, nothing at .11.
POOR_COSINE = 0.35


class Verdict(Enum):
    """What a run can be expected to learn."""

    GOOD = "good"
    POOR = "poor"
    HOPELESS = "hopeless"

    @classmethod
    def of(cls, cosine: float) -> Verdict:
        """Return the verdict on a run whose steps together have that cosine."""
        if cosine >= GOOD_COSINE:
            return cls.GOOD
        return cls.POOR if cosine >= POOR_COSINE else cls.HOPELESS


@dataclass(frozen=True)
class NullDistribution:
    r"""The square length of a sum of uniform reports, whose products are uncorrelated.

    With N reports :math:`e_i` of square length l the sum S has
    :math:`|S|^2 = N l + \sum_{i \ne j} \langle e_i, e_j \rangle`. The products have mean 0,
    since signs are fair, and mean square q. Pairs are uncorrelated, so

    .. math:: E|S|^2 = N l, \qquad Var |S|^2 = 2 N (N - 1) q + N\,Var |e|^2.

    Parameters
    ----------
    square_length : float
        l, of one report.
    square_product : float
        q, mean square of the inner product of two.
    along : float
        Share of the square of a mean report that lies along the update; the rest leans away.
    square_spread : float
        Variance of a report's square length; 0 where all are as long.
    """

    square_length: float
    square_product: float
    along: float = 1.0
    square_spread: float = 0.0

    def deviation(self, reports: int) -> float:
        """Return the standard deviation of :meth:`signal` if there is none."""
        products = 2.0 * self.square_product * (1.0 - 1.0 / reports)
        spread = math.sqrt(products + self.square_spread / reports)
        return self.along * spread / self.square_length

    def signal(self, square_of_sum: float, reports: int) -> float:
        """Return an estimate of x: what the sum has beyond noise, along the update, over the noise.

        Unbiased, so it may be negative; of clients that differ it is that of what they share.

        Parameters
        ----------
        square_of_sum : float
            Square length of the sum, in the units of a report.
        reports : int
            N, at least 1.
        """
        return self.along * self.beyond(square_of_sum, reports)

    def beyond(self, square_of_sum: float, reports: int) -> float:
        """Return what the square of a sum has beyond noise, over the noise, along or not."""
        return square_of_sum / (reports * self.square_length) - 1.0


class UpdatePlan(ABC):
    """What a mechanism's plan for one dimension says of sums of its reports."""

    #: d, entries of the update.
    dimension: int

    @property
    def summary(self) -> str:
        """What was chosen for the dimension, in words; empty where nothing was."""
        return ""

    @property
    @abstractmethod
    def efficiency(self) -> float:
        """How many weights' worth a report is."""

    @property
    @abstractmethod
    def null_distribution(self) -> NullDistribution:
        """The law of a sum of reports that say nothing."""

    @property
    def bias(self) -> float:
        """What reports of a whole run lean away, in square length over what lies along."""
        return 0.0

    def cosine_of_sum(self, reports: int) -> float:
        """Return the expected cosine of a round's sum with its clients' direction."""
        return cosine_of(reports * self.efficiency / self.dimension)


def signal_of(cosine: float) -> float:
    """Return x, the signal over the noise in square length, of a cosine below 1."""
    return cosine**2 / (1.0 - cosine**2)


def cosine_of(signal: float, bias: float = 0.0) -> float:
    """Return the cosine that a signal x has, sqrt(x / (1 + x)) if it leans nowhere; 0 for none."""
    signal = max(signal, 0.0)
    return math.sqrt(signal / (1.0 + signal * (1.0 + bias)))


def run_cosine(plan: UpdatePlan, reports: int) -> float:
    """Return the expected cosine of a run's steps together with its clients' direction.

    Parameters
    ----------
    plan : UpdatePlan
        Of a report.
    reports : int
        Of all rounds together; at least 0.
    """
    return cosine_of(reports * plan.efficiency / plan.dimension, plan.bias)
