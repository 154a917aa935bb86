"""What a ledger's owner decides: what its rollback anchor holds, and that the clock is right."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime
from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flower_ldp.cli.output import JsonOption, Report, reporting

if TYPE_CHECKING:
    from flower_ldp.accounting.ledger.anchor import Anchor
    from flower_ldp.accounting.ledger.time import Clock

AnchorCommand = Annotated[
    str | None,
    typer.Option(
        metavar="TEXT",
        help="Compare with the rollback anchor that this program keeps.",
    ),
]
LedgerFile = Annotated[Path, typer.Argument(metavar="FILE", help="The ledger.")]


def make_anchor(
    file: LedgerFile,
    target: Annotated[
        Path | None,
        typer.Option("--file", metavar="FILE", help="Keep it in this file, on another disk."),
    ] = None,
    command: Annotated[
        str | None,
        typer.Option(
            "--command",
            metavar="TEXT",
            help="Keep it by this program, with arguments as in a shell but without one.",
        ),
    ] = None,
    replace: Annotated[
        bool,
        typer.Option(
            "--replace",
            help="Give up what it holds. After a restored backup, and only once what was "
            "released since has been taken off the budget.",
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Make a rollback anchor from a ledger that you trust to be the newest there is.

    Name it in the policy then. Every opening compares it with the ledger and every charge moves
    it; a ledger that was set back behind it is refused. Nothing else ever makes one.
    """
    from flower_ldp.accounting.ledger import Ledger
    from flower_ldp.cli.ledger_answers import mark_facts

    anchor = anchor_named("--file / --command", target, command)
    if anchor is None:
        raise typer.BadParameter("give --file or --command")
    with reporting(as_json) as report, Ledger.open(file) as ledger:
        mark = ledger.make_anchor(anchor, replace=replace)
        report.facts.update(file=str(file), anchor=str(anchor), mark=mark_facts(mark))
        report.line(f"{anchor}: holds entry {mark.entries:,} of ledger {mark.ledger}")
        if target is not None and target.stat().st_dev == file.stat().st_dev:
            report.warn("anchor and ledger are on one file system: a snapshot sets both back")


def forget(
    policy: Annotated[
        Path, typer.Argument(metavar="POLICY", help="A policy with mode: simulation.")
    ],
    as_json: JsonOption = False,
) -> None:
    """Remove a simulation's ledger and what is kept beside it, so that the next run begins anew.

    Every account in it must be a simulated client's of the policy's data: what was spent of real
    data is never forgotten.
    """
    from flower_ldp.accounting.ledger import Ledger
    from flower_ldp.clients.dpsgd.ends import ENDED_SUFFIX
    from flower_ldp.clients.dpsgd.models import FOLDER_SUFFIX, KEY_SUFFIX
    from flower_ldp.errors import ConfigError, LedgerError, quoted
    from flower_ldp.node.marks import KEY_SUFFIX as MARK_KEY_SUFFIX
    from flower_ldp.policy import load_policy

    with reporting(as_json) as report:
        rules = load_policy(policy)
        if not rules.is_simulation:
            raise ConfigError(f"{policy}: its mode is deployment, and what was spent there stays")
        file = Path(rules.ledger)
        with Ledger.open(file, durable=False) as ledger:
            for account in ledger.accounts():
                if not account.startswith(f"{rules.data_id}/"):
                    raise LedgerError(
                        f"{file} has the account {quoted(account)}, which is no simulated client's "
                        f"of {quoted(rules.data_id)}: nothing was removed"
                    )
        ends = ("-journal", MARK_KEY_SUFFIX, KEY_SUFFIX, FOLDER_SUFFIX)
        beside = [file.with_name(file.name + end) for end in ends]
        beside += file.parent.glob(f"{escape(file.name)}{ENDED_SUFFIX}*")
        if rules.anchor is not None and rules.anchor.file is not None:
            beside.append(rules.anchor.file)
        removed = [one for one in (*beside, file) if one.exists()]
        for one in removed:  # the ledger at last: a command that is interrupted can be repeated
            shutil.rmtree(one) if one.is_dir() else one.unlink()
        report.facts.update(file=str(file), removed=[str(one) for one in removed])
        report.line(f"{file}: forgotten, with {len(removed) - 1} files and folders beside it")


def clock(
    file: LedgerFile,
    accept: Annotated[
        bool, typer.Option("--accept", help="The clock is right: let the ledger's time go on.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Compare the clock with the ledger's time, and say that the clock is right.

    A charge more than 400 days past the latest entry is refused. --accept allows it once, for a
    pause that was real; and where the ledger is ahead, because it was charged with a wrong
    clock, has its time go on from its latest entry. Budgets per window are freed no earlier.
    """
    from flower_ldp.accounting.ledger import Ledger
    from flower_ldp.cli.ledger_answers import look_into

    with reporting(as_json) as report:
        report.facts.update(file=str(file), accepted=accept)
        if accept:
            with Ledger.open(file) as ledger:
                ledger.accept_clock()
        with look_into(file) as ledger:
            _say(ledger.clock(), report)


def _say(clock: Clock, report: Report) -> None:
    """State what the clock shows and what the ledger's time is."""
    from flower_ldp.accounting.ledger.time import DAY, MOST_JUMP

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
    return datetime.fromtimestamp(microseconds // 1_000_000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def anchor_named(option: str, file: Path | None, command: str | None) -> Anchor | None:
    """Return the anchor that options name."""
    import shlex

    from flower_ldp.accounting.ledger.anchor import anchor_of

    try:
        words = None if command is None else shlex.split(command)
        return anchor_of(None if file is None else file.absolute(), words)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from error
