"""What ``flower-ldp ledger show`` and ``policy check`` say is left of a policy's budgets."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from flower_ldp.accounting.amounts import Amount
from flower_ldp.accounting.books import Place
from flower_ldp.accounting.ledger import Ledger, Limit
from flower_ldp.accounting.ledger.charges import NO_RUN
from flower_ldp.cli.output import Report
from flower_ldp.policy import Policy

# The newest run of an account is looked for in so many entries.
_TAIL = 500


def budgets(ledger: Ledger, file: Path, policy: Policy, run: int | None, report: Report) -> None:
    """State what is left of each budget of a policy."""
    if not (policy.ledger.exists() and os.path.samefile(policy.ledger, file)):
        report.warn(f"the policy names another ledger, {policy.ledger}")
    if policy.is_simulation:
        report.warn("the policy is for simulation: neither data nor budgets are real")
    facts: list[dict[str, Any]] = []
    newest = _newest_runs(ledger)
    for data_id in accounts_of(ledger, policy):
        chosen = newest.get(data_id) if run is None else run
        for limit in policy.limits():
            # A run that is still to come is bound by what belongs to no run.
            spent = ledger.spent(data_id, NO_RUN if chosen is None else chosen, limit)
            allowed, left = limit.allowed, left_of(limit.allowed, spent)
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
                    "over": over(data_id, limit, spent),
                }
            )
    report.facts["budgets"] = facts
    for fact in facts:
        if fact["over"]:
            report.warn(fact["over"])
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


def over(data_id: str, limit: Limit, spent: Amount) -> str | None:
    """Say that more was spent than a limit allows, with the figures; None if it was not."""
    allowed = limit.allowed
    if spent.epsilon <= allowed.epsilon and spent.delta <= allowed.delta:
        return None
    return (
        f"{data_id}: {spent} was spent in all, over the limit of {limit}: what counts towards "
        "it is refused"
    )


def left_of(allowed: Amount, spent: Amount) -> Amount:
    """Return what is left of a limit, nothing where more was spent."""
    # A budget that was lowered since may be below what was spent: then nothing is left.
    return Amount(max(allowed.epsilon - spent.epsilon, 0), max(allowed.delta - spent.delta, 0))


def accounts_of(ledger: Ledger, policy: Policy) -> list[str]:
    """Return the names under which a policy's data is charged."""
    if not policy.is_simulation:
        return [policy.data_id]
    return [name for name in ledger.accounts() if name.startswith(f"{policy.data_id}/")]


def _newest_runs(ledger: Ledger) -> dict[str, int]:
    """Return the newest run of each account; kept reports are of none."""
    first = max(1, ledger.mark().entries - _TAIL + 1)
    return {
        Place.of(entry.data_id).account: entry.run_id
        for entry in ledger.entries(first)
        if entry.run_id != NO_RUN
    }
