"""``flower-ldp ledger``: make a ledger, look into it, copy it out, check it, and care for it."""

import csv
import io
import json
import os
import shlex
import shutil
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from glob import escape
from pathlib import Path
from typing import Annotated, Any, Literal, TextIO, TypeAlias

import typer

from flower_ldp.accounting.ledger import Ledger
from flower_ldp.accounting.ledger.anchor import Anchor, anchor_of
from flower_ldp.accounting.ledger.charges import DAY, MOST_JUMP
from flower_ldp.cli.ledger_show import look_into, show
from flower_ldp.cli.output import File, Report, command, group, usage, working, wrong
from flower_ldp.errors import ConfigError, LedgerError, quoted
from flower_ldp.facts import Fact, note
from flower_ldp.safe_files import replacing

app = group("flower-ldp ledger show privacy-ledger.sqlite")

_SET_RIGHT = "Set the clock right, or if it is, repeat this with --accept"
COLUMNS = (
    *("entry", "at", "data_id", "run_id", "message_id", "message_type", "fingerprint"),
    *("parameters", "sealed", "releases", "mechanism", "unit", "epsilon", "delta", "count"),
    "waived",
    "rho",
)
Rows: TypeAlias = Iterable[Mapping[str, Any]]


@command(app, "create", "flower-ldp ledger create privacy-ledger.sqlite")
def create(report: Report, file: File) -> None:
    """Make a new ledger; refuse if there is a file of that name.

    Do this once for data that was never released from. Restore a lost ledger from a backup: a new
    one would have forgotten what was spent.

    Parameters
    ----------
    file
        The ledger.
    """
    if file.exists() or file.is_symlink():
        raise LedgerError(f"{file} exists: a ledger is made once, and never on top of a file")
    with Ledger.open(file, create=True) as ledger:
        mark = ledger.mark()
    report.line(f"{file}: a new ledger, {mark.ledger}, with nothing spent", mark=asdict(mark))


command(app, "show", "flower-ldp ledger show privacy-ledger.sqlite --last 20")(show)


@command(app, "export", "flower-ldp ledger export privacy-ledger.sqlite | jq .epsilon")
def export(
    report: Report,
    file: File,
    format: Literal["jsonl", "csv"] = "jsonl",
    output: Path | None = None,
) -> None:
    """Write every charge, one row for each mechanism; amounts are exact decimals.

    Parameters
    ----------
    file
        The ledger.
    format
        jsonl, one JSON object a line, or csv.
    output
        Write to this file, whole or not at all, with mode 0600; else to stdout.
    """
    as_csv = format == "csv"
    if output is None:
        if report.as_json:
            raise typer.BadParameter("--json needs --output: the rows themselves go to stdout")
        with look_into(file) as ledger:
            write_rows(ledger.export(), as_csv, sys.stdout)
        sys.stdout.flush()
        return
    target, source = Path(os.path.realpath(output)), Path(os.path.realpath(file))
    same = target.exists() and source.exists() and os.path.samefile(target, source)
    if same or target in (source, source.with_name(source.name + "-journal")):
        raise wrong("--output", f"{output} is the ledger itself")
    # /dev/stdout may lead to a regular file, which must not be replaced under the shell either.
    device = Path(os.path.abspath(output)).parts[1:2] in (("dev",), ("proc",))
    if device or (target.exists() and not target.is_file()):
        raise wrong("--output", f"{output} is no regular file; without it rows go to stdout")
    with look_into(file) as ledger, working(f"writing {output}"):
        rows = to_file(ledger.export(), as_csv, output)
    report.line(f"{output}: {rows:,} rows", output=str(output), format=format, rows=rows)


def to_file(rows: Rows, as_csv: bool, target: Path) -> int:
    """Write rows to a file, replaced only when all is on disk, and return their number.

    On an OSError the target is as it was.
    """
    # A link stays a link. What was released is the owner's to show.
    with replacing(Path(os.path.realpath(target)), mode=0o600) as file:
        stream = io.TextIOWrapper(file, encoding="utf-8", newline="")
        count = write_rows(rows, as_csv, stream)
        stream.detach()
    return count


def write_rows(rows: Rows, as_csv: bool, stream: TextIO) -> int:
    """Write rows as they come and return their number.

    In CSV a ``'`` stands before text that a spreadsheet would read as a formula: the server chooses
    some of it.
    """
    table, count = csv.DictWriter(stream, COLUMNS, lineterminator="\n"), 0
    if as_csv:
        table.writeheader()
    for row in rows:
        count += 1
        if as_csv:
            table.writerow({name: _cell(value) for name, value in row.items()})
        else:
            stream.write(json.dumps(row) + "\n")
    return count


def _cell(value: object) -> object:
    return f"'{value}" if isinstance(value, str) and value[:1] in tuple("=+-@") else value


@command(app, "verify", "flower-ldp ledger verify privacy-ledger.sqlite")
def verify(
    report: Report, file: File, anchor: Path | None = None, anchor_command: str | None = None
) -> None:
    """Check the whole ledger: each entry, sum and report; charges wait meanwhile.

    It takes time in proportion to the file. Keep the end of the chain that it prints elsewhere, or
    have an anchor keep it: it shows later whether a file was set back.

    Parameters
    ----------
    file
        The ledger.
    anchor
        Compare with the rollback anchor in this file.
    anchor_command
        Compare with the rollback anchor of this program.
    """
    kept = _anchor_named("--anchor / --anchor-command", anchor, anchor_command)
    with look_into(file, kept) as ledger, working(f"checking {file}"):
        found = ledger.verify()
    report.line(f"{file}: in order")
    report.tell(
        Fact("entries", found.entries, "entries"),
        Fact("sealed", found.sealed, "   with a report"),
        Fact("totals", found.totals, "running sums", ", as the entries make them"),
        Fact("mark", asdict(found.mark)),
        note("ledger", found.mark.ledger),
        note("end of the chain", found.mark.chain),
    )
    if kept is not None:
        report.line(f"{kept}: in this ledger's history", anchor=str(kept))


