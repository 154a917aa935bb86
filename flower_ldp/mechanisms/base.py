"""What every mechanism offers: a randomizer and its price.

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
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import Field, fields
from functools import cache
from typing import Any, ClassVar, Protocol, Self, TypeVar, get_type_hints

import numpy as np
from numpy.typing import NDArray

from flower_ldp.errors import WireError, quoted
from flower_ldp.mechanisms.random import RandomSource
from flower_ldp.privacy import PrivacyEvent

ValueT = TypeVar("ValueT", contravariant=True)
ReportT = TypeVar("ReportT")
RowT = TypeVar("RowT")


class Mechanism(Protocol[ValueT, ReportT]):
    """A local randomizer with an exactly known law."""

    def events(self) -> tuple[PrivacyEvent, ...]:
        """Return what one release costs one client."""

    def randomize(self, value: ValueT, rng: RandomSource) -> ReportT:
        """Return a private report of ``value``, whatever it is; never raise because of it."""

    def log_prob(self, report: ReportT, value: ValueT) -> float:
        """Return the natural logarithm of P(report | value); any value has a law."""


def row_of(table: Mapping[type, RowT], mechanism: object) -> RowT:
    """Return what a table says of a mechanism's class, or of the nearest one that it is made of.

    Raises
    ------
    TypeError
        If the table has no row for it.
    """
    for kind in type(mechanism).__mro__:
        if kind in table:
            return table[kind]
    known = ", ".join(kind.__name__ for kind in table)
    raise TypeError(f"expected one of {known}, got {type(mechanism).__name__}")


#: The first byte of each report of an update.
REPORT_VERSION = 1
#: What a proposal may state of a parameter.
Parameter = int | float | str


class UpdateMechanism(ABC):
    """A randomizer of updates, with the bytes of its reports; the base of frozen dataclasses."""

    #: Of the mechanism, in proposals, policies and ledgers.
    name: str
    #: Parameters that a proposal leaves out where they have their default.
    left_out: ClassVar[frozenset[str]] = frozenset()
    #: The parameter that a mechanism may leave open, and a proposal may not.
    stated: ClassVar[str] = ""

    @abstractmethod
    def events(self) -> tuple[PrivacyEvent, ...]:
        """Return what one report costs one client."""

    @abstractmethod
    def randomize(self, value: object, rng: RandomSource, dimension: int | None = None) -> Any:
        """Return a private report of an update of ``dimension`` entries, whatever it is."""

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
        expected = self.report_length(dimension)
        if data and data[0] != REPORT_VERSION:
            raise WireError("version", f"version {data[0]}, expected {REPORT_VERSION}")
        if len(data) != expected:
            raise WireError("length", f"{len(data)} bytes, expected {expected}")

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
        kinds, found = _kinds(type(self)), {}
        for one in _of(type(self)):
            value = getattr(self, one.name)
            if one.name not in self.left_out or value != one.default:
                found[_on_wire(one.name)] = kinds[one.name](value)
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
        names = {_on_wire(one.name): one.name for one in _of(cls)}
        optional = {_on_wire(name) for name in cls.left_out}
        if names.keys() - optional != given.keys() - optional:
            raise WireError("fields", f"not a {cls.name} proposal: {quoted(sorted(given))}")
        kinds = _kinds(cls)
        values = {names[name]: typed(given, name, kinds[names[name]]) for name in given}
        if cls.stated and not values[cls.stated]:
            raise ValueError(f"{cls.stated} must be stated, got {values[cls.stated]}")
        return cls(**values)


def typed(given: Mapping[str, object], name: str, kind: type[Any]) -> Any:
    """Return a parameter of the very type; raise WireError if it is of another.

    A bool is no integer here. A float may be of a subclass, as numpy's is.
    """
    value = given[name]
    right = isinstance(value, float) if kind is float else type(value) is kind
    if not right:
        raise WireError("fields", f"{name} must be of type {kind.__name__}, got {quoted(value)}")
    return value


def _on_wire(name: str) -> str:
    return name.replace("_", "-")


def _of(kind: type[UpdateMechanism]) -> tuple[Field[Any], ...]:
    return fields(kind)  # type: ignore[arg-type]


@cache
def _kinds(kind: type[UpdateMechanism]) -> dict[str, type[Any]]:
    """Return the types of the parameters; those of a frozen dataclass are plain ones."""
    return get_type_hints(kind)
