"""How all commands answer and fail, and their exit codes.

A command fills a :class:`Report` with facts while it works. Without ``--json`` each fact is printed
as it comes, warnings and problems on stderr. With it, stdout gets one JSON object at the end,
whatever the outcome, and stderr the same plain lines. Wrong usage is typer's: exit code 2, and
nothing on stdout.
"""

import inspect
import json
import re
import sys
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from copy import copy
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, TypeVar, get_args, get_origin, get_type_hints

import click
import typer
from typer.core import TyperCommand

from flower_ldp.errors import LdpError
from flower_ldp.facts import Fact, beneath, shown
from flower_ldp.parameter_bounds import Bounded

#: The exit codes, in the words that every --help ends with.
EXIT_CODES = (
    "Exit codes: 0 all is well; 1 what was asked about is wrong or cannot be used; 2 wrong usage."
)

JsonOption = Annotated[
    bool, typer.Option("--json", help="Print one JSON object on stdout (docs/cli.md has its keys).")
]
#: Parameters of functions whose options are called otherwise.
_CALLED = {"weights": "params", "dimension": "params", "run_id": "run", "noise": "epsilon"}
#: A file that a command is about.
File: TypeAlias = Annotated[Path, typer.Argument()]
#: A row of a table in JSON; a column of the table: a key, or what stands above with key or text.
Row: TypeAlias = dict[str, Any]
Column: TypeAlias = str | tuple[str, str | Callable[[Row], str]]
Answering = TypeVar("Answering", bound=Callable[..., Any])


class Command(TyperCommand):
    """A command whose plain help does not show typer's escape of "[default: ...]"."""

    def get_help(self, ctx: click.Context) -> str:
        """Return the help text."""
        return super().get_help(ctx).replace("\\[", "[")


def epilog(*examples: str) -> str:
    """Return the end of a help text: examples and exit codes."""
    lines = "\n".join(f"  {example}" for example in examples)
    title = "Example:" if len(examples) == 1 else "Examples:"
    return f"\b\n{title}\n{lines}\n\n{EXIT_CODES}"


def group(
    *examples: str, help: str | None = None, cls: type[typer.core.TyperGroup] | None = None
) -> typer.Typer:
    """Return a group for commands, with plain help; without a text it has that of the list."""
    return typer.Typer(
        cls=cls,
        help=help,
        epilog=epilog(*examples),
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        add_completion=False,
        callback=lambda: None,  # a group with one command is a group
    )


def single() -> typer.Typer:
    """Return the place of a command that is in no group, with plain help."""
    return typer.Typer(rich_markup_mode=None, add_completion=False)


def command(app: typer.Typer, name: str, *examples: str) -> Callable[[Answering], Answering]:
    """Make a command of a function or class; its parameters are the options, beside ``--json``.

    A function gets the :class:`Report` as ``report``; of a class the method ``answer`` gets it. An
    option's help is the docstring of the parameter and its declared interval
    (:class:`~flower_ldp.parameter_bounds.Bounded`), which is checked. A ValueError that names an
    option is wrong usage of it.
    """

    def register(answering: Answering) -> Answering:
        about, told = _described(answering)
        hints = get_type_hints(answering, include_extras=True)
        limits = {name: found for name, hint in hints.items() if (found := _interval(hint))}
        options = [
            one.replace(annotation=_option(one.name, hints[one.name], told.get(one.name, "")))
            for one in inspect.signature(answering).parameters.values()
            if one.name != "report"
        ]
        as_json = inspect.Parameter(
            "as_json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=JsonOption
        )

        def run(as_json: bool, **given: Any) -> None:
            with reporting(as_json) as report, usage(known=given):
                for name, bounded in limits.items():
                    if given[name] is not None:
                        bounded.check(name, given[name])
                if "file" in given:
                    report.facts["file"] = str(given["file"])
                if isinstance(answering, type):
                    answering(**given).answer(report)
                else:
                    answering(report=report, **given)

        run.__signature__ = inspect.Signature([*options, as_json])  # type: ignore[attr-defined]
        run.__doc__ = about
        app.command(name, cls=Command, epilog=epilog(*examples))(run)
        return answering

    return register


def _described(answering: object) -> tuple[str, dict[str, str]]:
    """Return a docstring's text, and that of each parameter in its section."""
    about, _, section = (inspect.getdoc(answering) or "").partition("Parameters\n----------\n")
    names = (entry.partition("\n") for entry in re.split(r"\n(?=\S)", section))
    return about, {name: " ".join(text.split()) for name, _, text in names}


def _interval(hint: Any) -> Bounded | None:
    marks = getattr(hint, "__metadata__", ())
    return next((mark for mark in marks if isinstance(mark, Bounded)), None)


def _option(name: str, hint: Any, told: str) -> Any:
    """Return a parameter's type for typer, as that of an option if it is declared as no other."""
    kind, *marks = get_args(hint) if hasattr(hint, "__metadata__") else (hint,)
    info = typer.Option(*([f"--{name}"] if kind is bool else []))
    bounded = _interval(hint)
    if bounded is None and marks:
        info = copy(marks[0])
    info.help = told if bounded is None else f"{told} In {bounded.interval}."
    choice = next((one for one in (kind, *get_args(kind)) if get_origin(one) is Literal), None)
    if choice is not None:  # which typer itself knows since 0.19 alone
        info.click_type = click.Choice(get_args(choice))
    # A file that cannot be read is for the command to judge, as one that is not there: click would
    # call it wrong usage.
    info.readable = False
    return Annotated[kind, info]


