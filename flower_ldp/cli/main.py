"""``flower-ldp``: where its commands are joined.

Help is printed plain (``rich_markup_mode=None``): rich would take the brackets of an interval for
markup.
"""

from importlib import import_module
from typing import Any

import click
import typer
from typer.core import TyperGroup

from flower_ldp import __version__
from flower_ldp.cli.output import group

#: The groups and commands; the module of one is imported when it is asked for.
COMMANDS = {
    "adopt": "Say how a Flower app becomes private, and change it.",
    "plan": "Say what a run costs and what it can learn, before it starts.",
    "explain": "Say what a present setting of other software gives.",
    "ledger": "Make, read, export and check the ledger of privacy that was spent.",
    "policy": "Start and check the data owner's policy.",
    "config": "Check a configuration.",
    "data": "Look at the data owner's own table, offline.",
    "app": "Digests of apps and of this environment, for a guarded node's policy.",
    "extension": "Mechanisms from elsewhere: what a policy has to say to allow one.",
    "analyzer": "Open shuffled reports, and answer with sums: not for a server's machine.",
    "audit": "Try to refute the epsilon that a shipped mechanism claims.",
    "doctor": "Say what is here, what is missing for what, and if it can be used.",
    "new": "Write an app that trains on made-up data, with a policy for simulations.",
    "simulate": "Run a Flower app in this process: no SuperLink, no Ray, no copy of the app.",
}
#: Of these the module is ``apps``, with a variable of their name; else it is ``app`` of their own.
_APPS = ("app", "extension", "new")
#: What a shell expects of a command that Ctrl-C ended.
STOPPED = 130


class _Commands(TyperGroup):
    """The commands by their names, none of which is loaded for another or for the help."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        told = {"message": "%(prog)s %(version)s", "help": "Print the version."}
        click.version_option(__version__, prog_name="flower-ldp", **told)(self)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, name = ("apps", cmd_name) if cmd_name in _APPS else (cmd_name, "app")
        found = typer.main.get_command(getattr(import_module(f"flower_ldp.cli.{module}"), name))
        found.help = found.help or COMMANDS[cmd_name]
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([*COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> Any:
        """Load the command and run it; click would give Ctrl-C the exit code of a problem."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            typer.echo("stopped by Ctrl-C; what was written by then is kept", err=True)
            raise typer.Exit(STOPPED) from None


app = group(
    "flower-ldp plan --params 61706 --epsilon 8 --rounds 80 --clients 100",
    "flower-ldp policy sample > client_policy.yaml",
    "flower-ldp ledger show privacy-ledger.sqlite --policy client_policy.yaml",
    help="Plan, limit and check what clients release under local differential privacy.",
    cls=_Commands,
)


def run() -> None:
    """Run the command line."""
    app(prog_name="flower-ldp")
