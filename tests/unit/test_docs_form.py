"""No line of a page needs scrolling, and every file that a page names is there.

``python -m tests.unit.test_docs_form`` wraps the paragraphs that are too long. Code and tables are
written by hand.
"""

from __future__ import annotations

import pkgutil
import re
import textwrap
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

import flower_ldp

ROOT = Path(__file__).parents[2]
PACKAGE = Path(flower_ldp.__file__).parent
WIDTH = 100
#: Rows of tables, which a page shows narrower than they are written.
TABLE = 120
#: Pages with a table of sentences, whose cells are folded where it is shown.
FOLDED = (
    "configuration.md",
    "deployment.md",
    "guarded_node.md",
    "ledger.md",
    "policy.md",
    "threat_model.md",
)
#: Code in a paragraph that stays on one line.
SHORT = 80
PAGES = sorted(
    [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "benchmarks").glob("*.md"),
        *(ROOT / "examples").rglob("*.md"),
    ]
)
#: What begins a block of its own: an item of a list, a heading, a row, a quotation, a comment.
ITEM = re.compile(r"( *)([-*] +|\d+\. +)")
ALONE = re.compile(r" *(#|\||>|<!--|```|!\[|$)")
#: What, at the start of a wrapped line, would begin a block that was not there.
MISREAD = re.compile(r"([-*+#>|=]|\d+[.)])($|\s)")
#: Files, folders and modules of the repository, as pages write them.
FILE = re.compile(r"`([\w./-]*\w\.(?:py|yaml|sh|ipynb))`")
FOLDER = re.compile(r"`((?:flower_ldp|configs|examples|tests|benchmarks|docs)(?:/[\w.-]+)*)/?`")
MODULE = re.compile(r"\bflower_ldp(?:\.\w+)+")
LINK = re.compile(r"\]\((?!https?:|mailto:)([^)\s]*)\)")


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def lines_of(text: str) -> Iterator[tuple[int, str, bool]]:
    """Yield number and text of each line, and whether it is code."""
    code = False
    for number, line in enumerate(text.splitlines(), 1):
        fence = line.lstrip().startswith("```")
        yield number, line, code or fence
        code ^= fence


def is_command_of_ci(lines: list[str], number: int) -> bool:
    """Say whether a line is a command of the README that has to be one line."""
    return number > 2 and lines[number - 3].startswith("<!-- ci:")


def is_row(line: str) -> bool:
    """Say whether a line of output is a row of a table, which cannot be folded."""
    return "──" in line or len(re.findall(r"(?<=\S) {2,}(?=\S)", line)) >= 3


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_no_line_needs_scrolling(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    lines = text.splitlines()
    row = len(text) if page.name in FOLDED else TABLE
    long = [
        f"{number}: {line[:60]}"
        for number, line, code in lines_of(text)
        if len(line) > (row if line.lstrip().startswith("|") else WIDTH)
        and " " in line.strip()
        and not is_command_of_ci(lines, number)
        and not (code and is_row(line))
    ]
    assert long == []


def prose(page: Path) -> str:
    """Return a page without its blocks of code."""
    return "\n".join(
        line for _, line, code in lines_of(page.read_text(encoding="utf-8")) if not code
    )


def anchors(page: Path) -> set[str]:
    """Return what a link may name after the #: headings, as GitHub spells them."""
    headings = re.findall(r"^#+ +(.*)", prose(page), re.MULTILINE)
    bare = (re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading) for heading in headings)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in bare}


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_link_leads_somewhere(page: Path) -> None:
    broken = []
    for target in LINK.findall(prose(page)):
        name, _, part = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        if not file.exists() or (part and file.suffix == ".md" and part not in anchors(file)):
            broken.append(target)
    assert broken == []


@cache
def files() -> set[str]:
    """Return the paths of the files that pages may name, and all ends of these paths."""
    found: set[str] = set()
    folders = [ROOT / name for name in ("configs", "examples", "tests", "benchmarks", "docs")]
    for folder in (PACKAGE, *folders):
        for path in folder.rglob("*.*"):
            parts = path.relative_to(folder.parent).parts
            found |= {"/".join(parts[start:]) for start in range(len(parts))}
    return found


#: Files that the reader makes.
ELSEWHERE = {"owner-labels/policy.yaml"}


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_file_that_is_named_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    names = {name.removeprefix("../") for name in FILE.findall(text)}
    assert names - files() - ELSEWHERE == set()
    places = (ROOT, PACKAGE.parent)  # an installed package is not beside the pages
    for name in FOLDER.findall(text):
        assert any((place / name).exists() for place in places), name


def exists(name: str) -> bool:
    """Say whether a dotted name is a module, or an attribute of one."""
    try:
        import_module(name)  # resolve_name takes a module that lacks an extra for no module
        return True
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("flower_ldp"):
            return True  # an extra that is not installed
    try:
        return pkgutil.resolve_name(name) is not None
    except ModuleNotFoundError as error:
        return not (error.name or "").startswith("flower_ldp")
    except AttributeError:
        return False


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_module_that_is_named_exists(page: Path) -> None:
    names = set(MODULE.findall(page.read_text(encoding="utf-8")))
    assert {name for name in names if not exists(name)} == set()


def blocks(text: str) -> Iterator[tuple[list[str], bool]]:
    """Yield the lines of each paragraph, and every other line by itself; and which it is."""
    block: list[str] = []
    for _, line, code in lines_of(text):
        alone = code or ALONE.match(line) is not None or (not block and line.startswith("    "))
        if block and (alone or ITEM.match(line)):
            yield block, True
            block = []
        if alone:
            yield [line], False
        else:
            block.append(line)
    if block:
        yield block, True


def glued(words: str) -> str:
    """Return a paragraph with NUL for each space at which a line must not end."""

    def whole(code: re.Match[str]) -> str:
        return code[0].replace(" ", "\0") if len(code[0]) <= SHORT else code[0]

    short = re.sub(r"`[^`]+`", whole, words)
    return re.sub(rf" (?={MISREAD.pattern})", "\0", short)


def wrapped(block: list[str], paragraph: bool) -> list[str]:
    """Return a paragraph in lines of at most the width, if any of its lines is longer."""
    if not paragraph or all(len(line) <= WIDTH for line in block):
        return block
    item = ITEM.match(block[0])
    first = item[0] if item else " " * (len(block[0]) - len(block[0].lstrip()))
    words = " ".join(line.strip() for line in block)[len(first.strip()) :].strip()
    inset = len(first) if len(block) == 1 else len(block[1]) - len(block[1].lstrip())
    lines = textwrap.wrap(
        glued(words),
        WIDTH,
        initial_indent=first,
        subsequent_indent=" " * inset,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace("\0", " ") for line in lines]


def rewrite() -> None:
    """Wrap the paragraphs of all pages."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        lines = [line for block in blocks(text) for line in wrapped(*block)]
        page.write_text("\n".join(lines) + "\n", encoding="utf-8")


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_wrapping_changes_no_word(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert " ".join(text.split()) == " ".join(
        word for block in blocks(text) for line in wrapped(*block) for word in line.split()
    )


if __name__ == "__main__":
    rewrite()
