"""The command line in one process, for tests of its parts."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from typing import Any

# Its log keeps the stream that it finds at its import: not that of a command, which is closed then.
import flwr.serverapp  # noqa: F401
import typer
from click import Command, Context, Group
from click.testing import CliRunner

from flower_ldp.cli.main import app


@dataclass(frozen=True)
class Done:
    """What a command left behind."""

    code: int
    out: str
    err: str
    both: str

    @property
    def json(self) -> dict[str, Any]:
        found = json.loads(self.out)
        assert isinstance(found, dict)
        assert found["ok"] == (self.code == 0)
        return found


@cache
def command() -> Command:
    """Return the command line, which typer's own runner would make anew for each command."""
    return typer.main.get_command(app)


def commands_of(group: Command) -> dict[str, Command]:
    """Return a group's commands by their names; nothing of what is no group."""
    if not isinstance(group, Group):
        return {}
    context = Context(group)
    found = {name: group.get_command(context, name) for name in group.list_commands(context)}
    return {name: one for name, one in found.items() if one is not None}


def flower_ldp(*words: object, traceback: bool = False) -> Done:
    """Run a command; errors that are not the user's escape as they are.

    With ``traceback`` one of an app's is expected, and otherwise none.
    """
    result = CliRunner().invoke(command(), [str(word) for word in words], prog_name="flower-ldp")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert ("Traceback" in result.output) is traceback, result.output
    return Done(result.exit_code, result.stdout, result.stderr, result.output)
