"""Every block of code on a page is run by a test, or a marker above it says why not.

The markers are comments, which no reader of a page sees: ``<!-- ci:NAME -->`` for what the gate
runs, ``<!-- run: FILE -->`` for what that test runs, and ``<!-- not run: REASON -->``; or
``<!-- none run: REASON -->`` once on a page that has nothing else. Python that imports what it uses
runs, and so does Python that uses public names without importing them.
"""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
import shlex
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer

import flower_ldp
from flower_ldp.cli.main import app
from tests.cli import commands_of
from tests.lint import PAGES, ROOT, named
from tests.unit.test_doctests import PAGES as TRIED
from tests.unit.test_doctests import PROMPT, is_whole, skip_without_extra, unbound

FENCE = re.compile(r" *```(?P<language>[\w{}-]*)")
MARKER = re.compile(r" *<!-- (?P<kind>ci:|run:|not run:) *(?P<text>.*\S) *-->")
PAGE_MARKER = re.compile(r"^<!-- none run: .*\S -->$", re.MULTILINE)
#: Its first commands are the gate's, and its other ones those of pages that have markers.
FIRST = ROOT / "README.md"
#: What is no code of the reader's: output, files in which nothing runs, and the README's diff.
SHOWN = {"", "text", "diff", "json", "toml", "yaml", "sql"}
CODE = {"python", "bash", "sh", "console", "javascript"}


@cache
def public() -> dict[str, list[str]]:
    """Return the modules of each public name, and of those of Flower's that apps begin with."""
    found = {"ClientApp": ["flwr.clientapp"], "ServerApp": ["flwr.serverapp"]}
    for module in pkgutil.iter_modules(flower_ldp.__path__, "flower_ldp."):
        source = Path(flower_ldp.__path__[0], module.name.split(".")[1])
        file = source / "__init__.py" if module.ispkg else source.with_suffix(".py")
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                for name in ast.literal_eval(node.value):
                    found.setdefault(name, []).append(module.name)
    return found


@dataclass(frozen=True)
class Block:
    """A block of code: where it stands, its text, and the marker above it."""

    page: Path
    line: int
    language: str
    code: str
    marker: re.Match[str] | None

    def __str__(self) -> str:
        return f"{named(self.page)}:{self.line}"


def blocks_of(page: Path) -> Iterator[Block]:
    """Yield the blocks of a page."""
    lines = page.read_text(encoding="utf-8").splitlines()
    start: int | None = None
    for number, line in enumerate(lines):
        fence = FENCE.match(line)
        if not fence:
            continue
        if start is None:
            start, language = number, fence["language"]
            continue
        code = textwrap.dedent("\n".join(lines[start + 1 : number]))
        yield Block(page, start + 1, language, code, MARKER.fullmatch(lines[start - 1]))
        start = None


BLOCKS = [block for page in PAGES for block in blocks_of(page)]


def runs_by_itself(block: Block) -> bool:
    """Say whether a test finds and runs the block by its form."""
    if block.language == "python" and PROMPT.search(block.code):
        return block.page in TRIED
    if block.language == "python":
        return unbound(block.code) <= set(public())
    return block.language == "console" and named(block.page) == "docs/cli.md"


def test_every_language_is_known() -> None:
    assert {str(block) for block in BLOCKS if block.language not in SHOWN | CODE} == set()


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_block_is_run_or_marked(page: Path) -> None:
    code = [block for block in blocks_of(page) if block.language in CODE]
    if page == FIRST:
        code = [block for block in code if block.language != "bash"]
    found = [str(block) for block in code if not block.marker and not runs_by_itself(block)]
    assert found == [] or PAGE_MARKER.search(page.read_text(encoding="utf-8"))


FRAGMENTS = [
    block
    for block in BLOCKS
    if block.language == "python"
    and not block.marker
    and not PROMPT.search(block.code)
    and runs_by_itself(block)
    and not (block.page in TRIED and is_whole(block.code))
]


@pytest.mark.parametrize("block", FRAGMENTS, ids=str)
def test_a_fragment_of_public_names_runs(block: Block, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    try:
        names = {
            name: getattr(importlib.import_module(public()[name][0]), name)
            for name in unbound(block.code)
        }
        exec(compile(block.code, str(block), "exec"), names)  # noqa: S102
    except ModuleNotFoundError as error:
        skip_without_extra(error)


def test_a_test_that_a_marker_names_reads_the_page() -> None:
    named_tests = [(b, b.marker["text"]) for b in BLOCKS if b.marker and b.marker["kind"] == "run:"]
    assert named_tests
    for block, test in named_tests:
        source = (ROOT / test).read_text(encoding="utf-8")
        assert block.page.name in source, (str(block), test)


def commands() -> Iterator[tuple[str, list[str]]]:
    """Yield place and words of each call of the command line in a block of the shell's."""
    for block in BLOCKS:
        if block.language in {"bash", "sh"}:
            text = block.code.replace("\\\n", " ")
            for line in re.split(r"\n|&&|\||;", text):
                words = shlex.split(line, comments=True)
                if words[:1] == ["flower-ldp"]:
                    yield str(block), words[1:]


def unknown(words: list[str]) -> list[str]:
    """Return what of a call the command line does not know."""
    command: Any = typer.main.get_command(app)
    while words and words[0] in (several := commands_of(command)):
        command, words = several[words[0]], words[1:]
    several = commands_of(command)
    if several and not (words and words[0].startswith("--")):
        return words[:1]
    # A group that takes options without a command's name hands them to one of its commands.
    params = [one for part in (command, *several.values()) for one in part.params]
    known = {"--help"} | {option for one in params for option in (*one.opts, *one.secondary_opts)}
    return [word for word in words if word.startswith("--") and word.split("=")[0] not in known]


def test_every_command_and_option_is_there() -> None:
    found = list(commands())
    assert len(found) > 5
    assert [(place, unknown(words)) for place, words in found if unknown(words)] == []


def test_a_command_that_is_not_there_is_found() -> None:
    assert unknown(["plan", "--clients", "8"]) == []
    assert unknown(["plan", "--client", "8"]) == ["--client"]
    assert unknown(["audits", "signds"]) == ["audits"]
    assert unknown(["ledger", "shows"]) == ["shows"]
