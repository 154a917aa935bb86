"""Whether a charge fits: every limit of every unit that it concerns, in exact integers."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence

from flower_ldp.accounting.amounts import MOST, Amount
from flower_ldp.accounting.books import COUNTED, Book, Place
from flower_ldp.accounting.ledger.charges import Charge
from flower_ldp.accounting.ledger.sums import Snapshot, Window
from flower_ldp.accounting.ledger.types import Limit, NumberLimit
from flower_ldp.errors import BudgetExhausted
from flower_ldp.privacy import Unit


def check_fits(
    db: sqlite3.Connection,
    charge: Charge,
    limits: Sequence[Limit],
    numbers: Sequence[NumberLimit],
    at: int,
) -> None:
    """Return if the charge fits everywhere at time ``at`` (microseconds).

    What is about a unit counts towards all finer ones, and must fit their limits too.

    Raises
    ------
    BudgetExhausted
        Naming the first limit that it would exceed, or a unit of an event that has none.
    """
    place, sums = Place.of(charge.data_id), Snapshot(db)
    sums.check(place)
    about = {event.unit for event in charge.events}
    life = sums.spent("", place)
    run = charge.run_id if charge.during is None else charge.during
    for unit in Unit:
        asked = charge.book.amount(unit, COUNTED)
        binding = [limit for limit in limits if limit.unit is unit]
        if unit in about and not binding:
            raise BudgetExhausted(f"no limit is set per {unit.value}, so there is no budget")
        if asked == Amount():
            continue
        for limit in binding:
            spent = _too_much(_spent(sums, place, run, limit, at), asked, limit)
            if spent is not None:
                raise BudgetExhausted(
                    f"{charge.data_id}: {spent} was spent and {asked} is asked for, but the "
                    f"limit is {limit}" + _coarser(life, unit)
                )
        if not _fits(life.amount(unit, COUNTED), asked, Amount(MOST, MOST)):
            raise BudgetExhausted(
                f"{charge.data_id}: the ledger cannot count beyond {life.amount(unit, COUNTED)}"
            )
    for most in numbers if charge.releases else ():
        made = sums.number(most, place, at)
        if made + charge.releases > most.most:
            raise BudgetExhausted(
                f"{place.account}: {made:,} releases were made and {charge.releases:,} asked for, "
                f"but the limit is {most}"
            )


def check_given_again(db: sqlite3.Connection, charge: Charge, limits: Sequence[Limit]) -> None:
    """Return if a report that belongs to no run fits the run that asks for it again.

    It costs nothing, but another run may have paid for it after this one had spent what its own
    limits allow beside what there was then.

    Raises
    ------
    BudgetExhausted
        Naming the limit of the run that is exceeded.
    """
    if charge.during is None:
        return
    place, sums = Place.of(charge.data_id), Snapshot(db)
    own = sums.spent(str(charge.during), place)
    for limit in limits:
        touched = (charge.book.amount(limit.unit, COUNTED), own.amount(limit.unit, COUNTED))
        if limit.scope != "run" or Amount() in touched:
            continue
        spent = sums.towards(limit, place, charge.during, 0)
        if not _fits(spent, Amount(), limit.allowed):
            raise BudgetExhausted(
                f"{charge.data_id}: with what other runs have paid for, {spent} counts towards run "
                f"{charge.during}, but the limit is {limit}"
            )


def _too_much(bounds: Iterator[Amount], asked: Amount, limit: Limit) -> Amount | None:
    """Return what was spent, if the charge does not fit beside it."""
    spent = Amount()
    for spent in bounds:
        if _fits(spent, asked, limit.allowed):
            return None
    return spent


def _spent(sums: Snapshot, place: Place, run_id: int, limit: Limit, at: int) -> Iterator[Amount]:
    """Yield bounds on what counts towards a limit, quick ones first, and at last what does."""
    if limit.scope == "window":
        yield Window(sums, place, at - limit.microseconds).at_most(limit.unit)
    yield sums.towards(limit, place, run_id, at)


def _coarser(life: Book, unit: Unit) -> str:
    """Say how much of what was spent was not about the unit itself."""
    whole, own = life.amount(unit), life.amount(unit, "direct")
    if whole == own:
        return ""
    return f" (in all; of {whole} that were ever promised per {unit.value}, {own} directly)"


def _fits(spent: Amount, cost: Amount, allowed: Amount) -> bool:
    return (
        spent.epsilon + cost.epsilon <= allowed.epsilon
        and spent.delta + cost.delta <= allowed.delta
    )
