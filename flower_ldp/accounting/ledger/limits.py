"""Checks that a charge fits each limit of each unit that it concerns, and its plan's rounds.

**Plans.** A plan of private training is one entry, charged as a whole. Each round is an entry
without cost, written before the first step, in the part ``data#patients:PLAN/rounds`` or
``data#rows:PLAN/rounds``, whose number of releases is that of used rounds.

**Marks** are entries without cost. An account takes releases that are private per row or per
patient, not both: they have no meaningful sum. The first charge per patient leaves a mark in
``data#patients:unit/mark``. The first charge of an account with a life by zCDP leaves one in
``data#rule:life/mark``: units and release deltas, which no later charge may have otherwise.
"""

import hashlib
import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from flower_ldp.accounting import amounts
from flower_ldp.accounting.amounts import COUNTED, DIRECT, RELEASES, ZCDP, Amount, Book, Place
from flower_ldp.accounting.ledger import entries, rows
from flower_ldp.accounting.ledger.charges import NO_RUN, Charge, Limit, NumberLimit, told
from flower_ldp.accounting.ledger.rows import Head
from flower_ldp.accounting.ledger.sums import Snapshot
from flower_ldp.errors import BudgetExhausted, RefusalError
from flower_ldp.privacy import Unit
from flower_ldp.refusals import REFUSED_POLICY

#: Begins the layouts of plans, by what one example is.
_LAYOUTS: Mapping[str, str] = MappingProxyType({"patient": "patients", "row": "rows"})
#: End the names of parts that are the ledger's own.
_ROUNDS, _MARK = "/rounds", ":unit/mark"
_RULE, _RULE_MARK = "rule", "rule:life/mark"


def check_fits(
    db: sqlite3.Connection,
    charge: Charge,
    limits: Sequence[Limit],
    numbers: Sequence[NumberLimit],
    at: int,
) -> None:
    """Check that the charge fits everywhere at time ``at`` (microseconds), finer units included.

    Raises
    ------
    BudgetExhausted
        Naming the first exceeded limit, or a unit of an event without a limit.
    """
    sums = Snapshot(db, charge.data_id)
    sums.check()
    about = {event.unit for event in charge.events}
    life = sums.spent("")
    run = charge.run_id if charge.during is None else charge.during
    for unit in Unit:
        asked = charge.book.amount(unit, COUNTED)
        binding = [limit for limit in limits if limit.unit is unit]
        if unit in about and not binding:
            raise BudgetExhausted(f"no limit is set per {unit.value}, so there is no budget")
        if asked == Amount():
            continue
        for limit in binding:
            if limit.scope == "window":  # a bound that is found quickly may be enough
                quick = sums.at_most(unit, at - limit.microseconds)
                if (quick + asked).fits(limit.allowed):
                    continue
            spent = sums.towards(limit, run, at)
            rho = (life + charge.book).amount(unit, ZCDP)
            if not limit.fits(spent + asked, rho):
                whole, own = life.amount(unit), life.amount(unit, DIRECT)
                note = f" (of {whole} that were ever promised for it, {own} directly)"
                had = told(limit, (spent, life.amount(unit, ZCDP)))
                more = told(limit, (asked, charge.book.amount(unit, ZCDP)))
                raise BudgetExhausted(
                    f"{charge.data_id}: {had} was spent and {more} is asked for, but the limit is "
                    f"{limit}{note if whole != own else ''}"
                )
        for kind in (COUNTED, ZCDP):
            counted = (life + charge.book).amount(unit, kind)
            if not counted.fits(Amount(amounts.MOST, amounts.MOST)):
                raise BudgetExhausted(f"{charge.data_id}: the ledger cannot count up to {counted}")
    for most in numbers if charge.releases else ():
        made = sums.number(most, at)
        if made + charge.releases > most.most:
            raise BudgetExhausted(
                f"{sums.place.account}: {made:,} releases were made and {charge.releases:,} asked "
                f"for, but the limit is {most}"
            )


def check_repeat(db: sqlite3.Connection, charge: Charge, limits: Sequence[Limit]) -> None:
    """Check that a report of run 0 fits the run that asks for it again, or raise BudgetExhausted.

    It costs nothing, but another run may have paid for it after this run had used its own limits.
    """
    if charge.during is None:
        return
    sums = Snapshot(db, charge.data_id)
    own = sums.spent(str(charge.during))
    for limit in limits:
        touched = (charge.book.amount(limit.unit, COUNTED), own.amount(limit.unit, COUNTED))
        if limit.scope != "run" or Amount() in touched:
            continue
        spent = sums.towards(limit, charge.during, 0)
        if not spent.fits(limit.allowed):
            raise BudgetExhausted(
                f"{charge.data_id}: with what other runs have paid for, {spent} counts towards run "
                f"{charge.during}, but the limit is {limit}"
            )


def rounds_part(example: str, plan: str) -> str:
    """Return the part for the rounds of a plan, by its digest and the kind of example."""
    return f"{_LAYOUTS[example]}:{plan}{_ROUNDS}"