@command(app, "anchor", "flower-ldp ledger anchor privacy-ledger.sqlite --file /media/key/mark")
def make_anchor(
    report: Report,
    file: File,
    target: Annotated[Path | None, typer.Option("--file")] = None,
    command: str | None = None,
    replace: bool = False,
) -> None:
    """Make a rollback anchor from a ledger that you trust to be the newest there is.

    Name it in the policy then. Every opening compares it with the ledger and every charge moves it;
    a ledger that was set back behind it is refused. Nothing else ever makes one.

    Parameters
    ----------
    file
        The ledger.
    target
        Keep it in this file, on another disk.
    command
        Keep it by this program, with arguments as in a shell but without one.
    replace
        Give up what it holds. After a restored backup, and only once what was released since has
        been taken off the budget.
    """
    anchor = _anchor_named("--file / --command", target, command)
    if anchor is None:
        raise typer.BadParameter("give --file or --command")
    with Ledger.open(file) as ledger:
        mark = ledger.make_anchor(anchor, replace=replace)
    report.facts.update(anchor=str(anchor), mark=asdict(mark))
    report.line(f"{anchor}: holds entry {mark.entries:,} of ledger {mark.ledger}")
    if target is not None and target.stat().st_dev == file.stat().st_dev:
        report.warn("anchor and ledger are on one file system: a snapshot sets both back")


@command(app, "forget", "flower-ldp ledger forget simulation_policy.yaml")
def forget(report: Report, policy: File) -> None:
    """Remove a simulation's ledger and what is kept beside it, so that the next run begins anew.

    Every account in it must be a simulated client's of the policy's data: what was spent of real
    data is never forgotten.

    Parameters
    ----------
    policy
        A policy with mode: simulation.
    """
    # These load what no other command of the group needs.
    from flower_ldp.clients.dpsgd_charging import ENDED_SUFFIX, FOLDER_SUFFIX, KEY_SUFFIX
    from flower_ldp.node.report_mac import KEY_SUFFIX as MARK_KEY_SUFFIX
    from flower_ldp.policy import load_policy

    rules = load_policy(policy)
    if not rules.is_simulation:
        raise ConfigError(f"{policy}: its mode is deployment, and what was spent there stays")
    if rules.anchor is not None:
        raise ConfigError(f"{policy} names an anchor, which is kept: remove both by hand")
    file = Path(os.path.realpath(rules.ledger))
    with Ledger.open(file, durable=False) as ledger:
        for account in ledger.accounts():
            if not account.startswith(f"{rules.data_id}/"):
                other = f"{quoted(account)} is no simulated client's of {quoted(rules.data_id)}"
                raise LedgerError(f"{file}: the account {other}: nothing was removed")
    labels = (".labels-key", ".labels-key.lock")
    ends = ("-journal", MARK_KEY_SUFFIX, KEY_SUFFIX, FOLDER_SUFFIX, *labels)
    beside = [file.with_name(file.name + end) for end in ends]
    beside += file.parent.glob(f"{escape(file.name)}{ENDED_SUFFIX}*")
    removed = [one for one in (*beside, file) if os.path.lexists(one)]
    for one in removed:  # the ledger at last: a command that is interrupted can be repeated
        shutil.rmtree(one) if one.is_dir() and not one.is_symlink() else one.unlink()
    report.facts.update(file=str(file), removed=[str(one) for one in removed])
    report.line(f"{file}: forgotten, with {len(removed) - 1} files and folders beside it")


@command(app, "clock", "flower-ldp ledger clock privacy-ledger.sqlite --accept")
def clock(report: Report, file: File, accept: bool = False) -> None:
    """Compare the clock with the ledger's time, and say that the clock is right.

    A charge more than 400 days past the latest entry is refused. --accept allows it once, for a
    pause that was real; and where the ledger is ahead, because it was charged with a wrong
    clock, has its time go on from its latest entry. Budgets per window are freed no earlier.

    Parameters
    ----------
    file
        The ledger.
    accept
        The clock is right: let the ledger's time go on.
    """
    if accept:
        with Ledger.open(file) as ledger:
            ledger.accept_clock()
    with look_into(file) as ledger:
        found = ledger.clock()
    runs = ", as its owner set it: so are dates of entries; windows have their full length"
    report.facts["accepted"] = accept
    report.tell(
        Fact("clock", _text(found.shown), "clock"),
        Fact("latest_entry", _text(found.latest) if found.latest else None, "latest entry"),
        Fact("ahead_seconds", found.ahead / 1e6, "seconds ahead", runs if found.ahead else ""),
        Fact("jumped", found.jumped),
    )
    if found.jumped:
        past = f"the clock is more than {MOST_JUMP // DAY} days past the latest entry"
        report.problem(f"{past}: charges are refused. {_SET_RIGHT}")
    elif found.latest > found.time:
        ahead = f"{(found.latest - found.time) / DAY:,.1f} days ahead of the clock"
        until = "nothing leaves a window until the clock has caught up"
        report.problem(f"the ledger's time is {ahead}: {until}. {_SET_RIGHT}")


def _text(microseconds: int) -> str:
    return datetime.fromtimestamp(microseconds // 1_000_000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _anchor_named(option: str, file: Path | None, command: str | None) -> Anchor | None:
    with usage(option):
        words = None if command is None else shlex.split(command)
        return anchor_of(None if file is None else file.absolute(), words)
