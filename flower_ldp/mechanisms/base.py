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
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, TypeVar

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
