"""``flower-ldp``: where its commands are joined.

Help is printed plain (``rich_markup_mode=None``): it is piped and searched, and rich would take
the brackets of an interval for markup.
"""

from __future__ import annotations

from typing import Annotated

import typer

from flower_ldp import __version__
from flower_ldp.cli import app as bundles
from flower_ldp.cli import (
    audit,
    config,
    data,
    doctor,
    explain,
    extension,
    ledger,
    new,
    plan,
    policy,
    simulate,
)
from flower_ldp.cli.output import Command, epilog

app = typer.Typer(
    name="flower-ldp",
    help="Plan, limit and check what clients release under local differential privacy.",
    epilog=epilog(
        "flower-ldp plan --params 61706 --epsilon 8 --rounds 80 --clients 100",
        "flower-ldp policy sample > client_policy.yaml",
        "flower-ldp ledger show privacy-ledger.sqlite --policy client_policy.yaml",
    ),
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
    no_args_is_help=True,
)
app.add_typer(plan.app, name="plan")
app.add_typer(explain.app, name="explain")
app.add_typer(ledger.app, name="ledger")
app.add_typer(policy.app, name="policy")
app.add_typer(config.app, name="config")
app.add_typer(data.app, name="data")
app.add_typer(bundles.app, name="app")
app.add_typer(extension.app, name="extension")
app.command("audit", cls=Command, epilog=audit.EPILOG)(audit.audit)
app.command("doctor", cls=Command, epilog=doctor.EPILOG)(doctor.doctor)
app.command("new", cls=Command, epilog=new.EPILOG)(new.new)
app.command("simulate", cls=Command, epilog=simulate.EPILOG)(simulate.simulate)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"flower-ldp {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Run before each command; the options act by themselves."""


def run() -> None:
    """Run the command line: the entry point of ``flower-ldp`` and ``python -m flower_ldp``."""
    app(prog_name="flower-ldp")
