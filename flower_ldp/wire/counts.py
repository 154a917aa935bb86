"""A question for counts on the wire: columns with public levels, tables of them, and the report.

**Levels.** Numbers are the edges of intervals, texts are categories. Each column has one more level
for rows without a value: what is no number or no category. So a row has one cell in each table, and
each table of a site adds up to its examples.

Each value is read by itself, whatever type its array has: a text that reads as a number is that
number. One row that turns a column into text, or integers into floats, thereby moves no other row.
Floats of fewer than 64 bits, and dates, would be moved: they are no columns.

With the unit ``"example"`` a report is the number of examples by the site's policy and the noisy
counts of all tables, table by table with the last column's levels next to each other, as integers
of 8 bytes, lowest byte first. With ``"client"`` each client has one row, and reports a set of cells
that holds its own more often (:class:`~flower_ldp.mechanisms.SubsetSelection`): a number with a bit
for each cell, in 8 bytes, lowest first.
"""

from __future__ import annotations

import json
import math
from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from flower_ldp.errors import WireError, quoted
from flower_ldp.mechanisms.base import typed
from flower_ldp.mechanisms.joint_counts import JointCounts
from flower_ldp.mechanisms.labels import SubsetSelection
from flower_ldp.mechanisms.random import Floats, Ints
from flower_ldp.parameter_bounds import MOST_PARAMETERS, check_in
from flower_ldp.privacy import PrivacyEvent, Unit
from flower_ldp.wire.proposal import Field, check_version, in_domain

_VERSION = 1
_MECHANISM = "counts"
_FIELDS = {"version", "mechanism", "epsilon", "delta", "columns", "tables", "quantiles", "unit"}
_BYTES = 8
#: From so many intervals on, blocks of them make quantiles better (docs/statistics.md).
LEAST_IN_BLOCKS = 100
_MOST_EXAMPLES = 10**12
# What pandas and Python write for no value.
_NOBODY = {"", "nan", "none", "nat", "<na>"}

#: Edges of a column's intervals, or its categories.
Levels: TypeAlias = Sequence[float] | Sequence[str]
#: Names of a table's columns.
Names: TypeAlias = tuple[str, ...]


