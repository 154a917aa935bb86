"""``flower-ldp ledger``: make a ledger, look into it, copy it out, check it."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from flower_ldp.cli import ledger_care as care
from flower_ldp.cli.ledger_care import LedgerFile
from flower_ldp.cli.output import Command, JsonOption, epilog, reporting, working

app = typer.Typer(
    help="Make, read, export and check the ledger of privacy that was spent.",
    epilog=epilog("flower-ldp ledger show privacy-ledger.sqlite"),
    no_args_is_help=True,
    rich_markup_mode=None,
)


class Format(str, Enum):
    """How an export is written."""

    JSONL = "jsonl"
    CSV = "csv"


@app.command(cls=Command, epilog=epilog("flower-ldp ledger create privacy-ledger.sqlite"))
def create(file: LedgerFile, as_json: JsonOption = False) -> None:
    """Make a new ledger; refuse if there is a file of that name.

    Do this once for data that was never released from. A ledger that got lost is restored
    from a backup: a new one would have forgotten what was spent.
    """
    from flower_ldp.accounting.ledger import Ledger
    from flower_ldp.cli.ledger_answers import mark_facts
    from flower_ldp.errors import LedgerError

    with reporting(as_json) as report:
        if file.exists() or file.is_symlink():
            raise LedgerError(f"{file} exists: a ledger is made once, and never on top of a file")
        with Ledger.open(file, create=True) as ledger:
            mark = ledger.mark()
        report.facts.update(file=str(file), mark=mark_facts(mark))
        report.line(f"{file}: a new ledger, {mark.ledger}, with nothing spent")


@app.command(cls=Command, epilog=epilog("flower-ldp ledger migrate privacy-ledger.sqlite"))
def migrate(file: LedgerFile, as_json: JsonOption = False) -> None:
    """Bring a ledger of an older version to this one, as the next client would; keep a copy.

    Sums are made anew from the entries and may be larger: what was spent about a client counts
    towards its examples and labels. A ledger that is up to date stays as it is.
    """
    from flower_ldp.accounting.ledger import Ledger
    from flower_ldp.cli.ledger_answers import totals

    with reporting(as_json) as report, Ledger.open(file) as ledger:
        report.facts["file"] = str(file)
        report.line(f"{file}: of this version")
        totals(ledger, report)


@app.command(
    cls=Command,
    epilog=epilog(
        "flower-ldp ledger show privacy-ledger.sqlite --policy client_policy.yaml --last 20"
    ),
)
def show(
    file: LedgerFile,
    policy: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Policy: say what is left of each of its budgets."),
    ] = None,
    run: Annotated[
        int | None,
        typer.Option(help="The run of which budgets per run speak; else the data's newest one."),
    ] = None,
    delta: Annotated[
        float | None,
        typer.Option(
            help="In (0, 1): add the bound by privacy loss distributions at this delta, which "
            "reads all entries."
        ),
    ] = None,
    last: Annotated[int, typer.Option(help="Entries to show, the newest.")] = 10,
    as_json: JsonOption = False,
) -> None:
    """Show what was spent, per data and unit, and the last entries; change nothing."""
    from flower_ldp.accounting.ledger.charges import check_run
    from flower_ldp.cli import ledger_answers as answers
    from flower_ldp.cli.ledger_budgets import budgets
    from flower_ldp.policy import load_policy

    if last < 0:
        raise typer.BadParameter(f"must be at least 0, got {last}", param_hint="--last")
    if delta is not None and not 0 < delta < 1:
        raise typer.BadParameter(f"must be in (0, 1), got {delta}", param_hint="--delta")
    if run is not None:
        try:
            check_run(run)
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="--run") from error
    with reporting(as_json) as report:
        rules = None if policy is None else load_policy(policy)
        with answers.look_into(file) as ledger:
            answers.totals(ledger, report)
            if delta is not None:
                with working("adding up all entries"):
                    answers.bounds(ledger, delta, report)
            if rules is not None:
                budgets(ledger, file, rules, run, report)
            answers.numbers(ledger, report)
            answers.last_entries(ledger, last, report)


@app.command(
    cls=Command,
    epilog=epilog(
        "flower-ldp ledger export privacy-ledger.sqlite --format csv --output spent.csv",
        "flower-ldp ledger export privacy-ledger.sqlite | jq .epsilon",
    ),
)
def export(
    file: LedgerFile,
    format: Annotated[
        Format,
        typer.Option(help="jsonl, one JSON object a line, or csv."),
    ] = Format.JSONL,
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write to this file, whole or not at all, with mode 0600; else to stdout.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Write every charge, one row for each mechanism; amounts are exact decimals."""
    from flower_ldp.cli import ledger_export as exports
    from flower_ldp.cli.ledger_answers import look_into

    if as_json and output is None:
        raise typer.BadParameter("--json needs --output: the rows themselves go to stdout")
    if output is not None:
        exports.check_target(output, file)
    with reporting(as_json) as report, look_into(file) as ledger:
        if output is None:
            exports.to_stdout(ledger.export(), format is Format.CSV)
            return
        with working(f"writing {output}"):
            rows = exports.to_file(ledger.export(), format is Format.CSV, output)
        report.facts.update(file=str(file), output=str(output), format=format.value, rows=rows)
        report.line(f"{output}: {rows:,} rows")


@app.command(
    cls=Command,
    epilog=epilog(
        "flower-ldp ledger verify privacy-ledger.sqlite",
        "flower-ldp ledger verify privacy-ledger.sqlite --anchor /media/key/ledger-mark",
    ),
)
def verify(
    file: LedgerFile,
    anchor: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Compare with the rollback anchor in this file."),
    ] = None,
    anchor_command: care.AnchorCommand = None,
    as_json: JsonOption = False,
) -> None:
    """Check the whole ledger: each entry, sum and report; charges wait meanwhile.

    It takes time in proportion to the file. Keep the end of the chain that it prints elsewhere,
    or have an anchor keep it: it shows later whether a file was set back.
    """
    from flower_ldp.cli.ledger_answers import look_into, mark_facts

    kept = care.anchor_named("--anchor / --anchor-command", anchor, anchor_command)
    with reporting(as_json) as report:
        report.facts["file"] = str(file)
        with look_into(file, kept) as ledger, working(f"checking {file}"):
            found = ledger.verify()
        report.facts.update(
            entries=found.entries,
            sealed=found.sealed,
            totals=found.totals,
            mark=mark_facts(found.mark),
        )
        report.line(f"{file}: in order")
        rows = [
            ("entries", f"{found.entries:,}, of which {found.sealed:,} with a report"),
            ("running sums", f"{found.totals:,}, all as the entries make them"),
            ("ledger", found.mark.ledger),
            ("end of the chain", found.mark.chain),
        ]
        if kept is not None:
            report.facts["anchor"] = str(kept)
            rows.append(("anchor", f"{kept}: in this ledger's history"))
        report.pairs(rows)


app.command(
    "anchor",
    cls=Command,
    epilog=epilog(
        "flower-ldp ledger anchor privacy-ledger.sqlite --file /media/key/ledger-mark",
        "flower-ldp ledger anchor privacy-ledger.sqlite --command '/usr/local/bin/mark tpm'",
    ),
)(care.make_anchor)
app.command(
    "forget",
    cls=Command,
    epilog=epilog("flower-ldp ledger forget simulation_policy.yaml"),
)(care.forget)
app.command(
    "clock",
    cls=Command,
    epilog=epilog("flower-ldp ledger clock privacy-ledger.sqlite --accept"),
)(care.clock)
