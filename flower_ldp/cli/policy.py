"""``flower-ldp policy``: a sample to start from, and the check of what somebody made of it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flower_ldp.cli.output import Command, JsonOption, epilog, reporting

app = typer.Typer(
    help="Start and check the data owner's policy.",
    epilog=epilog(
        "flower-ldp policy sample > client_policy.yaml",
        "flower-ldp policy check client_policy.yaml",
    ),
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command(cls=Command, epilog=epilog("flower-ldp policy check client_policy.yaml"))
def check(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The policy.")],
    as_json: JsonOption = False,
) -> None:
    """Say what a policy allows, and whether its ledger can be used.

    Run it as the user that the client runs as: rights on files are part of the check.
    """
    from flower_ldp.cli.policy_answers import answer

    with reporting(as_json) as report:
        report.facts["file"] = str(file)
        answer(file, report)


@app.command(cls=Command, epilog=epilog("flower-ldp policy sample > client_policy.yaml"))
def sample(
    simulation: Annotated[
        bool, typer.Option("--simulation", help="For simulated clients, whose data is not real.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Print a commented policy to start from."""
    from importlib.resources import files

    name = "simulation_policy.yaml" if simulation else "client_policy.yaml"
    text = files("flower_ldp.cli").joinpath("samples", name).read_text(encoding="utf-8")
    with reporting(as_json) as report:
        report.facts.update(name=name, text=text)
        report.line(text.rstrip("\n"))
