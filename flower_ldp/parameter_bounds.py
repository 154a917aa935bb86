"""Intervals of parameters, declared beside the fields of a dataclass, and searches in intervals.

A field says ``epsilon: Annotated[float, Bounded("(0, 100]")]``, and its dataclass extends
:class:`Checked` or calls :func:`check_fields` in ``__post_init__``. An integer is of the type int,
and a bool is none; NaN is in no interval.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cache, lru_cache
from numbers import Real
from typing import Any, get_args, get_type_hints

from flower_ldp.errors import quoted

MOST_PARAMETERS = 65_536
"""Characters of a release's parameters as JSON, which ledgers store."""


@dataclass(frozen=True)
class Bounded:
    """An interval of numbers.

    Parameters
    ----------
    interval : str
        As ``"(0, 100]"``. An end is a number, ``inf``, or a power as ``2^31``.
    """

    interval: str

    def holds(self, value: object, kind: type[float] | type[int] = float) -> bool:
        """Return whether a value is a number of ``kind`` in the interval."""
        # A bool is an int to Python; comparisons with nan are false, so nan is outside.
        if isinstance(value, bool) or not isinstance(value, int if kind is int else Real):
            return False
        low, high = _ends(self.interval)
        number: Any = value
        above = number >= low if self.interval[0] == "[" else number > low
        below = number <= high if self.interval[-1] == "]" else number < high
        return bool(above and below)

    def check(self, name: str, value: object, kind: type[float] | type[int] = float) -> None:
        """Raise ValueError unless a value is a number of ``kind`` in the interval."""
        if self.holds(value, kind):
            return
        wanted = "an integer in" if kind is int else "in"
        raise ValueError(f"{name} must be {wanted} {self.interval}, got {_shown(value)}")


def check_in(
    interval: str, name: str, value: object, kind: type[float] | type[int] = float
) -> None:
    """Raise ValueError unless a value is a number of ``kind`` in an interval."""
    Bounded(interval).check(name, value, kind)


def check_fields(record: Any) -> None:
    """Raise ValueError unless all fields of a dataclass are in their intervals, or None."""
    for name, bounded, kinds in bounded_fields(type(record)):  # type: ignore[arg-type]
        value = getattr(record, name)
        if value is not None or type(None) not in kinds:
            bounded.check(name, value, int if int in kinds else float)


class Checked:
    """Base of dataclasses that check all fields when one is made."""

    def __post_init__(self) -> None:
        check_fields(self)


def must_be(name: str, value: object, kind: type[Any] | tuple[type[Any], ...], write: str) -> None:
    """Raise TypeError unless an argument is of its type; ``write`` is an example for the error."""
    if isinstance(value, kind):
        return
    given = f"the class {value.__name__}" if isinstance(value, type) else repr(value)[:100]
    raise TypeError(f"{name} must be {write}, got {given}")


@cache
def bounded_fields(kind: type[Any]) -> tuple[tuple[str, Bounded, tuple[Any, ...]], ...]:
    """Return name, interval and types of each field with an interval."""
    hints, found = get_type_hints(kind, include_extras=True), []
    for one in fields(kind):
        declared, *marks = get_args(hints[one.name]) or (None,)
        kinds = get_args(declared) or (declared,)
        found += [(one.name, mark, kinds) for mark in marks if isinstance(mark, Bounded)]
    return tuple(found)


@lru_cache(maxsize=256)
def _ends(interval: str) -> tuple[float, float]:
    low, high = (_end(text.strip()) for text in interval[1:-1].split(","))
    return low, high


def _end(text: str) -> float:
    base, _, power = text.partition("^")
    return int(base) ** int(power) if power else float(base)


def _shown(value: object) -> str:
    """Return a float as it prints, and anything else by its type, so that np.int64(3) is seen."""
    return str(value) if isinstance(value, float) else quoted(value)


def least(enough: Callable[[float], bool], low: float, high: float, precision: float) -> float:
    """Return a number that is enough, at most the part ``precision`` above one that is not."""
    return halved(enough, low, high, precision)[1]


def halved(
    enough: Callable[[float], bool], low: float, high: float, precision: float
) -> tuple[float, float]:
    """Return a number that is not enough and one that is, at most the part ``precision`` apart.

    Parameters
    ----------
    enough : callable
        Monotone: once a number is enough, all greater ones are.
    low, high : float
        ``high`` is enough; ``low`` is not, or bounds the search.
    precision : float
        Relative to the larger magnitude of the two.
    """
    while high - low > precision * max(abs(low), abs(high)):
        middle = (low + high) / 2
        if enough(middle):
            high = middle
        else:
            low = middle
    return low, high
