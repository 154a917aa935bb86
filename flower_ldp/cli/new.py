"""``flower-ldp new``: a folder with a small private app that runs, to start from."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from flower_ldp.cli.output import JsonOption, epilog, reporting

#: The end of the help text.
EPILOG = epilog(
    "flower-ldp new my-app",
    "flower-ldp simulate my-app --nodes 100 --policy my-app/simulation_policy.yaml",
)


class Kind(StrEnum):
    """What of the clients' data is protected, and by what."""

    CODEWORD = "codeword"
    SIGNDS = "signds"
    LABELS = "labels"
    SPLIT = "split"
    MECHANISM = "mechanism"


def new(
    folder: Annotated[
        Path, typer.Argument(metavar="APP", help="The app's folder, whose name is the app's.")
    ],
    kind: Annotated[
        Kind,
        typer.Option(
            help="codeword: each client is asked once. signds: a private report in every round. "
            "labels: only labels are protected. split: parties with other features of the same "
            "records; needs torch. mechanism: no app, but a distribution with a mechanism of your "
            "own, and its tests."
        ),
    ] = Kind.CODEWORD,
    publisher: Annotated[
        str, typer.Option(help="Who publishes the app, as Flower's pyproject.toml has it.")
    ] = "your-name",
    as_json: JsonOption = False,
) -> None:
    """Write an app that trains on made-up data, with a policy for simulations.

    It runs in flower-ldp simulate, in flwr run and, with data of your own, on your machines,
    unchanged. --kind mechanism writes a distribution with a mechanism of your own, and no app.
    No file is replaced: the folder must not be there yet.
    """
    from flower_ldp.cli.new_app import start_of, write

    with reporting(as_json) as report:
        written = write(folder, kind.value, publisher)
        command = start_of(folder, kind.value)
        report.facts.update(folder=str(folder), kind=kind.value, files=written, start=command)
        report.line(f"{folder}: {len(written)} files. Run it:")
        report.line(f"  {command}")
