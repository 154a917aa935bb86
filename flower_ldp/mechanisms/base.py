r"""What every mechanism offers: a randomizer, its price, and the value of its reports.

**Invalid input.** ``randomize`` answers every value: a refusal that depends on a private value is
an outcome that no epsilon covers. An unreadable value (NaN, another shape or dtype, an unknown
category) gets the *neutral law*, a mixture of the laws of valid values, so the same epsilon holds
(:mod:`flower_ldp.mechanisms.inputs`). ``randomize(None, rng)`` is a neutral report and
``log_prob(report, None)`` its law. A public shape (dimension, number of records) is a further
argument; without it the value's own shape counts as public. A wrong public argument raises
ValueError.

**Efficiency.** The sum of N reports of clients that agree has with their direction the cosine

.. math:: \cos = \sqrt{\frac{x}{1 + x}}, \qquad x = \frac{N e}{d}

for an efficiency e of one report and d weights, in a round as in all steps of a run. Clients that
differ have less.
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


class NoProtectionWarning(UserWarning):
    """An epsilon is so large that its guarantee says nothing."""


class Mechanism(Checked, ABC, Generic[ValueT, ReportT]):
    """A local randomizer with an exactly known law; the base of frozen dataclasses.

    A parameter outside its interval raises ValueError.
    """

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
        """Return a private report of ``value``; never raise because of it."""

    @abstractmethod
    def log_prob(self, report: ReportT, value: ValueT) -> float:
        """Return log P(report | value); any value has a law."""


@dataclass(frozen=True)
class Contrast:
    """Two neighbouring inputs of an audit, and the statistic that distinguishes their reports.

    ``statistic`` maps a sequence of reports to as many scores, which ``label`` names.
    """

    check: str
    pair: tuple[Any, Any]
    statistic: Callable[[Sequence[Any]], Any]
    label: str

    @classmethod
    def exact(
        cls, check: str, pair: tuple[Any, Any], log_prob: Callable[[Any, Any], float]
    ) -> Contrast:
        """Return a contrast by the log-ratio of probabilities; refused reports score alike."""
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

    Its fields are the public parameters that a proposal states.
    """

    #: Parameters that a proposal leaves out where they have their default.
    left_out: ClassVar[frozenset[str]] = frozenset()
    #: The parameter that a mechanism may leave open, and a proposal may not.
    stated: ClassVar[str] = ""

    @abstractmethod
    def randomize(self, value: object, rng: RandomSource, dimension: int | None = None) -> Any:
        """Return a private report of an update, an ndarray of floats of shape (d,).

        ``dimension`` is d, public; by default the number of entries.
        """

    @abstractmethod
    def log_prob(self, report: Any, value: object, dimension: int | None = None) -> float:
        """Return log P(report | value), or raise ValueError if ``report`` is none."""

    def audit_pairs(self, dimension: int) -> tuple[Contrast, ...]:
        """Return an audit's contrasts: by default an update against its negative and zeros.

        Overridden where a law separates others more, or a quicker score exists.
        """
        slope = np.sqrt(np.arange(1.0, dimension + 1.0)).astype(np.float32)
        pairs = {"opposite directions": (slope, -slope), "zeros": (np.zeros_like(slope), slope)}
        return tuple(Contrast.exact(check, pair, self.log_prob) for check, pair in pairs.items())

    @abstractmethod
    def report_length(self, dimension: int) -> int:
        """Return the bytes of every report, or raise ValueError where there is none."""

    @abstractmethod
    def encode(self, report: Any, dimension: int) -> bytes:
        """Return the bytes of a report, or raise ValueError if it is none."""

    @abstractmethod
    def decode(self, data: bytes, dimension: int) -> Any:
        """Decode a report; raise WireError if no client can have sent these bytes.

        Encoding what is returned gives the same bytes.
        """

    def check_length(self, data: bytes, dimension: int) -> None:
        """Raise WireError ``"version"`` or ``"length"`` for bytes of no report."""
        check_report_length(data, self.report_length(dimension))

    def total(self, reports: Iterable[Any], dimension: int) -> NDArray[Any]:
        """Return the sum of decoded reports, shape (d,); zeros for none."""
        found = np.zeros(dimension)
        for report in reports:
            found += report
        return found

    def parameters(self) -> dict[str, Parameter]:
        """Return the fields of a proposal; raise ValueError if one of them is open."""
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
        """Return the mechanism that a proposal states.

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
    """Raise WireError for another version or number of bytes."""
    if data and data[0] != REPORT_VERSION:
        raise WireError("version", f"version {data[0]}, expected {REPORT_VERSION}")
    if len(data) != expected:
        raise WireError("length", f"{len(data)} bytes, expected {expected}")


def typed(given: Mapping[str, object], name: str, kind: type[Any]) -> Any:
    """Return a parameter of exactly this type, or a subclass of float; else raise WireError."""
    value = given[name]
    right = isinstance(value, float) if kind is float else type(value) is kind
    if not right:
        raise WireError("fields", f"{name} must be of type {kind.__name__}, got {quoted(value)}")
    return value


@cache
def _parameters(kind: type[Any]) -> dict[str, tuple[Field[Any], type[Any]]]:
    types = get_type_hints(kind)
    return {one.name.replace("_", "-"): (one, types[one.name]) for one in fields(kind)}


#: From this cosine of a run on most of the accuracy is there: 88 % of 96 at .73.
GOOD_COSINE = 0.7
#: Below this cosine most of it is lost: 72 % at .48, 40 % at .27, nothing at .11.
POOR_COSINE = 0.35


class Verdict(Enum):
    """Forecast of what a run can learn."""

    GOOD = "good"
    POOR = "poor"
    UNCERTAIN = "uncertain"
    HOPELESS = "hopeless"

    @classmethod
    def of(cls, cosine: float) -> Verdict:
        """Return the verdict on a run."""
        if cosine >= GOOD_COSINE:
            return cls.GOOD
        return cls.POOR if cosine >= POOR_COSINE else cls.HOPELESS


@dataclass(frozen=True)
class NullDistribution:
    r"""The square length of a sum of uniform reports, such as those independent of the updates.

    For the sum S of N reports :math:`e_i` of square length l, whose products have mean 0 (signs are
    fair) and mean square q,

    .. math:: E|S|^2 = N l, \qquad Var |S|^2 = 2 N (N - 1) q + N\,Var |e|^2.

    ``along`` is the share of a mean report's square that lies along the update, and
    ``square_spread`` the variance of a report's square length.
    """

    square_length: float
    square_product: float
    along: float = 1.0
    square_spread: float = 0.0

    def deviation(self, reports: int) -> float:
        """Return the standard deviation of :meth:`signal` without one."""
        products = 2.0 * self.square_product * (1.0 - 1.0 / reports)
        spread = math.sqrt(products + self.square_spread / reports)
        return self.along * spread / self.square_length

    def signal(self, square_of_sum: float, reports: int) -> float:
        """Return an unbiased estimate of x, the sum's signal over its noise along the update.

        It may be negative. For clients that differ it covers what they share. ``square_of_sum`` is
        in squared units of a report.
        """
        return self.along * self.beyond(square_of_sum, reports)

    def beyond(self, square_of_sum: float, reports: int) -> float:
        """Return the sum's square beyond noise, over the noise, in all directions."""
        return square_of_sum / (reports * self.square_length) - 1.0


