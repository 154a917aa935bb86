"""Messages that were charged before: the stored report, or a refusal; never a second draw."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import replace

from flower_ldp.accounting.ledger import entries, rows
from flower_ldp.accounting.ledger.charges import Charge, ExactEvent
from flower_ldp.accounting.ledger.rows import Head
from flower_ldp.accounting.ledger.types import Entry, Receipt
from flower_ldp.errors import RefusalError
from flower_ldp.refusals import REFUSED_REPEAT


def unpaid(
    db: sqlite3.Connection, head: Head, basis: Charge | None, charge: Charge
) -> list[Charge]:
    """Return what is to be charged: a new release, and before it its basis if that is new."""
    if basis is None:
        return [charge]
    known = entries.find(db, head, basis)
    if known is None:
        return [basis, charge]
    _check_same(known, basis)
    return [charge]


def _check_same(known: Entry, charge: Charge) -> None:
    """Refuse another request; what the owner has declared since makes none."""
    if (known.fingerprint, known.parameters, *_costs(known.events)) != (
        charge.fingerprint,
        charge.parameters,
        *_costs(charge.exact),
    ) or (charge.during is None and known.message_type != charge.message_type):
        raise RefusalError(
            REFUSED_REPEAT, f"message {charge.message_id} was charged for another request"
        )


def answer(db: sqlite3.Connection, known: Entry, charge: Charge) -> Receipt:
    """Answer for a message that was charged before."""
    _check_same(known, charge)
    report = rows.read_report(db, known.number, known.chain)
    if report is None:
        raise RefusalError(
            REFUSED_REPEAT,
            f"message {charge.message_id} was charged (entry {known.number}) but no report "
            "was sealed: its cost stays, and only a new message can be answered",
        )
    return Receipt(known.number, known.chain, report)


def unsealed(db: sqlite3.Connection, head: Head, charge: Charge) -> Receipt:
    """Return the receipt of a charge that has no report, or refuse."""
    known = entries.find(db, head, charge)
    if known is None:
        raise RefusalError(REFUSED_REPEAT, f"message {charge.message_id} is not charged")
    _check_same(known, charge)
    if rows.read_report(db, known.number, known.chain) is not None:
        raise RefusalError(REFUSED_REPEAT, f"message {charge.message_id} has a report")
    return Receipt(known.number, known.chain)


def _costs(events: Sequence[ExactEvent]) -> list[ExactEvent]:
    return [replace(event, waived=()) for event in events]
