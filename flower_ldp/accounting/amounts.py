"""Exact amounts of privacy, and an account's spending line by line (docs/ledger.md).

**Amounts.** Epsilon is counted in units of 1e-12 and delta in units of 1e-18, as 64-bit integers. A
cost is rounded **up** and a limit **down**; sums add no error. A float means its shortest decimal:
``0.1`` is one tenth, so that eighty releases of it fit in a limit of 8. The difference, less than
one part in 10^15, is below the rounding of any mechanism.

**Books.** A :class:`Book` holds the sums of one account. Its lines, for each unit of privacy u:

====================  ===================================================================
line                  content
====================  ===================================================================
``u``                 guarantees for u: releases about u and about coarser units
``u direct``          the part of it about u itself
``u counted``         for limits: ``u`` and conditional claims together
``u zcdp``            the same as rho and its delta, in accounts by zCDP
``u NAME``            conditional claims, for each mechanism's own NAME
``u silent``          number of releases without a guarantee for u, about a finer unit
``u conditional``     number of releases with a conditional guarantee only
``u waived``          number of releases that the owner declared post-processing for u
``releases``          number of all releases
====================  ===================================================================

**Parts.** A layout cuts the data into disjoint parts by index. Of each layout an example or label
has spent at most the **largest** part. For a client, with data in every part, parts **add up**, and
so do numbers of releases.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from flower_ldp.errors import quoted
from flower_ldp.parameter_bounds import check_in
from flower_ldp.privacy import CONDITIONAL_SUFFIX, PrivacySpent, Unit, as_fraction, double_at_least

EPSILON_UNITS = 10**12
"""Units of epsilon in one: the smallest amount that is told apart is 1e-12."""
DELTA_UNITS = 10**18
"""Units of delta in one."""
MOST = 2**63 - 1
"""Largest count of units: an epsilon of about 9.2 million, a delta of about 9.2."""

MOST_NAME = 1_024
"""Longest name, in characters: the other side chooses some of them."""

DIRECT, COUNTED, ZCDP = "direct", "counted", "zcdp"
SILENT, CONDITIONAL, WAIVED = "silent", "conditional", "waived"
NUMBERS = (SILENT, CONDITIONAL, WAIVED)
RELEASES = "releases"

Pair = tuple[int, int]
"""Epsilon and delta in exact units; of a number of releases: the number, and 0."""


def _exact(name: str, value: float | Fraction) -> Fraction:
    check_in("[0, inf)", name, value)
    return Fraction(value) if isinstance(value, int | Fraction) else as_fraction(value)


def _units(epsilon: float | Fraction, delta: float | Fraction) -> tuple[Fraction, Fraction]:
    return _exact("epsilon", epsilon) * EPSILON_UNITS, _exact("delta", delta) * DELTA_UNITS


def _decimal(units: int, per_one: int) -> str:
    whole, part = divmod(units, per_one)
    digits = str(part).zfill(len(str(per_one)) - 1).rstrip("0")
    return f"{whole}.{digits}" if digits else str(whole)


@dataclass(frozen=True)
class Amount:
    """Epsilon and delta about one unit of privacy, exact.

    Parameters
    ----------
    epsilon : int
        In units of 1e-12, at least 0; below 2^63 for costs, limits and a ledger's sums. Of a line
        ``zcdp`` it is rho.
    delta : int
        In units of 1e-18, the same.
    """

    epsilon: int = 0
    delta: int = 0

    def __post_init__(self) -> None:
        if self.epsilon < 0 or self.delta < 0:
            raise ValueError(f"an amount must be at least 0, got {self.epsilon}, {self.delta}")

    def bounded(self) -> Amount:
        """Return the amount, or raise ValueError if it is too large to be represented."""
        for name, per_one in (("epsilon", EPSILON_UNITS), ("delta", DELTA_UNITS)):
            units = getattr(self, name)
            if units > MOST:  # the constructor refuses what is below 0
                most, got = MOST / per_one, units / per_one
                raise ValueError(f"{name} must be in [0, {most:g}], got {got:g}")
        return self

    @classmethod
    def cost(
        cls, epsilon: float | Fraction, delta: float | Fraction = 0.0, count: int = 1
    ) -> Amount:
        """Return the cost of ``count`` releases, each rounded up.

        Raises ValueError if a number is infinite, NaN, negative or too large.
        """
        return cls(*(count * math.ceil(units) for units in _units(epsilon, delta))).bounded()

    @classmethod
    def allowance(cls, epsilon: float | Fraction, delta: float | Fraction = 0.0) -> Amount:
        """Return a limit, rounded down, or raise as :meth:`cost` does."""
        return cls(*(math.floor(units) for units in _units(epsilon, delta))).bounded()

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.epsilon + other.epsilon, self.delta + other.delta)

    def __sub__(self, other: Amount) -> Amount:
        return Amount(self.epsilon - other.epsilon, self.delta - other.delta)

    def fits(self, allowed: Amount) -> bool:
        """Return whether neither epsilon nor delta exceeds a limit."""
        return self.epsilon <= allowed.epsilon and self.delta <= allowed.delta

    @property
    def epsilon_text(self) -> str:
        """Epsilon as an exact decimal."""
        return _decimal(self.epsilon, EPSILON_UNITS)

    @property
    def delta_text(self) -> str:
        """Delta as an exact decimal."""
        return _decimal(self.delta, DELTA_UNITS)

    def __str__(self) -> str:
        return f"epsilon {self.epsilon_text}" + (f", delta {self.delta_text}" if self.delta else "")

    def spent(self, unit: Unit) -> PrivacySpent:
        """Return the amount in floating point, never below the exact one."""
        exact = Fraction(self.epsilon, EPSILON_UNITS), Fraction(self.delta, DELTA_UNITS)
        return PrivacySpent(unit, *map(double_at_least, exact))


@dataclass(frozen=True)
class ExactEvent:
    """A privacy event as the ledger holds it.

    Each of ``count`` releases has the ``cost``, and in accounts by zCDP the cost ``zcdp``, a rho
    and its delta; ``waived`` are finer units for which the owner declared them post-processing.
    """

    mechanism: str
    unit: str
    cost: Amount
    count: int
    waived: tuple[str, ...] = ()
    zcdp: Amount | None = None


@dataclass(frozen=True)
class Book:
    """Sums by line; a missing line is zero."""

    lines: Mapping[str, Pair] = field(default_factory=dict)

    @classmethod
    def of(cls, events: Iterable[ExactEvent], releases: int) -> Book:
        """Return the cost of events in so many releases, about data that is not cut."""
        number = cls({RELEASES: (releases, 0)} if releases else {})
        return sum((cls(_lines(event)) for event in events), number)

    def __add__(self, other: Book) -> Book:
        added = {name: _plus(self.pair(name), pair) for name, pair in other.lines.items()}
        return Book({**self.lines, **added})

    def __sub__(self, other: Book) -> Book:
        negative = Book({name: (-pair[0], -pair[1]) for name, pair in other.lines.items()})
        lines = (self + negative).lines
        return Book({name: pair for name, pair in lines.items() if pair != (0, 0)})

    def pair(self, name: str) -> Pair:
        """Return a line."""
        return self.lines.get(name, (0, 0))

    def joined(self, cost: Book, part: Book) -> Book:
        """Return this book of a layout after ``cost`` raised one of its parts to ``part``."""
        lines = dict(self.lines)
        for name, pair in cost.lines.items():
            had = self.pair(name)
            lines[name] = _plus(had, pair) if adds_up(name) else larger(had, part.pair(name))
        return Book(lines)

    def largest(self) -> Book:
        """Return the lines in which the largest part counts."""
        return Book({name: pair for name, pair in self.lines.items() if not adds_up(name)})

    def amount(self, unit: Unit, kind: str = "") -> Amount:
        """Return a line about a unit, by default of all guarantees."""
        return Amount(*self.pair(line(unit, kind)))

    def number(self, unit: Unit, kind: str) -> int:
        """Return a number of releases."""
        return self.pair(line(unit, kind))[0]

    def conditional(self, unit: Unit) -> dict[str, Amount]:
        """Return the conditional claims by the mechanism's name."""
        start = f"{unit.value} "
        return {
            name[len(start) :]: Amount(*pair)
            for name, pair in sorted(self.lines.items())
            if name.startswith(start) and name.endswith(CONDITIONAL_SUFFIX)
        }

    def text(self) -> str:
        """Return the book as canonical JSON."""
        return json.dumps(self.lines, sort_keys=True, separators=(",", ":"))

    @classmethod
    def parse(cls, text: str) -> Book:
        """Return the book that :meth:`text` wrote."""
        return cls({name: (pair[0], pair[1]) for name, pair in json.loads(text).items()})