@dataclass(frozen=True)
class CountsProposal:
    """Tables that are asked for at once.

    Parameters
    ----------
    columns : mapping of str to sequence
        By its name, a column's ascending edges, at least two, or its different categories.
        **Public**. Values beyond the outer edges count in the first or the last interval.
    tables : sequence of sequence of str
        The different columns of each table.
    epsilon, delta : float
        As of :class:`~flower_ldp.mechanisms.JointCounts`, or for clients of
        :class:`~flower_ldp.mechanisms.SubsetSelection`, with delta 0.
    unit : Unit
        Example, or client: each has one row, and there is one table, of 2 to 62 cells.
    quantiles : sequence of str
        Different columns of edges with a table of their own: those of :data:`LEAST_IN_BLOCKS`
        intervals or more have a table of blocks of intervals too.
    """

    columns: Mapping[str, Levels]
    tables: Sequence[Names]
    epsilon: float
    delta: float = 0.0
    unit: Unit = Unit.EXAMPLE
    quantiles: Sequence[str] = ()

    def __post_init__(self) -> None:
        check_in("[1, 1000]", "columns", len(self.columns), int)
        for name, levels in self.columns.items():
            if not (isinstance(name, str) and 0 < len(name) <= 200 and name.isprintable()):
                raise ValueError(f"a column's name must be printable text, got {quoted(name)}")
            check_levels(name, levels)
        for names in self.tables:
            if not names or len(set(names)) < len(names) or not set(names) <= set(self.columns):
                raise ValueError(f"a table must have different known columns, got {quoted(names)}")
        if len(set(map(frozenset, self.tables))) < len(self.tables):
            raise ValueError("no table may be asked for twice")
        for name in self.quantiles:
            if (name,) not in self.tables or is_text(self.columns[name]):
                raise ValueError(f"quantiles need edges and a table, {quoted(name)} has not both")
        if self.unit is Unit.LABEL:
            raise ValueError("counts are per example or per client")
        _ = self.mechanism, self.sets
        if len(json.dumps(self.to_fields())) > MOST_PARAMETERS:
            raise ValueError(f"levels and tables must have at most {MOST_PARAMETERS} characters")

    @cached_property
    def mechanism(self) -> JointCounts:
        """The noise of all tables; ValueError for numbers outside their intervals."""
        cells = [math.prod(self.shape(names)) for names in self.tables]
        cells += map(len, self.blocks.values())
        return JointCounts(self.epsilon, tuple(cells), self.delta)

    @cached_property
    def blocks(self) -> dict[str, Sequence[int]]:
        """By column, the first levels of blocks of intervals: about √k of k, and that of no value.

        Tables of them follow the others.
        """
        sizes = {name: levels_of(self.columns[name]) for name in self.quantiles}
        return {
            name: (*range(0, size, 1 + math.isqrt(size - 1)), size)
            for name, size in sizes.items()
            if size >= LEAST_IN_BLOCKS
        }

    @cached_property
    def sets(self) -> SubsetSelection | None:
        """The randomizer of a client's one row, or None; ValueError as :attr:`mechanism`."""
        if self.unit is not Unit.CLIENT:
            return None
        if len(self.mechanism.cells) != 1 or self.delta:
            raise ValueError("clients with one row each answer for one table, at a delta of 0")
        return SubsetSelection(self.epsilon, self.mechanism.cells[0])

    def events(self) -> tuple[PrivacyEvent, ...]:
        """Return the cost of an answer."""
        return (self.sets or self.mechanism).events()

    def shape(self, names: Names) -> tuple[int, ...]:
        """Return a table's shape, with the level of no value last in each column."""
        return tuple(levels_of(self.columns[name]) + 1 for name in names)

    def places(self, rows: Mapping[str, Any], size: int) -> Ints:
        """Return the cell of each row in each table, int64, shape (size, tables); **private**."""
        used = {name for names in self.tables for name in names}
        codes = {name: codes_of(self.columns[name], rows[name]) for name in used}
        found = [
            np.ravel_multi_index(tuple(codes[name] for name in names), self.shape(names))
            for names in self.tables
        ]
        for name, starts in self.blocks.items():
            found.append(np.searchsorted(starts, codes[name], side="right") - 1)
        return np.stack(found, axis=1, dtype=np.int64)

    def to_fields(self) -> dict[str, Field]:
        """Return the record's fields."""
        columns = {name: _plain(levels) for name, levels in self.columns.items()}
        return {
            "version": _VERSION,
            "mechanism": _MECHANISM,
            "epsilon": float(self.epsilon),
            "delta": float(self.delta),
            "columns": json.dumps(columns),
            "tables": json.dumps([list(names) for names in self.tables]),
            "quantiles": json.dumps(list(self.quantiles)),
            "unit": self.unit.value,
        }

    @classmethod
    def from_fields(cls, fields: Mapping[str, object]) -> CountsProposal:
        """Parse the record's fields; WireError ``"version"``, ``"fields"`` or ``"domain"``."""
        check_version(fields, _VERSION)
        if set(fields) != _FIELDS or fields["mechanism"] != _MECHANISM:
            raise WireError("fields", f"not a question for counts: {quoted(sorted(fields))}")
        columns, tables = _read(fields, "columns"), _read(fields, "tables")
        quantiles = _read(fields, "quantiles")
        listed = isinstance(columns, dict) and isinstance(tables, list)
        lists = (*columns.values(), *tables, quantiles) if listed else ()
        if not listed or not all(isinstance(one, list) for one in lists):
            raise WireError("fields", "columns and tables must be lists by name and of names")
        for names in (*tables, quantiles):
            if not all(isinstance(name, str) for name in names):
                raise WireError("fields", f"columns of a table must be text, got {quoted(names)}")
        epsilon, delta = typed(fields, "epsilon", float), typed(fields, "delta", float)
        unit = typed(fields, "unit", str)
        with in_domain():
            asked = [tuple(names) for names in tables]
            return cls(columns, asked, epsilon, delta, Unit(unit), quantiles)

    @property
    def report_bytes(self) -> int:
        """Length of every report."""
        if self.sets is not None:
            return _BYTES
        return _BYTES * (1 + sum(self.mechanism.cells))

    def decode(self, report: bytes) -> tuple[int, Ints]:
        """Return a report's number of examples and its counts; WireError if it is none."""
        if len(report) != self.report_bytes:
            raise WireError("length", f"{len(report)} bytes, expected {self.report_bytes}")
        if (sets := self.sets) is not None:
            with in_domain():
                held = sets.members(int.from_bytes(report, "little"))
            return 1, held.astype(np.int64)
        examples, *counts = np.frombuffer(report, dtype="<i8").tolist()
        if not 1 <= examples <= _MOST_EXAMPLES:
            raise WireError("domain", f"{examples} examples")
        far = self.mechanism.farthest
        most = math.ceil(examples * self.mechanism.unit_report) + far
        if min(counts) < -far or max(counts) > most:
            raise WireError("range", "a count beyond its examples and 64 noise scales")
        return examples, np.array(counts, dtype=np.int64)

    def estimate(self, total: Ints, examples: int) -> Floats:
        """Return unbiased counts of a sum of reports' counts."""
        if self.sets is not None:
            return self.sets.estimate(total, examples)
        return self.mechanism.estimate(total)

    def deviation(self, reports: int) -> float:
        """Return the standard deviation of the noise of a count from so many reports.

        Of clients it is that of a cell that nobody or, if larger, that everybody is in.
        """
        if (sets := self.sets) is None:
            return self.mechanism.deviation * math.sqrt(reports)
        share, joined = sets.size / sets.categories, (sets.size - 1) / (sets.categories - 1)
        other = sets.truth * joined + (1 - sets.truth) * share
        own = sets.truth + (1 - sets.truth) * share
        worst = max(own * (1 - own), other * (1 - other))
        return math.sqrt(reports * worst) / (own - other)