def is_bookkeeping(name: str) -> bool:
    """Return whether an account or part holds rounds of a plan or a mark, and no spending."""
    kind, colon, _ = Place.of(name).layout.partition(":")
    ends = (_ROUNDS, _MARK, _RULE_MARK)
    return bool(colon) and kind in (*_LAYOUTS.values(), _RULE) and name.endswith(ends)


def rounds_left(db: sqlite3.Connection, charge: Charge) -> int:
    """Return the number of unused rounds of a plan."""
    used = rows.read_total(db, ("", charge.data_id)).pair(RELEASES)[0]
    return max(0, (charge.rounds or 0) - used)


def fitting(
    db: sqlite3.Connection,
    head: Head,
    charge: Charge,
    basis: Charge | None,
    limits: Sequence[Limit],
    numbers: Sequence[NumberLimit],
    at: int,
) -> Iterator[tuple[Charge, list[Charge]]]:
    """Yield a new message's charges with their marks, an unpaid basis first, once they fit.

    Raises
    ------
    RefusalError, BudgetExhausted
        If it does not fit, or is a round of a plan that has none left.
    ValueError
        If it is a round and no plan is charged with it.
    """
    if charge.rounds is not None:
        if basis is None:
            raise ValueError("a round must come with the charge of its plan")
        if not rounds_left(db, charge):
            raise BudgetExhausted(
                f"{charge.data_id}: all {charge.rounds:,} rounds of the plan are used"
            )
    due = [charge]
    if basis is not None:
        known = entries.find(db, head, basis)
        if known is None:
            due = [basis, charge]
        else:
            entries.check_same(known, basis)
    for one in due:
        marks = [*example_marks(db, one), *rule_marks(db, head, one.data_id, limits)]
        check_fits(db, one, limits, numbers, at)
        yield one, marks


def by_zcdp(limits: Sequence[Limit]) -> bool:
    """Return whether a life is by zCDP."""
    return any(limit.release_deltas is not None for limit in limits)


def rule_marks(
    db: sqlite3.Connection, head: Head, data_id: str, limits: Sequence[Limit]
) -> list[Charge]:
    """Return the mark of an account's first charge by zCDP.

    Raises RefusalError with ``REFUSED_POLICY`` if the account was charged by another rule.
    """
    account = Place.of(data_id).account
    deltas = [
        f"{limit.unit.value}: {limit.allowed.delta_text}"
        for limit in limits
        if limit.release_deltas is not None
    ]
    text = json.dumps({"by": "zcdp", "release_deltas": sorted(deltas)})
    name = f"{account}#{_RULE_MARK}"
    digest = hashlib.sha256(text.encode()).digest()
    mark = Charge(name, NO_RUN, "rule", "train", digest, (), text, releases=0, rounds=0)
    known, spent = entries.find(db, head, mark), Snapshot(db, account).spent("")
    # The mark may have been lost, and the sums say it too.
    by_zcdp_before = any(name.endswith(f" {ZCDP}") for name in spent.lines)
    if known is not None and (not deltas or known.parameters != text):
        fault = f"its first charge fixed the rule {known.parameters}"
    elif known is None and by_zcdp_before:
        fault = "its first charge fixed a rule by zCDP; the mark is lost: flower-ldp ledger verify"
    elif known is not None or not deltas:
        return []
    elif spent != Book():
        fault = "it was charged by sums before, and goes on by sums: leave by: zcdp out"
    elif not rows.keeps_zcdp(db):
        fault = "a ledger of version 2 keeps no rho: this data needs a ledger of its own for zCDP"
    else:
        return [mark]
    raise RefusalError(REFUSED_POLICY, f"{account}: {fault}")


def example_marks(db: sqlite3.Connection, charge: Charge) -> list[Charge]:
    """Return the mark of a charge that is the account's first per patient.

    Raises RefusalError with ``REFUSED_POLICY`` if charge and account mean different examples.
    """
    if all(event.unit is not Unit.EXAMPLE for event in charge.events):
        return []
    account = Place.of(charge.data_id).account
    start = f"{account}#{_LAYOUTS['patient']}:"
    # ";" comes after ":": all names that begin so lie between.
    of_patients = bool(dict(rows.totals_between(db, ("", start), ("", f"{start[:-1]};"))))
    if charge.example == "row" and of_patients:
        fault = "is an account of patients: private per row says too little about one of many rows"
        raise RefusalError(REFUSED_POLICY, f"{account} {fault}")
    if charge.example == "row" or of_patients:
        return []
    book = Snapshot(db, account).spent("")
    direct = book.amount(Unit.EXAMPLE, DIRECT) != Amount()
    if direct or book.number(Unit.EXAMPLE, amounts.CONDITIONAL):
        fault = "has charges per row already, which bound nothing per patient"
        raise RefusalError(REFUSED_POLICY, f"{account} {fault}")
    name, message = f"{start[:-1]}{_MARK}", "an example is a patient"
    kind = charge.message_type
    return [Charge(name, NO_RUN, message, kind, b"patient", (), releases=0, rounds=0)]
