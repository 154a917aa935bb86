"""``flower-ldp ledger show``: what was spent, and what is left; nothing is changed."""

import math
import os
import sqlite3
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from flower_ldp.accounting.amounts import Amount, Place
from flower_ldp.accounting.composition import Totals, totals
from flower_ldp.accounting.ledger import Ledger, NumberLimit
from flower_ldp.accounting.ledger.anchor import Anchor
from flower_ldp.accounting.ledger.charges import NO_RUN
from flower_ldp.accounting.ledger.file import undo
from flower_ldp.accounting.ledger.sums import UnitSpending, releases_by_account, releases_towards
from flower_ldp.cli.output import File, Report, working
from flower_ldp.cli.policy import accounts_of, left_of, over
from flower_ldp.errors import LedgerError
from flower_ldp.parameter_bounds import Bounded
from flower_ldp.policy import Policy, load_policy
from flower_ldp.privacy import Unit, at_least, meaning, rounded_up

NO_PROMISE = "no promise"
# The newest run of an account is looked for in so many entries.
_TAIL = 500


def look_into(file: Path, anchor: Anchor | None = None) -> Ledger:
    """Open a ledger without changing it, unless a crash left a transaction to be undone.

    ``anchor`` must lie in its history. Raises LedgerError if it cannot be opened.
    """
    try:
        return Ledger.open(file, read_only=True, anchor=anchor)
    except LedgerError as error:
        # A process that was killed while it charged leaves a journal.
        if not (isinstance(error.__cause__, sqlite3.Error) and "readonly" in str(error.__cause__)):
            raise
    undo(file)
    return Ledger.open(file, read_only=True, anchor=anchor)


def show(
    report: Report,
    file: File,
    policy: Path | None = None,
    run: Annotated[int | None, Bounded("[0, 2^64)")] = None,
    delta: Annotated[float | None, Bounded("(0, 1)")] = None,
    last: Annotated[int, Bounded("[0, inf)")] = 10,
) -> None:
    """Show what was spent, per data and unit, and the last entries; change nothing.

    Parameters
    ----------
    file
        The ledger.
    policy
        Policy: say what is left of each of its budgets.
    run
        The run of which budgets per run speak; else the data's newest one.
    delta
        Add the bound by privacy loss distributions at this delta, which reads all entries.
    last
        Entries to show, the newest.
    """
    rules = None if policy is None else load_policy(policy)
    with look_into(file) as ledger:
        _totals(ledger, report)
        if delta is not None:
            with working("adding up all entries"):
                _bounds(ledger, delta, report)
        if rules is not None:
            _budgets(ledger, file, rules, run, report)
        _numbers(ledger, report)
        _last_entries(ledger, last, report)


def _totals(ledger: Ledger, report: Report) -> None:
    """State the spending over all runs, directly and in all, and what is not bounded."""
    mark = ledger.mark()
    accounts = ledger.accounts()
    found = [(data_id, row) for data_id in accounts for row in ledger.spending(data_id)]
    report.line(f"Ledger {mark.ledger}, {mark.entries:,} entries", mark=asdict(mark))
    if not found:
        report.line("Nothing was spent.")
    rows = [{"data_id": name, "parts": accounts[name], **_fact(row)} for name, row in found]
    report.table(
        "totals",
        "Spent over all runs, pure: in all, and the part of it that was about the very unit",
        rows,
        *("data_id", "unit", ("epsilon in all", lambda row: row["epsilon"] or NO_PROMISE)),
        *(("delta in all", "delta"), "direct_epsilon", "direct_delta"),
    )
    report.table(
        "",
        "Under a condition only, in all, and in no total above",
        [
            {"data": row["data_id"], "unit": row["unit"], **claim}
            for row in rows
            for claim in row["conditional"]
        ],
    )
    for data_id, row in found:
        of = f"{data_id} per {row.unit.value}"
        if row.beyond:
            end = ": the total does not bound them" if row.promised else ""
            report.line(f"{of}: {row.beyond}{end}.")
        if row.waived:
            free = f"{row.waived:,} released as post-processing of what was paid"
            report.line(f"{of}: {free}, which the owner declares.")
    # By zCDP the sum is no bound that anybody needs.
    promised = [(data_id, row) for data_id, row in found if row.promised and row.zcdp == Amount()]
    if promised:
        data_id, row = max(promised, key=lambda one: one[1].in_all.epsilon)
        spent = row.in_all.spent(row.unit)
        report.line(f"The largest, {data_id} per {row.unit.value}: {meaning(spent)}")


def _fact(row: UnitSpending) -> dict[str, Any]:
    """Return a total for JSON; a unit for which nothing was promised has none."""
    promised = row.promised
    return {
        "unit": row.unit.value,
        **(_amount(row.in_all) if promised else {"epsilon": None, "delta": None}),
        **_amount(row.direct, "direct_"),
        **_amount(row.counted, "counted_"),
        "rho": row.zcdp.epsilon_text,
        "releases_without_promise": row.beyond.silent,
        "releases_conditional": row.beyond.conditional,
        "releases_post_processing": row.waived,
        "conditional": [{"mechanism": name, **_amount(of)} for name, of in row.under.items()],
        "meaning": meaning(row.in_all.spent(row.unit)) if promised else NO_PROMISE,
    }


