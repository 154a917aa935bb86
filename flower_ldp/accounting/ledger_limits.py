"""Whether a charge fits: every limit of every unit, in exact integers."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence

from flower_ldp.accounting import ledger_rows as rows
from flower_ldp.accounting.amounts import MOST, Amount
from flower_ldp.accounting.ledger_rows import DamageError
from flower_ldp.accounting.ledger_types import Charge, Limit
from flower_ldp.errors import BudgetExhausted
from flower_ldp.privacy import Unit


def check_limits(
    db: sqlite3.Connection,
    charge: Charge,
    wanted: Mapping[Unit, Amount],
    limits: Sequence[Limit],
    at: int,
) -> None:
    """Return if the charge fits everywhere at time ``at`` (microseconds).

    Raises
    ------
    BudgetExhausted
        Naming the first limit that it would exceed, or a unit that has none.
    """
    for unit, cost in wanted.items():
        life = rows.read_total(db, ("", charge.data_id, unit.value))
        # Two tables hold this sum, on different pages: a page that went back in time shows.
        if rows.read_course(db, charge.data_id, unit.value) != life:
            raise DamageError(f"two sums of {charge.data_id} per {unit.value} disagree")
        binding = [limit for limit in limits if limit.unit is unit]
        if not binding:
            raise BudgetExhausted(f"no limit is set per {unit.value}, so there is no budget")
        for limit in binding:
            spent = spent_towards(db, charge.data_id, charge.run_id, limit, at)
            if not _fits(spent, cost, limit.allowed):
                raise BudgetExhausted(
                    f"{charge.data_id}: {spent} was spent and {cost} is asked for, "
                    f"but the limit is {limit}"
                )
        if not _fits(life, cost, Amount(MOST, MOST)):
            raise BudgetExhausted(f"{charge.data_id}: the ledger cannot count beyond {life}")


def _fits(spent: Amount, cost: Amount, allowed: Amount) -> bool:
    return (
        spent.epsilon + cost.epsilon <= allowed.epsilon
        and spent.delta + cost.delta <= allowed.delta
    )


def spent_towards(
    db: sqlite3.Connection, data_id: str, run_id: int, limit: Limit, at: int
) -> Amount:
    """Return what counts towards a limit at time ``at`` (microseconds).

    A window holds what was charged at most ``window_seconds`` ago: the sum now minus the
    sum as it stood before. One look-up, exact for any length, and no buckets.
    """
    if limit.scope == "run":
        return rows.read_total(db, (str(run_id), data_id, limit.unit.value))
    life = rows.read_total(db, ("", data_id, limit.unit.value))
    if limit.scope == "life":
        return life
    return life - rows.read_course(db, data_id, limit.unit.value, at - limit.microseconds)