def encode(examples: int, counts: Ints) -> bytes:
    """Return a report's bytes."""
    return np.array([examples, *counts.tolist()], dtype="<i8").tobytes()


def check_levels(name: str, levels: Levels) -> None:
    """Raise ValueError unless levels are edges or categories."""
    if isinstance(levels, str) or not len(levels):
        raise ValueError(f"column {quoted(name)}: needs a list of edges or categories")
    if is_text(levels):
        known = {_key(one) for one in levels}
        if len(known) < len(levels) or None in known:
            raise ValueError(f"column {quoted(name)}: categories must differ, and none be 'nan'")
        return
    # Of Python's and numpy's numbers alone: a text among them would be read as an edge.
    real = all(isinstance(one, (int, float, np.number)) for one in levels)
    edges = np.array([float(one) if real else math.nan for one in levels])
    if len(edges) < 2 or not np.isfinite(edges).all() or not (np.diff(edges) > 0).all():
        raise ValueError(f"column {quoted(name)}: edges must be two or more ascending numbers")


def levels_of(levels: Levels) -> int:
    """Return how many levels a column has, without that of no value."""
    return len(levels) if is_text(levels) else len(levels) - 1


def codes_of(levels: Levels, values: Any) -> Ints:
    """Return the level of each value, int64; the last one for no value."""
    if is_text(levels):
        known = {_key(one): place for place, one in enumerate(levels)}
        return np.array([known.get(_key(one), len(levels)) for one in values], dtype=np.int64)
    numbers = _numbers(values)
    inner = np.asarray(levels[1:-1], dtype=np.float64)
    found = np.searchsorted(inner, numbers, side="right")
    return np.where(np.isnan(numbers), len(inner) + 1, found).astype(np.int64)


def _numbers(values: Any) -> NDArray[np.float64]:
    if isinstance(values, np.ndarray) and values.dtype.kind in "biuf":
        return values.astype(np.float64)
    return np.array([_number(one) for one in values], dtype=np.float64)


def _number(value: Any) -> float:
    """Return a value's number, whatever type its column was given for the sake of other rows."""
    plain = _decoded(value)
    try:
        found = complex({"True": 1.0, "False": 0.0}.get(plain, plain))
    except Exception:  # by no type of its own: of texts, numpy's scalars, integers without end
        return math.nan
    return found.real if found.imag == 0 else math.nan


def _key(value: Any) -> float | str | None:
    """Return what a category is told by: its number, or else its text; None for neither."""
    number, text = _number(value), _decoded(value)
    if not math.isnan(number):
        return number
    if not isinstance(text, str) or text.strip().lower().lstrip("+-") == "nan":
        return None
    return text.strip()


def owner_of(value: Any) -> Hashable:
    """Return whose a row is, a number however it is written or a text; None or NaN for nobody.

    One row that turns a column of numbers into text splits no others, as ``1`` and ``1.0``.
    """
    plain, number = _decoded(value), _number(value)
    if not isinstance(plain, (str, int, np.integer)):
        return number
    with suppress(ValueError):
        return int(plain)  # exact, also beyond a float's 53 bits
    text = str(plain).strip()
    return number if math.isfinite(number) else None if text.lower() in _NOBODY else text


def _decoded(value: Any) -> Any:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def is_text(levels: Levels) -> bool:
    """Return whether levels are categories."""
    return isinstance(levels[0], str) and all(isinstance(one, str) for one in levels)


def _plain(levels: Levels) -> list[str | float]:
    return [one if isinstance(one, str) else float(one) for one in levels]


def _read(fields: Mapping[str, object], name: str) -> Any:
    try:
        # No integer is beyond all floats then, and infinity is no edge.
        return json.loads(typed(fields, name, str), parse_int=float)
    except (ValueError, RecursionError) as error:
        raise WireError("fields", f"{name} is no JSON: {type(error).__name__}") from None
