"""``flower-ldp doctor``: what is here, what is missing for what, and whether it can be used."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flower_ldp.cli.output import JsonOption, epilog, reporting

#: The end of the help text.
EPILOG = epilog("flower-ldp doctor", "flower-ldp doctor --policy client_policy.yaml --json")


def doctor(
    policy: Annotated[
        Path | None,
        typer.Option(help="The clients' policy, in place of the variable FLOWER_LDP_POLICY."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Say what is installed, what is missing for what, and if policy and ledger can be used.

    Run it as the user, and in the environment, of the client. Nothing is changed, but what a crash
    left half written in the ledger is undone. No extra is imported. What is missing for a part that
    is not used is no error.
    """
    from flower_ldp.cli.doctor_answers import answer

    with reporting(as_json) as report:
        answer(policy, report)
