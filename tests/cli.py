"""The command line in one process, for tests of its parts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

# Its log keeps the stream that it finds at its import: not that of a command, which is closed then.
import flwr.serverapp  # noqa: F401
import typer
from click import Command, Context, Group
from click.testing import CliRunner

import flower_ldp as package
from flower_ldp.cli.main import app

#: Where the package is: an installed one is not beside the tests.
PLACE = Path(package.__file__).parents[1]
MODULE = (sys.executable, "-m", "flower_ldp")


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


def facts(*words: object) -> dict[str, Any]:
    """Run a command and return what it says as JSON."""
    return flower_ldp(*words, "--json").json


def refused(*words: object, code: int = 1) -> str:
    """Run a command that must end with this code and no answer; return what it complains of."""
    done = flower_ldp(*words)
    assert (done.code, done.out) == (code, "")
    return done.err


def process(*command: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a program that finds the package, and return what it left behind."""
    env = {**os.environ, "PYTHONPATH": str(PLACE), **options.pop("env", {})}
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    words = [str(word) for word in command]
    return subprocess.run(words, text=True, check=False, timeout=120, env=env, **streams)
