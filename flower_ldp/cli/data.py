"""``flower-ldp data``: a look at the owner's own table, offline, before anything is promised."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flower_ldp.cli.output import Command, JsonOption, epilog, reporting

_CHECK = "flower-ldp data check ward.csv --group patient --policy client_policy.yaml"
app = typer.Typer(
    help="Look at the data owner's own table, offline.",
    epilog=epilog(_CHECK),
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.callback()
def main() -> None:
    """Keep ``check`` a command of its own, as more are to come beside it."""


@app.command(cls=Command, epilog=epilog(_CHECK))
def check(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A table of rows, CSV with a head.")],
    group: Annotated[str, typer.Option(help="Column that says whose a row is.")],
    row: Annotated[
        str | None,
        typer.Option(help="Column that tells rows apart; without it all columns but the group."),
    ] = None,
    max_rows: Annotated[
        int | None, typer.Option(help="Rows of a patient that count in a step.")
    ] = None,
    policy: Annotated[
        Path | None, typer.Option(help="The policy, whose number of patients is compared.")
    ] = None,
    remember: Annotated[
        Path | None,
        typer.Option(help="File that remembers the groups, to see if they are cut otherwise."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Say which rows have no patient, how many patients there are, and how many rows they have.

    What it prints is about private data and has no noise: it is for the owner alone.
    """
    from flower_ldp.cli.data_answers import CheckOptions, answer

    options = CheckOptions(file, group, row, max_rows, policy, remember)
    with reporting(as_json) as report:
        report.facts["file"] = str(file)
        answer(options, report)
