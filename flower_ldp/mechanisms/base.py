r"""What every mechanism offers: a randomizer, its price, and the value of its reports.

A mechanism is a frozen dataclass of public parameters. ``randomize`` alone combines private data
and noise. ``events`` states the cost of a release. ``log_prob`` is the exact law of the sampler
where the output space is finite, so that tests enumerate it. ``estimate`` is the server's half and
sees reports only.

**Invalid input.** ``randomize`` answers every value: a refusal that depends on a private value is
an outcome that no epsilon covers. An unreadable value (NaN, another shape or dtype, an unknown
category) gets the mechanism's *neutral law*, a mixture of its laws for valid values, so the same
epsilon holds (:mod:`flower_ldp.mechanisms.inputs`). ``randomize(None, rng)`` is a neutral report
and ``log_prob(report, None)`` the neutral law. A public shape (dimension, number of records) is a
further argument; without it the value's own shape counts as public. A wrong public argument raises
ValueError.

**Efficiency.** The sum of N reports of clients that agree has with their direction the cosine

.. math:: \cos = \sqrt{\frac{x}{1 + x}}, \qquad x = \frac{N e}{d}

for an efficiency e of one report and d weights. This holds for a round and for the sum of all
steps of a run. Clients that differ have less, by the share that they have in common.

**Verdict.** :data:`GOOD_COSINE` and :data:`POOR_COSINE` come from runs on MNIST with 1,000 clients
that are asked once each and a linear head of 2,010 weights (96.3 % without privacy): cosines of
.89, .73, .48 and .27 gave 93, 88, 72 and 40 %.

**Noise.** Reports that are independent of the updates are uniform, and the square length of their
sum has a known mean and variance (:class:`NullDistribution`). The sum therefore shows by itself
whether it is more than noise; this is post-processing.
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
    """Two inputs of an audit, and the statistic that distinguishes their reports.

    Parameters
    ----------
    check : str
        What is tried, in a few words.
    pair : tuple of two values
        Neighbouring inputs.
    statistic : callable
        Maps a sequence of reports to as many scores.
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
        """Return a contrast by the exact log-ratio of the reports' probabilities.

        A report that the law refuses is an outcome by itself.
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
    """A randomizer of updates, with the bytes of its reports; the base of frozen dataclasses.

    The fields are the public parameters that a proposal states. Proposals, releases and strategies
    know nothing else of a mechanism.
    """

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
        """Return the contrasts of an audit.

        By default an update without equal entries against its negative, and against zeros. A
        mechanism overrides this if its law separates others more, or if a quicker score exists.
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
        """Raise WireError ``"version"`` or ``"length"`` unless bytes have those of a report."""
        check_report_length(data, self.report_length(dimension))

    def total(self, reports: Iterable[Any], dimension: int) -> NDArray[Any]:
        """Return the sum of decoded reports, shape (d,); zeros for none."""
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
    """Return a parameter of exactly this type; raise WireError otherwise.

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

    With N reports :math:`e_i` of square length l the sum S has :math:`|S|^2 = N l + \sum_{i \ne j}
    \langle e_i, e_j \rangle`. The products have mean 0, since signs are fair, and mean square q.
    Pairs are uncorrelated, hence

    .. math:: E|S|^2 = N l, \qquad Var |S|^2 = 2 N (N - 1) q + N\,Var |e|^2.

    Parameters
    ----------
    square_length : float
        l, of one report.
    square_product : float
        q, mean square of the inner product of two reports.
    along : float
        Share of a mean report's square that lies along the update.
    square_spread : float
        Variance of a report's square length.
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
        """Return an unbiased estimate of x, the sum's signal over its noise along the update.

        It may be negative. For clients that differ it covers what they share.

        Parameters
        ----------
        square_of_sum : float
            Square length of the sum, in the units of a report.
        reports : int
            N, at least 1.
        """
        return self.along * self.beyond(square_of_sum, reports)

    def beyond(self, square_of_sum: float, reports: int) -> float:
        """Return the square of a sum beyond noise, over the noise, in all directions."""
        return square_of_sum / (reports * self.square_length) - 1.0


class UpdatePlan(ABC):
    """A mechanism's plan for one dimension, and the expected quality of sums of its reports."""

    #: d, entries of the update.
    dimension: int

    @property
    def summary(self) -> str:
        """The choice for the dimension, in words; empty if nothing was chosen."""
        return ""

    @property
    @abstractmethod
    def efficiency(self) -> float:
        """Number of weights whose noise one report outweighs."""

    @property
    @abstractmethod
    def null_distribution(self) -> NullDistribution:
        """Law of a sum of reports that are independent of the updates."""

    @property
    def bias(self) -> float:
        """Square of a whole run's reports across the update, over that along it."""
        return 0.0

    def cosine_of_sum(self, reports: int) -> float:
        """Return the expected cosine of a round's sum with its clients' direction."""
        return cosine_of(reports * self.efficiency / self.dimension)


def signal_of(cosine: float) -> float:
    """Return x, the signal over the noise in square length, of a cosine below 1."""
    return cosine**2 / (1.0 - cosine**2)


def cosine_of(signal: float, bias: float = 0.0) -> float:
    """Return the cosine of a signal x, sqrt(x / (1 + x)) without bias; 0 for none."""
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