def _lines(event: ExactEvent) -> dict[str, Pair]:
    cost = (event.cost.epsilon * event.count, event.cost.delta * event.count)
    number = (event.count, 0)
    own = Unit(event.unit)
    lines: dict[str, Pair] = {}
    for unit in Unit:
        if unit not in own.within:
            lines[line(unit, SILENT)] = number
        elif unit.value in event.waived:
            lines[line(unit, WAIVED)] = number
        else:
            lines[line(unit, COUNTED)] = cost
            if event.zcdp is not None:
                each = event.zcdp
                lines[line(unit, ZCDP)] = (each.epsilon * event.count, each.delta * event.count)
            if event.mechanism.endswith(CONDITIONAL_SUFFIX):
                lines[line(unit, event.mechanism)] = cost
                lines[line(unit, CONDITIONAL)] = number
                continue
            lines[line(unit, "")] = cost
            if unit is own:
                lines[line(unit, DIRECT)] = cost
    return lines


def line(unit: Unit, kind: str) -> str:
    """Return the name of a book's line; without a kind, of all guarantees."""
    return f"{unit.value} {kind}" if kind else unit.value


def adds_up(name: str) -> bool:
    """Return whether a line adds up parts, rather than taking the largest."""
    unit, _, kind = name.partition(" ")
    return unit in (Unit.CLIENT.value, RELEASES) or kind in NUMBERS