def wrong(option: str, what: str) -> typer.BadParameter:
    """Return the error of an option that is used wrongly: exit code 2."""
    return typer.BadParameter(what, param_hint=option)


@contextmanager
def usage(option: str = "", known: Collection[str] = ()) -> Iterator[None]:
    """Turn a ValueError into wrong usage of an option.

    By default the option is the parameter which the error's text begins with, if known.
    """
    try:
        yield
    except LdpError:
        raise
    except ValueError as error:
        text = str(error)
        first, _, rest = text.partition(" ")
        name = _CALLED.get(first, first)
        if not option and name not in known:
            raise
        named = option or "--" + name.replace("_", "-")
        raise wrong(named, rest if rest.startswith("must") else text) from error


class Report:
    """The answer of one command; ``as_json`` prints one JSON object at the end, and no text before.

    ``facts`` is the JSON object without ``ok``, ``problems`` and ``warnings``.
    """

    def __init__(self, as_json: bool) -> None:
        self.facts: dict[str, Any] = {}
        self.as_json = as_json
        self._ended_blank = True
        self._warnings: list[str] = []
        self._problems: list[str] = []

    def line(self, text: str, /, **facts: Any) -> None:
        """Print a line of text, as it is and unbroken; add the facts that it tells."""
        self.facts.update(facts)
        if not self.as_json:
            typer.echo(text)
            self._ended_blank = text.endswith("\n")

    def _block(self, text: str) -> None:
        self.line(text if self._ended_blank else f"\n{text}")

    def tell(self, *facts: Fact) -> None:
        """Add facts; print those with a label, the values one beneath the other."""
        for fact in facts:
            *outer, last = fact.key.split(".")
            place = self.facts
            for name in outer:
                place = place.setdefault(name, {})
            if last:
                place[last] = fact.value
        if told := beneath(facts):
            self._block(told)

    def table(self, key: str, title: str, rows: Sequence[Row], *columns: Column) -> None:
        """Add rows; print them as a table, whose cells are broken into lines and not cut off.

        Parameters
        ----------
        key : str
            Of the rows in JSON; without one they are for people alone.
        title : str
            Printed above the table; without rows nothing is printed.
        rows : sequence of dict
        *columns : str or tuple
            A key of the rows, or a column's head with a key or with a function from row to cell. By
            default a column for each key.
        """
        if key:
            self.facts[key] = rows
        if self.as_json or not rows:
            return
        from rich import box
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        drawn = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
        named = [(one, one) if isinstance(one, str) else one for one in columns or rows[0]]
        for name, _ in named:
            drawn.add_column(name.replace("_", " "), overflow="fold")
        for row in rows:
            cells = (row[of] if isinstance(of, str) else of(row) for _, of in named)
            # As Text: names of the user's must not be read as markup.
            drawn.add_row(*(Text(shown(cell)) for cell in cells))
        # Outside of a terminal rich assumes 80 columns and would break names that are searched for.
        terminal = sys.stdout.isatty()
        console = Console(width=None if terminal else 160, force_terminal=terminal, highlight=False)
        with console.capture() as captured:
            console.print(drawn)
        drawing = "\n".join(line.rstrip() for line in captured.get().splitlines())
        self._block(f"{title}\n{drawing}\n")

    def warn(self, *texts: str) -> None:
        """State what is no error but should be known."""
        self._warnings += texts
        for text in texts:
            typer.echo(f"warning: {text}", err=True)

    @contextmanager
    def warnings_of(self, category: type[Warning]) -> Iterator[None]:
        """State the warnings that the body gives, each once."""
        with warnings.catch_warnings(record=True, action="always", category=category) as caught:
            try:
                yield
            finally:
                self.warn(*dict.fromkeys(str(warning.message) for warning in caught))

    def problem(self, text: str) -> None:
        """State what is wrong; the command then ends with exit code 1."""
        self._problems.append(text)
        for line in text.splitlines():
            typer.echo(f"error: {line}", err=True)

    def finish(self) -> None:
        """Print the JSON object if one is wanted; with a problem leave with exit code 1."""
        if self.as_json:
            own = {"ok": not self._problems, "problems": self._problems, "warnings": self._warnings}
            try:
                typer.echo(json.dumps(own | self.facts, indent=2, allow_nan=False))
            except BrokenPipeError:
                raise
            except OSError as error:
                self.problem(f"the answer cannot be written: {error.strerror or error}")
        if self._problems:
            raise typer.Exit(1)


def is_extra(error: Exception) -> bool:
    """Return whether an error says which extra is to be installed."""
    return "pip install" in str(error)


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
    except ModuleNotFoundError as error:
        if not is_extra(error):
            raise
        raise click.UsageError(str(error)) from error
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        report.problem(f"{where}{error.strerror or error}")
    report.finish()


def working(text: str) -> AbstractContextManager[object]:
    """Show on a terminal's stderr that something takes its time."""
    from rich.console import Console

    return Console(stderr=True).status(text)
