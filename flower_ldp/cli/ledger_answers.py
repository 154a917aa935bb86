"""What ``flower-ldp ledger show`` says was spent: totals, bounds, counts, the last entries."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flower_ldp.accounting.composition import Totals
from flower_ldp.accounting.composition import totals as composed
from flower_ldp.accounting.ledger import Entry, Ledger, Mark, NumberLimit
from flower_ldp.accounting.ledger.anchor import Anchor
from flower_ldp.accounting.ledger.file import undo
from flower_ldp.accounting.ledger.releases import releases_by_account
from flower_ldp.accounting.ledger.spending import UnitSpending
from flower_ldp.accounting.ledger.types import Kind
from flower_ldp.cli.output import Report
from flower_ldp.errors import LedgerError
from flower_ldp.privacy import Unit, at_least, meaning

#: What each count means to the owner.
_MEANINGS: dict[Kind, str] = {
    "again": "{} stored reports were sent again, at no charge",
    "acknowledged": "{} messages were acknowledged, with nothing in the answer and at no charge",
    "failed": (
        "{} times the app failed or was too late after a charge, and a report without information "
        "left in its place; the client's log has the causes"
    ),
}


def look_into(file: Path, anchor: Anchor | None = None) -> Ledger:
    """Open a ledger without changing it, unless a crash left a transaction to be undone.

    Parameters
    ----------
    file : Path
        The ledger.
    anchor : Anchor, optional
        What must lie in its history.

    Raises
    ------
    LedgerError
        If it cannot be opened.
    """
    try:
        return Ledger.open(file, read_only=True, anchor=anchor)
    except LedgerError as error:
        # A process that was killed while it charged leaves a journal.
        if not (isinstance(error.__cause__, sqlite3.Error) and "readonly" in str(error.__cause__)):
            raise
    undo(file)
    return Ledger.open(file, read_only=True, anchor=anchor)


def mark_facts(mark: Mark) -> dict[str, Any]:
    """Return the end of a chain for JSON."""
    return {"ledger": mark.ledger, "entries": mark.entries, "chain": mark.chain}


def totals(ledger: Ledger, report: Report) -> None:
    """State what was spent over all runs, directly and in all, and what is not bounded."""
    mark = ledger.mark()
    accounts = ledger.accounts()
    found = [(data_id, row) for data_id in accounts for row in ledger.spending(data_id)]
    report.facts["mark"] = mark_facts(mark)
    report.facts["totals"] = [
        {"data_id": data_id, "parts": accounts[data_id], **_fact(row)} for data_id, row in found
    ]
    report.line(f"Ledger {mark.ledger}, {mark.entries:,} entries")
    if not found:
        report.line("Nothing was spent.")
        return
    report.table(
        "Spent over all runs, pure: in all, and the part of it that was about the very unit",
        ("data", "unit", "epsilon in all", "delta in all", "epsilon directly", "delta directly"),
        [_cells(data_id, row) for data_id, row in found],
    )
    _conditional(found, report)
    for data_id, row in found:
        for sentence in _notes(row):
            report.line(f"{data_id} per {row.unit.value}: {sentence}.")
    promised = [(data_id, row) for data_id, row in found if row.promised]
    if promised:
        data_id, row = max(promised, key=lambda one: one[1].in_all.epsilon)
        spent = row.in_all.spent(row.unit)
        report.line(f"The largest, {data_id} per {row.unit.value}: {meaning(spent)}")


NO_PROMISE = "no promise"


def _fact(row: UnitSpending) -> dict[str, Any]:
    """Return a total for JSON; a unit for which nothing was promised has none."""
    promised = row.promised
    return {
        "unit": row.unit.value,
        "epsilon": row.in_all.epsilon_text if promised else None,
        "delta": row.in_all.delta_text if promised else None,
        "direct_epsilon": row.direct.epsilon_text,
        "direct_delta": row.direct.delta_text,
        "counted_epsilon": row.counted.epsilon_text,
        "counted_delta": row.counted.delta_text,
        "releases_without_promise": row.beyond.silent,
        "releases_conditional": row.beyond.conditional,
        "releases_post_processing": row.waived,
        "conditional": [
            {"mechanism": name, "epsilon": amount.epsilon_text, "delta": amount.delta_text}
            for name, amount in row.under.items()
        ],
        "meaning": meaning(row.in_all.spent(row.unit)) if promised else NO_PROMISE,
    }


def _cells(data_id: str, row: UnitSpending) -> tuple[str, ...]:
    if not row.promised:
        return (data_id, row.unit.value, NO_PROMISE, "", "", "")
    direct = (row.direct.epsilon_text, row.direct.delta_text)
    return (data_id, row.unit.value, row.in_all.epsilon_text, row.in_all.delta_text, *direct)


def _notes(row: UnitSpending) -> Iterator[str]:
    """Yield what must be known beside a total."""
    if row.beyond:
        end = ": the total does not bound them" if row.promised else ""
        yield f"{row.beyond}{end}"
    if row.waived:
        yield (
            f"{row.waived:,} released as post-processing of what was paid, which the owner declares"
        )


def _conditional(found: list[tuple[str, UnitSpending]], report: Report) -> None:
    rows = [
        (data_id, row.unit.value, name, amount.epsilon_text, amount.delta_text)
        for data_id, row in found
        for name, amount in row.under.items()
    ]
    if rows:
        report.table(
            "Under a condition only, in all, and in no total above",
            ("data", "unit", "claim", "epsilon", "delta"),
            rows,
        )


def bounds(ledger: Ledger, delta: float, report: Report) -> None:
    """State the smaller of the pure sum and the bound by privacy loss distributions."""
    facts: list[dict[str, Any]] = []
    for data_id, releases in releases_by_account(ledger).items():
        sums = {row.unit: row for row in ledger.spending(data_id)}
        for unit in Unit:
            events = releases.towards(unit)
            if not events:
                continue
            # Of parts the sum is the largest one's, which is below that of all that may be.
            pure = sums[unit].in_all.spent(unit)
            both = Totals(pure, composed(events, delta=delta)[unit].approximate)
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
                "none" if fact["pld"] is None else at_least(fact["pld"]),
                f"{at_least(fact['smaller'])} at delta {at_least(fact['smaller_delta'])}",
            )
            for fact in facts
        ],
    )


def numbers(ledger: Ledger, report: Report) -> None:
    """State the releases of each account, and what was answered or failed beside them."""
    found = ledger.counted()
    accounts = sorted({*found, *ledger.accounts()})
    made = {name: ledger.number(name, NumberLimit(0)) for name in accounts}
    report.facts["numbers"] = [
        {
            "data_id": name,
            "releases": made[name],
            **{k: found.get(name, {}).get(k, 0) for k in _MEANINGS},
        }
        for name in accounts
    ]
    for name, counts in found.items():
        for kind, sentence in _MEANINGS.items():
            if counts[kind]:
                report.line(f"{name}: {sentence.format(f'{counts[kind]:,}')}.")


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
        ("entry", "at", "data", "run", "type", "mechanism", "unit", "epsilon", "waived", "sealed"),
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
                str(row["waived"]),
                "yes" if row["sealed"] else "no",
            )
            for row in rows
        ],
    )
