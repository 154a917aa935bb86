"""Accounts for parts of the data, and reports that answer more than one message.

An embedding is about one record, and a split run releases records block by block. One account
for all of them would add up what blocks cost, though no record is in two. So each block has an
account, named ``data#layout/block``. What a record has spent is what was spent on all of the
data and, of each layout, on the part with the most: the ledger adds that up and compares it with
the limits, so data may be charged as a whole and in any number of layouts.

A kept report is charged and sealed under its question instead of its message, in run 0 of the
ledger, since it answers messages of every run and type: limits for a run count what is in run 0
beside the run's own. A crash between charge and seal leaves a question that is paid for and has no
report; it is then charged and drawn again. What a report rests on is charged with the first one, in
its transaction: both or neither.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace

from flower_ldp.accounting.ledger import Charge, Ledger, Limit, Receipt
from flower_ldp.accounting.ledger.charges import NO_RUN
from flower_ldp.accounting.ledger.types import NumberLimit
from flower_ldp.errors import RefusalError
from flower_ldp.refusals import REFUSED_REPEAT

_MARK = "#"
#: Draws of one report before it is refused for good: each crash wastes one, and costs one.
MOST_DRAWS = 8


def account_name(account: str, part: str) -> str:
    """Return the ledger's name for a part of the data, or for all of it."""
    return f"{account}{_MARK}{part}" if part else account


def kept(charge: Charge, question: str, draw: int = 0) -> Charge:
    """Return a charge under a question instead of a message."""
    name = hashlib.sha256(question.encode()).hexdigest()
    return replace(charge, run_id=NO_RUN, message_id=f"kept {name} {draw}", during=charge.run_id)


def charge_kept(
    ledger: Ledger,
    charge: Charge,
    limits: Sequence[Limit],
    memo: str,
    basis: Charge | None = None,
    *,
    numbers: Sequence[NumberLimit] = (),
    repeats: int | None = None,
) -> Receipt:
    """Charge a release under its message, or under its question if its report is kept.

    Parameters
    ----------
    ledger, charge, limits, basis, numbers, repeats
        As :meth:`Ledger.charge` has them.
    memo : str
        The question; empty if the report is not kept.

    Raises
    ------
    RefusalError
        As :meth:`Ledger.charge` does.
    """

    def paid(one: Charge) -> Receipt:
        return ledger.charge(one, limits, basis=basis, numbers=numbers, repeats=repeats)

    if not memo:
        return paid(charge)
    for draw in range(MOST_DRAWS):
        receipt = _unless_unsealed(paid, kept(charge, memo, draw))
        if receipt is not None:
            return receipt
    raise RefusalError(REFUSED_REPEAT, f"{MOST_DRAWS} charges were made and no report was sealed")


def _unless_unsealed(paid: Callable[[Charge], Receipt], charge: Charge) -> Receipt | None:
    try:
        return paid(charge)
    except RefusalError as refusal:
        if refusal.code != REFUSED_REPEAT:
            raise
        return None
