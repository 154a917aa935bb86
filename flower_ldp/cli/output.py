"""What all commands share: how they answer, how they fail, and which exit codes they have.

A command fills a :class:`Report` while it works. Without ``--json`` each line and table is
printed as it comes, warnings and problems on stderr. With it, stdout gets one JSON object at
the end, whatever the outcome, and stderr the same plain lines. Wrong usage is typer's own
affair: exit code 2, and nothing on stdout.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import click
import typer
from typer.core import TyperCommand

from flower_ldp.errors import LdpError

if TYPE_CHECKING:
    from rich.console import JustifyMethod

#: The exit codes, in the words that every --help ends with.
EXIT_CODES = (
    "Exit codes: 0 all is well; 1 what was asked about is wrong or cannot be used; 2 wrong usage."
)

JsonOption = Annotated[
    bool, typer.Option("--json", help="Print one JSON object on stdout (docs/cli.md has its keys).")
]


class Command(TyperCommand):
    """A command with plain help, as it is meant.

    Typer escapes the bracket of "[default: ...]" for rich, plain help or not, and the backslash
    would show. A file that cannot be read is for the command to judge, as one that is not there:
    click would call it wrong usage.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the options, without a look at the rights on the files that they name."""
        for param in self.params:
            if isinstance(param.type, click.Path):
                param.type.readable = False
        return super().parse_args(ctx, args)

    def get_help(self, ctx: click.Context) -> str:
        """Return the help text."""
        return super().get_help(ctx).replace("\\[", "[")


def epilog(*examples: str) -> str:
    """Return the end of a help text: examples, each on a line of its own, and exit codes."""
    lines = "\n".join(f"  {example}" for example in examples)
    title = "Example:" if len(examples) == 1 else "Examples:"
    return f"\b\n{title}\n{lines}\n\n{EXIT_CODES}"


class Report:
    """The answer of one command.

    Parameters
    ----------
    as_json : bool
        Print one JSON object at the end, in place of text on the way.

    Attributes
    ----------
    facts : dict
        What the JSON object holds besides ``ok``, ``problems`` and ``warnings``.
    """

    def __init__(self, as_json: bool) -> None:
        self.facts: dict[str, Any] = {}
        self._as_json = as_json
        self._ended_blank = True
        self._warnings: list[str] = []
        self._problems: list[str] = []

    def line(self, text: str = "") -> None:
        """Print a line of text, as it is and unbroken."""
        if not self._as_json:
            typer.echo(text)
            self._ended_blank = not text

    def pairs(self, rows: Iterable[tuple[str, str]]) -> None:
        """Print lines of a name and a value, the values one beneath the other."""
        rows = list(rows)
        width = max(len(name) for name, _ in rows)
        for name, value in rows:
            self.line(f"{name:<{width}}  {value}")

    def table(
        self,
        title: str,
        columns: Sequence[str],
        rows: Iterable[Sequence[str]],
        *,
        numbers: Collection[str] = (),
    ) -> None:
        """Print a table; its cells are broken into lines rather than cut off.

        Parameters
        ----------
        title : str
            Printed above it.
        columns : sequence of str
            Their names.
        rows : iterable of sequences of str
            With a cell for each column.
        numbers : collection of str
            Names of columns whose cells stand to the right.
        """
        if self._as_json:
            return
        from rich import box
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        drawn = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
        for column in columns:
            side: JustifyMethod = "right" if column in numbers else "left"
            drawn.add_column(column, justify=side, overflow="fold")
        for row in rows:
            # As Text: names of the user's must not be read as markup.
            drawn.add_row(*(Text(cell) for cell in row))
        # Outside of a terminal rich assumes 80 columns and would break names that are searched for.
        terminal = sys.stdout.isatty()
        console = Console(width=None if terminal else 160, force_terminal=terminal, highlight=False)
        with console.capture() as captured:
            console.print(drawn)
        if not self._ended_blank:
            self.line()
        self.line(title)
        for line in captured.get().splitlines():
            self.line(line.rstrip())
        self.line()

    def warn(self, text: str) -> None:
        """State what is no error but should be known."""
        self._warnings.append(text)
        typer.echo(f"warning: {text}", err=True)

    def caveat(self, text: str) -> None:
        """State what is true of every such answer: a line of it, and one of JSON's warnings."""
        self._warnings.append(text)
        self.line(text)

    def problem(self, text: str) -> None:
        """State what is wrong; the command then ends with exit code 1."""
        self._problems.append(text)
        for line in text.splitlines():
            typer.echo(f"error: {line}", err=True)

    def finish(self) -> None:
        """Print the JSON object if one is wanted, and leave with the exit code.

        Raises
        ------
        typer.Exit
            With code 1, if there is a problem.
        """
        if self._as_json:
            answer = {
                "ok": not self._problems,
                "problems": self._problems,
                "warnings": self._warnings,
                **self.facts,
            }
            try:
                typer.echo(json.dumps(answer, indent=2, allow_nan=False))
            except BrokenPipeError:
                raise
            except OSError as error:
                self.problem(f"the answer cannot be written: {error.strerror or error}")
        if self._problems:
            raise typer.Exit(1)


@contextmanager
def reporting(as_json: bool) -> Iterator[Report]:
    """Give the body a report; turn what users do wrong with files into one line."""
    report = Report(as_json)
    try:
        yield report
    except BrokenPipeError:
        raise  # nobody reads on: click ends the process quietly
    except LdpError as error:
        report.problem(str(error))
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        report.problem(f"{where}{error.strerror or error}")
    report.finish()


@contextmanager
def working(text: str) -> Iterator[None]:
    """Show on a terminal's stderr that something takes its time."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(text):
        yield


def number(value: float) -> str:
    """Return a number for reading: seven digits, no trailing zeros."""
    return f"{value:,.7g}" if 1e-4 <= abs(value) < 1e9 or value == 0 else f"{value:.4g}"
