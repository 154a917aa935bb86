"""What ``flower-ldp ledger`` says of numbers beside epsilon, of the clock and of anchors."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path

from flower_ldp.accounting.ledger import Ledger, NumberLimit
from flower_ldp.accounting.ledger.time import DAY, MOST_JUMP, Clock
from flower_ldp.accounting.ledger.types import Kind
from flower_ldp.cli.output import Report

#: What each count means to the owner.
_MEANINGS: dict[Kind, str] = {
    "again": "{} stored reports were sent again, at no charge",
    "acknowledged": "{} messages were acknowledged, with nothing in the answer and at no charge",
    "failed": (
        "{} times the app failed or was too late after a charge, and a report without information "
        "left in its place; the client's log has the causes"
    ),
}


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
        for kind, meaning in _MEANINGS.items():
            if counts[kind]:
                report.line(f"{name}: {meaning.format(f'{counts[kind]:,}')}.")


def clocks(clock: Clock, report: Report) -> None:
    """State what the clock shows and what the ledger's time is."""
    report.facts.update(
        clock=_text(clock.shown),
        latest_entry=_text(clock.latest) if clock.latest else None,
        ahead_seconds=clock.ahead / 1e6,
        jumped=clock.jumped,
    )
    report.pairs(
        [
            ("clock", _text(clock.shown)),
            ("latest entry", _text(clock.latest) if clock.latest else "none"),
        ]
    )
    if clock.jumped:
        report.problem(
            f"the clock is more than {MOST_JUMP // DAY} days past the latest entry: charges are "
            "refused. Set the clock right, or if it is, repeat this with --accept"
        )
    elif clock.latest > clock.time:
        report.problem(
            f"the ledger's time is {(clock.latest - clock.time) / DAY:,.1f} days ahead of the "
            "clock: nothing leaves a window until the clock has caught up. Set the clock right, "
            "or if it is, repeat this with --accept"
        )
    elif clock.ahead:
        report.line(
            f"The ledger's time runs {clock.ahead / DAY:,.1f} days ahead of the clock, as its "
            "owner has set it: so are the dates of its entries. Windows have their full length."
        )
    else:
        report.line("The ledger's time is the clock's.")


def _text(microseconds: int) -> str:
    return datetime.fromtimestamp(microseconds // 1_000_000, timezone.utc).strftime(
        "%Y-%m-%dT%H:%M:%SZ"
    )


def on_one_disk(file: Path, other: Path) -> bool:
    """Return whether two files are on one file system."""
    return file.stat().st_dev == other.stat().st_dev
