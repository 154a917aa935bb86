"""What ``flower-ldp ledger show`` says: totals, bounds, budgets left, entries."""

from __future__ import annotations

import os
import sqlite3
from collections import Counter
from pathlib import Path
from typing import Any

from flower_ldp.accounting.amounts import Amount
from flower_ldp.accounting.composition import totals as composed
from flower_ldp.accounting.ledger import Entry, Ledger, Limit, Mark
from flower_ldp.cli.output import Report, number
from flower_ldp.errors import LedgerError
from flower_ldp.policy import Policy
from flower_ldp.privacy import PrivacyEvent, Unit, meaning

# The newest run of an account is looked for in so many entries.
_TAIL = 500


def look_into(file: Path) -> Ledger:
    """Open a ledger without changing it, unless a crash left a transaction to be undone.

    Raises
    ------
    LedgerError
        If it cannot be opened.
    """
    try:
        return Ledger.open(file, read_only=True)
    except LedgerError as error:
        # A process that was killed while it charged leaves a journal, and SQLite reads nothing
        # until a connection that may write has undone what was never committed. The next
        # client would do that as well.
        if not (isinstance(error.__cause__, sqlite3.Error) and "readonly" in str(error.__cause__)):
            raise
    return Ledger.open(file)


def mark_facts(mark: Mark) -> dict[str, Any]:
    """Return the end of a chain for JSON."""
    return {"ledger": mark.ledger, "entries": mark.entries, "chain": mark.chain}


def totals(ledger: Ledger, report: Report) -> None:
    """State the pure totals over all runs, and what each is worth."""
    mark = ledger.mark()
    found = [
        (data_id, unit, amount)
        for data_id in ledger.data_ids()
        for unit, amount in ledger.totals(data_id).items()
    ]
    report.facts["mark"] = mark_facts(mark)
    report.facts["totals"] = [
        {
            "data_id": data_id,
            "unit": unit.value,
            "epsilon": amount.epsilon_text,
            "delta": amount.delta_text,
            "meaning": meaning(amount.spent(unit)),
        }
        for data_id, unit, amount in found
    ]
    report.line(f"Ledger {mark.ledger}, {mark.entries:,} entries")
    if not found:
        report.line("Nothing was spent.")
        return
    report.table(
        "Spent over all runs, pure",
        ("data", "unit", "epsilon", "delta"),
        [(d, unit.value, a.epsilon_text, a.delta_text) for d, unit, a in found],
    )
    data_id, unit, worst = max(found, key=lambda row: row[2].epsilon)
    report.line(f"The largest, {data_id} per {unit.value}: {meaning(worst.spent(unit))}")


def bounds(ledger: Ledger, delta: float, report: Report) -> None:
    """State the smaller of the pure sum and the bound by privacy loss distributions."""
    counts: dict[str, Counter[PrivacyEvent]] = {}
    for entry in ledger.entries():
        mine = counts.setdefault(entry.data_id, Counter())
        for event in entry.events:
            cost = event.cost.spent(Unit(event.unit))
            mine[PrivacyEvent(event.mechanism, cost.epsilon, cost.delta, cost.unit)] += event.count
    facts: list[dict[str, Any]] = []
    for data_id in sorted(counts):
        events = [
            PrivacyEvent(e.mechanism, e.epsilon, e.delta, e.unit, count)
            for e, count in counts[data_id].items()
        ]
        for unit, both in composed(events, delta=delta).items():
            second = None if both.approximate is None else both.approximate.epsilon
            fact: dict[str, Any] = {
                "data_id": data_id,
                "unit": unit.value,
                "pure": both.pure.epsilon,
                "pld": second,
                "delta": delta,
                "smaller": both.smaller.epsilon,
                "smaller_delta": both.smaller.delta,
            }
            facts.append(fact)
    report.facts["bounds"] = facts
    report.table(
        f"By privacy loss distributions at delta {delta:g} (valid if the epsilons and the number "
        "of releases did not depend on reports)",
        ("data", "unit", "epsilon", "the smaller bound"),
        [
            (
                fact["data_id"],
                fact["unit"],
                "none" if fact["pld"] is None else number(fact["pld"]),
                f"{number(fact['smaller'])} at delta {fact['smaller_delta']:g}",
            )
            for fact in facts
        ],
    )