class UpdatePlan(ABC):
    """Sizes for one dimension, and the expected quality of sums of reports."""

    #: d, entries of the update.
    dimension: int

    @property
    def summary(self) -> str:
        """The sizes chosen, in words, or empty."""
        return ""

    @property
    @abstractmethod
    def efficiency(self) -> float:
        """Number of weights whose noise one report outweighs."""

    @property
    @abstractmethod
    def null_distribution(self) -> NullDistribution:
        """Law of a sum of reports independent of the updates."""

    @property
    def bias(self) -> float:
        """Square of a run's reports across the update, over that along it."""
        return 0.0

    def cosine_of_sum(self, reports: int) -> float:
        """Return the expected cosine of a round's sum."""
        return cosine_of(reports * self.efficiency / self.dimension)


def signal_of(cosine: float) -> float:
    """Return x of a cosine below 1."""
    return cosine**2 / (1.0 - cosine**2)


def cosine_of(signal: float, bias: float = 0.0) -> float:
    """Return the cosine of a signal x; 0 for none."""
    signal = max(signal, 0.0)
    return math.sqrt(signal / (1.0 + signal * (1.0 + bias)))


def run_cosine(plan: UpdatePlan, reports: int) -> float:
    """Return the expected cosine of a run's ``reports``."""
    return cosine_of(reports * plan.efficiency / plan.dimension, plan.bias)
