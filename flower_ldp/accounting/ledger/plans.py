"""Plans that are charged as a whole: their rounds, and what an example is to an account.

A plan of private training costs the same whether one of its rounds is made or all. Its charge is
one entry, about all of the data. Each round is an entry of its own, with no cost: it marks that
the round's steps are used, before the first of them is taken. All rounds of a plan are charged to
one part, ``data#patients:PLAN/rounds`` or ``data#rows:PLAN/rounds``, whose number of releases is
the number of rounds that were used. It stands among the totals, where a lost row shows, and is
compared with the plan's in the transaction that writes the entry.

A release that is private per row says little about a patient with many rows, so both kinds in one
account would add up to nothing: the ledger takes one kind. The first charge per patient leaves a
mark, an entry of no cost for the part ``data#patients:unit/mark``.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from flower_ldp.accounting.books import CONDITIONAL, DIRECT, RELEASES, Place
from flower_ldp.accounting.ledger import entries, rows
from flower_ldp.accounting.ledger.charges import NO_RUN, Charge
from flower_ldp.accounting.ledger.limits import check_fits
from flower_ldp.accounting.ledger.rows import Head
from flower_ldp.accounting.ledger.sums import Snapshot
from flower_ldp.accounting.ledger.types import Limit, NumberLimit
from flower_ldp.errors import BudgetExhausted, RefusalError
from flower_ldp.privacy import Unit
from flower_ldp.refusals import REFUSED_POLICY

#: Begins the layouts of plans, by what one example is.
_LAYOUTS: Mapping[str, str] = MappingProxyType({"patient": "patients", "row": "rows"})
#: End the names of parts that are the ledger's own.
_ROUNDS, _MARK = "/rounds", ":unit/mark"


def rounds_part(example: str, plan: str) -> str:
    """Return the part that the rounds of a plan are charged to.

    Parameters
    ----------
    example : {"row", "patient"}
        What one example is.
    plan : str
        The plan's digest.
    """
    return f"{_LAYOUTS[example]}:{plan}{_ROUNDS}"


def is_bookkeeping(name: str) -> bool:
    """Return whether an account holds rounds of a plan, or a mark, and nothing that was spent.

    Parameters
    ----------
    name : str
        Of an account, or of a part of it.
    """
    kind, colon, _ = Place.of(name).layout.partition(":")
    return bool(colon) and kind in _LAYOUTS.values() and name.endswith((_ROUNDS, _MARK))


def rounds_left(db: sqlite3.Connection, charge: Charge) -> int:
    """Return how many rounds of a plan are not used."""
    used = Snapshot(db).total("", charge.data_id).pair(RELEASES)[0]
    return max(0, (charge.rounds or 0) - used)


def check_round(db: sqlite3.Connection, charge: Charge, basis: Charge | None) -> None:
    """Return if a charge is no round, or one that its plan has left.

    Raises
    ------
    ValueError
        If it is a round and no plan is charged with it.
    BudgetExhausted
        If all rounds of the plan are used.
    """
    if charge.rounds is None:
        return
    if basis is None:
        raise ValueError("a round must come with the charge of its plan")
    if not rounds_left(db, charge):
        raise BudgetExhausted(
            f"{charge.data_id}: all {charge.rounds:,} rounds of the plan are used"
        )


def fitting(
    db: sqlite3.Connection,
    head: Head,
    charge: Charge,
    basis: Charge | None,
    limits: Sequence[Limit],
    numbers: Sequence[NumberLimit],
    at: int,
) -> Iterator[tuple[Charge, list[Charge]]]:
    """Yield what a new message is charged, and the marks of each charge, once it fits.

    A basis that was not charged before comes first. What is recorded of it counts for the other.

    Raises
    ------
    RefusalError, BudgetExhausted
        If it does not fit.
    """
    check_round(db, charge, basis)
    for one in entries.unpaid(db, head, basis, charge):
        marks = example_marks(db, one)
        check_fits(db, one, limits, numbers, at)
        yield one, marks


def example_marks(db: sqlite3.Connection, charge: Charge) -> list[Charge]:
    """Return the mark that a charge leaves if it is the account's first per patient.

    A charge must mean by an example what all charges of the account mean.

    Raises
    ------
    RefusalError
        With ``REFUSED_POLICY``, if it is per row and the account is one of patients, or the
        other way round.
    """
    if all(event.unit is not Unit.EXAMPLE for event in charge.events):
        return []
    place = Place.of(charge.data_id)
    start = f"{place.account}#{_LAYOUTS['patient']}:"
    # ";" comes after ":": all names that begin so lie between.
    of_patients = bool(dict(rows.totals_between(db, ("", start), ("", f"{start[:-1]};"))))
    if charge.example == "row" and of_patients:
        raise RefusalError(
            REFUSED_POLICY,
            f"{place.account} is an account of patients: a release that is private per row says "
            "too little about one of many rows",
        )
    if charge.example == "row" or of_patients:
        return []
    book = Snapshot(db).spent("", Place.of(place.account))
    direct = book.pair(f"{Unit.EXAMPLE.value} {DIRECT}") != (0, 0)
    if direct or book.number(Unit.EXAMPLE, CONDITIONAL):
        raise RefusalError(
            REFUSED_POLICY,
            f"{place.account} has charges per row already, which bound nothing per patient",
        )
    mark = Charge(
        data_id=f"{start[:-1]}{_MARK}",
        run_id=NO_RUN,
        message_id="an example is a patient",
        message_type=charge.message_type,
        fingerprint=b"patient",
        events=(),
        releases=0,
        rounds=0,
    )
    return [mark]