def budgets(ledger: Ledger, file: Path, policy: Policy, run: int | None, report: Report) -> None:
    """State what is left of each budget of a policy."""
    if not (policy.ledger.exists() and os.path.samefile(policy.ledger, file)):
        report.warn(f"the policy names another ledger, {policy.ledger}")
    if policy.is_simulation:
        report.warn("the policy is for simulation: neither data nor budgets are real")
    facts: list[dict[str, Any]] = []
    newest = _newest_runs(ledger)
    for data_id in _accounts(ledger, policy):
        chosen = newest.get(data_id) if run is None else run
        for budget in policy.limits():
            limit = Limit(**budget._asdict())
            if limit.scope == "run" and chosen is None:
                spent = Amount()  # a run that is still to come
            else:
                spent = ledger.spent(data_id, chosen or 0, limit)
            allowed, left = limit.allowed, _left(limit.allowed, spent)
            facts.append(
                {
                    "data_id": data_id,
                    "unit": limit.unit.value,
                    "scope": limit.scope,
                    "run_id": str(chosen) if limit.scope == "run" and chosen is not None else None,
                    "window_seconds": limit.window_seconds,
                    "epsilon": allowed.epsilon_text,
                    "delta": allowed.delta_text,
                    "epsilon_left": left.epsilon_text,
                    "delta_left": left.delta_text,
                }
            )
    report.facts["budgets"] = facts
    report.table(
        "Left of the budgets",
        ("data", "unit", "for", "epsilon left", "of", "delta left", "of"),
        [
            (
                fact["data_id"],
                fact["unit"],
                _scope(fact),
                fact["epsilon_left"],
                fact["epsilon"],
                fact["delta_left"],
                fact["delta"],
            )
            for fact in facts
        ],
    )


def _scope(fact: dict[str, Any]) -> str:
    if fact["scope"] == "run":
        return "a new run" if fact["run_id"] is None else f"run {fact['run_id']}"
    if fact["scope"] == "window":
        return f"the last {fact['window_seconds'] / 86_400:g} days"
    return "life"


def _left(allowed: Amount, spent: Amount) -> Amount:
    # A budget that was lowered since may be below what was spent: then nothing is left.
    return Amount(max(allowed.epsilon - spent.epsilon, 0), max(allowed.delta - spent.delta, 0))


def _accounts(ledger: Ledger, policy: Policy) -> list[str]:
    """Return the names under which a policy's data is charged."""
    if not policy.is_simulation:
        return [policy.data_id]
    return [name for name in ledger.data_ids() if name.startswith(f"{policy.data_id}/")]


def _newest_runs(ledger: Ledger) -> dict[str, int]:
    first = max(1, ledger.mark().entries - _TAIL + 1)
    return {entry.data_id: entry.run_id for entry in ledger.entries(first)}


def last_entries(ledger: Ledger, last: int, report: Report) -> None:
    """Show the newest entries."""
    first = max(1, ledger.mark().entries - last + 1)
    entries: list[Entry] = list(ledger.entries(first)) if last else []
    rows = [row for entry in entries for row in entry.rows()]
    report.facts["entries"] = rows
    if not rows:
        return
    report.table(
        "The last entries" if first > 1 else "Entries",
        ("entry", "at", "data", "run", "type", "mechanism", "unit", "epsilon", "sealed"),
        [
            (
                str(row["entry"]),
                str(row["at"])[:19],
                str(row["data_id"]),
                str(row["run_id"]),
                str(row["message_type"]),
                str(row["mechanism"]),
                str(row["unit"]),
                str(row["epsilon"]) + (f" x {row['count']}" if row["count"] != 1 else ""),
                "yes" if row["sealed"] else "no",
            )
            for row in rows
        ],
    )