def _amount(amount: Amount, of: str = "") -> dict[str, str]:
    return {f"{of}epsilon": amount.epsilon_text, f"{of}delta": amount.delta_text}


def _bounds(ledger: Ledger, delta: float, report: Report) -> None:
    """State the smaller of the pure sum and the bound by privacy loss distributions."""
    rows: list[dict[str, Any]] = []
    for data_id, places in releases_by_account(ledger.entries()).items():
        sums = {row.unit: row for row in ledger.spending(data_id)}
        for unit in Unit:
            events = releases_towards(places, unit)
            if not events:
                continue
            # Of parts the sum is the largest one's, which is below that of all that may be.
            pure = sums[unit].in_all.spent(unit)
            both = Totals(pure, totals(events, delta=delta)[unit].approximate)
            rows.append(
                {
                    "data_id": data_id,
                    "unit": unit.value,
                    "pure": both.pure.epsilon,
                    "pld": None if both.approximate is None else both.approximate.epsilon,
                    "delta": delta,
                    "smaller": both.smaller.epsilon,
                    "smaller_delta": both.smaller.delta,
                }
            )
    report.table(
        "bounds",
        f"By privacy loss distributions at delta {delta:g} (valid if the epsilons and the number "
        "of releases did not depend on reports)",
        rows,
        *("data_id", "unit"),
        ("epsilon", lambda row: "none" if row["pld"] is None else at_least(row["pld"])),
        (
            "the smaller bound",
            lambda row: f"{at_least(row['smaller'])} at delta {at_least(row['smaller_delta'])}",
        ),
    )


def _budgets(ledger: Ledger, file: Path, policy: Policy, run: int | None, report: Report) -> None:
    """State what is left of each budget of a policy."""
    if not (policy.ledger.exists() and os.path.samefile(policy.ledger, file)):
        report.warn(f"the policy names another ledger, {policy.ledger}")
    if policy.is_simulation:
        report.warn("the policy is for simulation: neither data nor budgets are real")
    rows: list[dict[str, Any]] = []
    newest = _newest_runs(ledger)
    for data_id in accounts_of(ledger, policy):
        chosen = newest.get(data_id) if run is None else run
        for limit in policy.limits():
            # A run that is still to come is bound by what belongs to no run.
            sums = ledger.spent(data_id, NO_RUN if chosen is None else chosen, limit)
            zcdp = ledger.spent_zcdp(data_id, limit.unit)
            left = left_of(limit.allowed, sums)
            most = limit.allowed_zcdp
            exceeded = over(data_id, limit, (sums, zcdp))
            if exceeded:
                report.warn(exceeded)
            rows.append(
                {
                    "data_id": data_id,
                    "unit": limit.unit.value,
                    "scope": limit.scope,
                    "run_id": str(chosen) if limit.scope == "run" and chosen is not None else None,
                    "window_seconds": limit.window_seconds,
                    **_amount(limit.whole),
                    # By zCDP nothing is left in epsilon: the filter bounds the life as a whole.
                    "epsilon_left": left.epsilon_text if most is None else None,
                    "delta_left": left.delta_text if most is None else None,
                    "rho": most and most.epsilon_text,
                    "rho_spent": most and zcdp.epsilon_text,
                    "rho_share": most and share(zcdp.epsilon, most.epsilon),
                    "over": exceeded,
                }
            )
    report.table(
        "budgets",
        "Left of the budgets",
        rows,
        *("data_id", "unit", "scope", "run_id"),
        ("days", lambda row: row["window_seconds"] and row["window_seconds"] / 86_400),
        *("epsilon_left", "epsilon", "delta_left", "delta"),
        ("rho used", lambda row: row["rho_share"] and f"{100 * row['rho_share']:.4g} %"),
    )


def share(used: int, most: int) -> float:
    """Return a share, rounded up to four digits."""
    return rounded_up(used / most, 4) if most else math.inf


def _newest_runs(ledger: Ledger) -> dict[str, int]:
    """Return the newest run of each account; kept reports are of none."""
    first = max(1, ledger.mark().entries - _TAIL + 1)
    entries = (entry for entry in ledger.entries(first) if entry.run_id != NO_RUN)
    return {Place.of(entry.data_id).account: entry.run_id for entry in entries}


def _numbers(ledger: Ledger, report: Report) -> None:
    """State the releases of each account, and what was answered or failed beside them."""
    rows = [
        {"data_id": name, "releases": ledger.number(name, NumberLimit(0)), **ledger.counts(name)}
        for name in sorted({*ledger.counted(), *ledger.accounts()})
    ]
    raw = sum(row["unprotected"] for row in rows)
    if raw:
        report.warn(f"{raw:,} raw replies left without protection: no total bounds them")
    report.table(
        "numbers",
        "Releases, and beside them at no charge: stored reports sent again, messages acknowledged, "
        "apps that failed or were too late after a charge (the client's log has the causes), raw "
        "replies (NOT_ENCRYPT)",
        rows,
    )


def _last_entries(ledger: Ledger, last: int, report: Report) -> None:
    first = max(1, ledger.mark().entries - last + 1)
    report.table(
        "entries",
        "The last entries" if first > 1 else "Entries",
        [row for entry in ledger.entries(first) for row in entry.rows()] if last else [],
        *("entry", ("at", lambda row: row["at"][:19]), "data_id", "run_id", "message_type"),
        *("mechanism", "unit", "epsilon", "count", "waived", "sealed"),
    )
