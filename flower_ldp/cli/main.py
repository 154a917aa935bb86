"""``flower-ldp``: where its commands are joined.

Help is printed plain (``rich_markup_mode=None``): it is piped and searched, and rich would take
the brackets of an interval for markup.
"""

from __future__ import annotations

from importlib import import_module
from types import MappingProxyType
from typing import Annotated

import click
import typer
from typer.core import TyperGroup

from flower_ldp import __version__
from flower_ldp.cli import audit, doctor, new, simulate
from flower_ldp.cli.output import Command, command, epilog

#: The groups; the module of one, named as it, is imported when the group is asked for.
GROUPS = MappingProxyType(
    {
        "plan": "Say what a run costs and what it can learn, before it starts.",
        "explain": "Say what a present setting of other software gives.",
        "ledger": "Make, read, export and check the ledger of privacy that was spent.",
        "policy": "Start and check the data owner's policy.",
        "config": "Check a configuration.",
        "data": "Look at the data owner's own table, offline.",
        "app": "Digests of apps and of this environment, for a guarded node's policy.",
        "extension": "Mechanisms from elsewhere: what a policy has to say to allow one.",
    }
)


class _Commands(TyperGroup):
    """The groups, beside commands that import what they need when they run."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*GROUPS, *super().list_commands(ctx)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in GROUPS:
            module = import_module(f"flower_ldp.cli.{cmd_name}")
            return typer.main.get_command(module.app)
        return super().get_command(ctx, cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = formatter.width
        others = ((name, one.get_short_help_str(width)) for name, one in self.commands.items())
        with formatter.section("Commands"):
            formatter.write_dl([*GROUPS.items(), *others])


app = typer.Typer(
    name="flower-ldp",
    cls=_Commands,
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
command(app, "audit", audit.EXAMPLE)(audit.audit)
command(app, "doctor", *doctor.EXAMPLES)(doctor.doctor)
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
