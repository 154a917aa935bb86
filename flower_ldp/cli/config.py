"""``flower-ldp config``: the check of a configuration, and what it means."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flower_ldp.cli.output import Command, JsonOption, epilog, reporting

_EXAMPLES = ("flower-ldp config check signds.yaml", "flower-ldp config check label_dp.yaml --json")

app = typer.Typer(
    help="Check a configuration.",
    epilog=epilog(*_EXAMPLES),
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command(cls=Command, epilog=epilog(*_EXAMPLES))
def check(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The configuration.")],
    as_json: JsonOption = False,
) -> None:
    """Say what a configuration means and what it costs.

    Its kind is known by its section: encrypt (training and evaluation), dpsgd, label_dp or
    embedding_dp (split learning). A data owner's policy is checked by policy check.
    """
    with reporting(as_json) as report:
        from flower_ldp.cli.config_answers import answer

        report.facts["file"] = str(file)
        answer(file, report)
