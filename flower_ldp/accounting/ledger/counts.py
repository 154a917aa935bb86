"""What is counted beside charges: answers that cost no epsilon, and apps that failed.

Such an answer tells the server something all the same, if only that the node is there. It is
counted for each account, and may have a largest number. The numbers stand among the totals, in
rows of their own, so that a lost row shows. No entry is made for them: they are not in the chain.
"""

from __future__ import annotations

import sqlite3
from typing import get_args

from flower_ldp.accounting.books import Book, Place
from flower_ldp.accounting.ledger import rows
from flower_ldp.accounting.ledger.charges import check_number
from flower_ldp.accounting.ledger.rows import Key
from flower_ldp.accounting.ledger.types import Kind
from flower_ldp.errors import BudgetExhausted, quoted

_RUN = "counts"
KINDS: tuple[Kind, ...] = get_args(Kind)
#: Answers that are no releases; what bounds their number bounds their sum.
_ANSWERS: tuple[Kind, ...] = ("again", "acknowledged")


def count(db: sqlite3.Connection, data_id: str, kind: Kind, most: int | None) -> int:
    """Add one and return the new number.

    Raises
    ------
    BudgetExhausted
        If there would be more than ``most``; nothing was written.
    """
    if kind not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {quoted(kind)}")
    place = Place.of(data_id)
    book = rows.read_total(db, _key(place)) + Book({kind: (1, 0)})
    if most is not None:
        check_number("most", most, 2**63 - 1)
        together = _ANSWERS if kind in _ANSWERS else (kind,)
        if sum(book.pair(one)[0] for one in together) > most:
            raise BudgetExhausted(
                f"{place.account}: the limit is {most:,} ({' and '.join(together)} together)"
            )
    rows.replace_total(db, _key(place), book)
    return book.pair(kind)[0]


def counts(db: sqlite3.Connection, data_id: str) -> dict[Kind, int]:
    """Return all numbers of an account."""
    book = rows.read_total(db, _key(Place.of(data_id)))
    return {kind: book.pair(kind)[0] for kind in KINDS}


def every(db: sqlite3.Connection) -> dict[Key, Book]:
    """Return all that was counted, by key among the totals."""
    return dict(rows.totals_between(db, (_RUN, ""), (f"{_RUN}\0", "")))


def _key(place: Place) -> Key:
    return (_RUN, place.account)