def larger(one: Pair, other: Pair) -> Pair:
    """Return the larger epsilon and the larger delta."""
    return max(one[0], other[0]), max(one[1], other[1])


def _plus(one: Pair, other: Pair) -> Pair:
    return one[0] + other[0], one[1] + other[1]


def check_name(name: str, value: str) -> None:
    """Refuse a name that is empty, long, or cannot be shown on one line."""
    if not (isinstance(value, str) and 1 <= len(value) <= MOST_NAME and value.isprintable()):
        raise ValueError(
            f"{name} must have 1 to {MOST_NAME} printable characters, got {quoted(value)}"
        )


@dataclass(frozen=True)
class Place:
    """The data of an account, or a part, by its name ``account#layout/part``.

    ``layout`` is empty for all of the data.
    """

    account: str
    layout: str
    name: str

    @classmethod
    def of(cls, name: str) -> Place:
        """Return the place of an account's name, or raise ValueError."""
        check_name("data_id", name)
        account, _, rest = name.partition("#")
        layout, _, part = rest.partition("/")
        if account and layout and part:
            return cls(account, layout, name)
        return cls(name, "", name)

    # No account's name can have a tab in it: names are printable.

    @property
    def all_layouts(self) -> str:
        """Name of the sums over all layouts of the data."""
        return f"{self.account}\t"

    @property
    def own_layout(self) -> str:
        """Name of the sums of the part's layout."""
        return f"{self.account}\t{self.layout}"
