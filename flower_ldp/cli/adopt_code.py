"""Python files of a Flower app, read and edited without an import."""

import ast
import difflib
import io
from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeGuard

from flower_ldp.errors import ConfigError

#: A function of an app.
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Note:
    """What an app's author should know about a place of it, or has to change by hand."""

    place: str
    text: str
    by_hand: bool = False


class Code:
    """A file of an app: its text, its syntax tree, and the edits to be made.

    Raises
    ------
    ConfigError
        If the file is no Python, not in UTF-8 with plain line ends, or not in its folder.
    """

    def __init__(self, folder: Path, file: Path) -> None:
        self.file, self.name = file, check_within(folder, file).as_posix()
        self.data = file.read_bytes()
        try:
            text = self.data.decode()
            self.tree = ast.parse(text)
        except (SyntaxError, ValueError) as error:
            raise ConfigError(f"{file}: is no Python in UTF-8: {error}") from error
        if "\r" in text or text.startswith("\ufeff"):
            raise ConfigError(f"{file}: must be UTF-8 with \\n at the line ends and no mark before")
        parts = self.name.removesuffix(".py").split("/")
        #: The module's name.
        self.module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        self._edits: list[tuple[int, int, str]] = []

    @cached_property
    def _starts(self) -> list[int]:
        starts = [0]
        for line in self.data.split(b"\n"):
            starts.append(starts[-1] + len(line) + 1)
        return starts

    def at(self, node: ast.AST) -> str:
        """Return a node's place, as editors open it."""
        return f"{self.name}:{getattr(node, 'lineno', 1)}"

    def source(self, node: ast.AST) -> str:
        """Return a node's text."""
        start, end = self.span(node)
        return self.data[start:end].decode()

    def span(self, node: ast.AST) -> tuple[int, int]:
        """Return a node's first byte and the one after its last; columns of a tree are bytes."""
        place = vars(node)
        start = self._starts[place["lineno"] - 1] + place["col_offset"]
        return start, self._starts[place["end_lineno"] - 1] + place["end_col_offset"]

    def put(self, start: int, end: int, text: str) -> None:
        """Put a text in place of bytes."""
        self._edits.append((start, end, text))

    def add_imports(self, *lines: str) -> None:
        """Put imports before the first one of Flower's; ConfigError if their names are taken."""
        for name in map(_bound, ast.walk(ast.parse("\n".join(lines)))):
            if name is not None and self.times(name):
                why = f"has a {name} of its own, or imports *: give it another name"
                raise ConfigError(f"{self.file}: {why}")
        for node in self.tree.body:
            # What begins within a line may follow the end of a text of several lines.
            if isinstance(node, (ast.Import, ast.ImportFrom)) and node.col_offset == 0:
                first = node.names[0].name if isinstance(node, ast.Import) else node.module or ""
                if first.partition(".")[0] == "flwr":
                    start = self._starts[node.lineno - 1]
                    return self.put(start, start, "".join(f"{line}\n" for line in lines))
        raise ConfigError(
            f"{self.file}: has no line that imports flwr at its top: is it an app of Flower's?"
        )

    def edited(self) -> str:
        """Return the text with all edits; ConfigError if it would be no Python."""
        data = self.data
        for start, end, text in sorted(set(self._edits), reverse=True):
            data = data[:start] + text.encode() + data[end:]
        try:
            compile(data, self.name, "exec", dont_inherit=True)
        except SyntaxError as error:
            raise ConfigError(f"{self.file}: cannot be changed surely: {error}") from error
        return data.decode()

    @cached_property
    def imports(self) -> dict[str, str]:
        """Names in the file, and what they stand for, with all modules' names."""
        found: dict[str, str] = {}
        package = self.name.split("/")  # the file's own name is the first level above
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                for one in node.names:
                    first = one.name if one.asname else one.name.partition(".")[0]
                    found[one.asname or first] = first
            elif isinstance(node, ast.ImportFrom):
                above = package[: len(package) - node.level] if node.level else []
                base = ".".join([*above, *([node.module] if node.module else [])])
                found |= {one.asname or one.name: f"{base}.{one.name}" for one in node.names}
        return found

    def dotted(self, node: ast.AST) -> str:
        """Return the full name of what an expression names or calls, or an empty text."""
        if isinstance(node, ast.Attribute):
            return f"{self.dotted(node.value)}.{node.attr}"
        if isinstance(node, ast.Call):
            return self.dotted(node.func)
        return self.imports.get(node.id, node.id) if isinstance(node, ast.Name) else ""

    def calls(self, within: ast.AST | None = None) -> Iterator[tuple[ast.Call, str]]:
        """Yield calls with the full name of what is called, in the order of the text."""
        found = [n for n in ast.walk(within or self.tree) if isinstance(n, ast.Call)]
        for call in sorted(found, key=lambda node: (node.lineno, node.col_offset)):
            yield call, self.dotted(call.func)

    def times(self, name: str, within: ast.AST | None = None) -> int:
        """Return how often a name gets a meaning, in any scope."""
        return sum(_bound(node) in (name, "*") for node in ast.walk(within or self.tree))

    def assigned(self, name: str, within: ast.AST | None = None) -> ast.expr | None:
        """Return what is assigned to a name, if nothing else gives it a meaning."""
        for node in ast.walk(within or self.tree) if self.times(name, within) == 1 else ():
            if isinstance(node, (ast.Assign, ast.AnnAssign)):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                if any(isinstance(one, ast.Name) and one.id == name for one in targets):
                    return node.value
        return None

    def is_one_of(self, call: ast.AST | None, names: Collection[str]) -> TypeGuard[ast.Call]:
        """Return whether an expression calls what has one of these full names, surely."""
        if not isinstance(call, ast.Call) or self.dotted(call) not in names:
            return False
        return self.times(self.source(call.func).partition(".")[0]) == 1

    def function(self, name: str) -> Function | None:
        """Return a function at the top of the file."""
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
        return next((n for n in self.tree.body if isinstance(n, kinds) and n.name == name), None)

    def handlers(self, app: str) -> dict[str, list[Function]]:
        """Return the functions by which an app answers train, evaluate and query messages."""
        found: dict[str, list[Function]] = defaultdict(list)
        kinds = {"train": "train", "fit": "train", "evaluate": "evaluate", "query": "query"}
        for node in ast.walk(self.tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                for name in (self.dotted(one) for one in node.decorator_list):
                    if name.startswith(f"{app}.") and name.rpartition(".")[2] in kinds:
                        found[name.rpartition(".")[2]].append(node)
            elif isinstance(node, ast.ClassDef):
                # A NumPyClient or another client of the old style.
                old = any(self.dotted(one).endswith("Client") for one in node.bases)
                for one in node.body if old else ():
                    if isinstance(one, ast.FunctionDef) and one.name in kinds:
                        found[kinds[one.name]].append(one)
        return found


def check_within(folder: Path, file: Path) -> Path:
    """Return a file's place in a resolved folder; ConfigError for a link, and a file elsewhere."""
    if file.resolve() != file or not file.is_relative_to(folder):
        raise ConfigError(f"{file}: is a link, or not in {folder}: nothing is changed")
    return file.relative_to(folder)


def _bound(node: ast.AST) -> str | None:
    """Return the name that a node gives a meaning, or takes it from; ``*`` for all names."""
    if isinstance(node, ast.Name):
        return None if isinstance(node.ctx, ast.Load) else node.id
    if isinstance(node, ast.alias):
        return node.asname or node.name.partition(".")[0]
    if isinstance(node, (ast.arg, ast.MatchMapping)):
        return node.arg if isinstance(node, ast.arg) else node.rest
    return getattr(node, "name", None)  # of a function, a class, an exception or a pattern


def diff_of(name: str, old: str, new: str) -> str:
    """Return a unified diff of a file; of a new one ``old`` is empty."""
    before = f"a/{name}" if old else "/dev/null"
    # Lines of a diff end at \n alone, those of str.splitlines at a form feed too.
    olds, news = (io.StringIO(text, newline="\n").readlines() for text in (old, new))
    lines = difflib.unified_diff(olds, news, before, f"b/{name}")
    return "".join(
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines
    )
