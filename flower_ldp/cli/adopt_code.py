"""Python files of a Flower app, read and edited without an import."""

import ast
import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

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
        If the file is no Python, or not in UTF-8 with plain line ends.
    """

    def __init__(self, folder: Path, file: Path) -> None:
        self.file, self.name = file, file.relative_to(folder).as_posix()
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
        """Put imports before the first one of Flower's; ConfigError without one."""
        for node in self.tree.body:
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                first = node.names[0].name if isinstance(node, ast.Import) else node.module or ""
                if first.partition(".")[0] == "flwr":
                    start = self._starts[node.lineno - 1]
                    return self.put(start, start, "".join(f"{line}\n" for line in lines))
        raise ConfigError(
            f"{self.name}: has no import of flwr at its top: is it an app of Flower's?"
        )

    def drop_import(self, name: str) -> None:
        """Take out a top-level import of one name alone, if the code has the name once."""
        used = [n for n in ast.walk(self.tree) if isinstance(n, ast.Name) and n.id == name]
        for node in self.tree.body if len(used) == 1 else []:
            names = [one.asname or one.name for one in getattr(node, "names", [])]
            if isinstance(node, ast.ImportFrom) and names == [name]:
                end = self._starts[vars(node)["end_lineno"]]
                self.put(self._starts[node.lineno - 1], end, "")

    def edited(self) -> str:
        """Return the text with all edits; ConfigError if it would be no Python."""
        data = self.data
        for start, end, text in sorted(self._edits, reverse=True):
            data = data[:start] + text.encode() + data[end:]
        if self.file.suffix == ".py":
            ast.parse(data)
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

    def assigned(self, name: str, within: ast.AST | None = None) -> ast.expr | None:
        """Return what is assigned to a name, if that is one expression."""
        found = [
            node.value
            for node in ast.walk(within or self.tree)
            if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None
            for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
            if isinstance(target, ast.Name) and target.id == name
        ]
        return found[0] if len(found) == 1 else None

    def function(self, name: str) -> Function | None:
        """Return a function at the top of the file."""
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
        return next((n for n in self.tree.body if isinstance(n, kinds) and n.name == name), None)

    def handlers(self) -> dict[str, Function]:
        """Return the functions that answer messages, by type: train, evaluate or query."""
        found: dict[str, Function] = {}
        kinds = {"train": "train", "fit": "train", "evaluate": "evaluate", "query": "query"}
        for node in ast.walk(self.tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                names = [self.dotted(one).rpartition(".")[2] for one in node.decorator_list]
                found |= {kind: node for kind in kinds if kind in names}
            elif isinstance(node, ast.ClassDef):
                # A NumPyClient or another client of the old style.
                old = any(self.dotted(one).endswith("Client") for one in node.bases)
                methods = [one for one in node.body if isinstance(one, ast.FunctionDef) and old]
                found |= {kinds[one.name]: one for one in methods if one.name in kinds}
        return found


def diff_of(name: str, old: str, new: str) -> str:
    """Return a unified diff of a file; of a new one ``old`` is empty."""
    before = f"a/{name}" if old else "/dev/null"
    lines = difflib.unified_diff(
        old.splitlines(keepends=True), new.splitlines(keepends=True), before, f"b/{name}"
    )
    return "".join(
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines
    )
