"""What was spent about each unit of privacy, as people read it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from flower_ldp.accounting.amounts import Amount
from flower_ldp.accounting.books import CONDITIONAL, COUNTED, DIRECT, SILENT, WAIVED, Book
from flower_ldp.privacy import Unbounded, Unit


@dataclass(frozen=True)
class UnitSpending:
    """What was spent about one unit of privacy.

    Parameters
    ----------
    unit : Unit
        The unit.
    direct : Amount
        Promised for the unit itself.
    in_all : Amount
        Promised for the unit and for coarser ones: all that is bounded. Zero if nothing was
        promised: then nothing is bounded, see ``promised``.
    counted : Amount
        What limits count: conditional claims beside ``in_all``.
    under : mapping of str to Amount
        Conditional claims, in all, by the mechanism's name.
    beyond : Unbounded
        Releases that ``in_all`` says nothing about.
    waived : int
        Releases that the owner declared post-processing for this unit.
    """

    unit: Unit
    direct: Amount
    in_all: Amount
    counted: Amount
    under: Mapping[str, Amount]
    beyond: Unbounded
    waived: int

    @property
    def promised(self) -> bool:
        """Whether anything was promised for the unit without a condition."""
        return self.in_all != Amount()


def spending(book: Book) -> Iterator[UnitSpending]:
    """Yield what a book says about each unit for which there was a release."""
    for unit in Unit:
        beyond = Unbounded(book.number(unit, SILENT), book.number(unit, CONDITIONAL))
        in_all, waived = book.amount(unit), book.number(unit, WAIVED)
        if in_all != Amount() or beyond or waived:
            yield UnitSpending(
                unit,
                book.amount(unit, DIRECT),
                in_all,
                book.amount(unit, COUNTED),
                book.conditional(unit),
                beyond,
                waived,
            )
