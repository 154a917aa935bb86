"""Paragraphs and sentences of the pages: how they are wrapped, and how long they are."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

WIDTH = 100
#: Code in a paragraph that stays on one line.
SHORT = 80
#: What begins a block of its own: an item of a list, a heading, a row, a quotation, a comment.
ITEM = re.compile(r"( *)([-*] +|\d+\. +)")
ALONE = re.compile(r" *(#|\||>|<!--|```|!\[|$)")
#: What, at the start of a wrapped line, would begin a block that was not there.
MISREAD = re.compile(r"([-*+#>|=]|\d+[.)])($|\s)")
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
TEXT_OF_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
#: What ends a sentence: not the points of "e.g." and "1.5", nor those of a name of a file.
END = re.compile(r"(?<=[.!?:])[)*`\"]*\s+(?=[A-Z`*\"(\[])")


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def lines_of(text: str) -> Iterator[tuple[int, str, bool]]:
    """Yield number and text of each line, and whether it is code."""
    code = False
    for number, line in enumerate(text.splitlines(), 1):
        fence = line.lstrip().startswith("```")
        yield number, line, code or fence
        code ^= fence


def prose(text: str) -> str:
    """Return a page without its blocks of code."""
    return "\n".join("" if code else line for _, line, code in lines_of(text))


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


def wrapped_page(text: str) -> str:
    return "\n".join(line for block in blocks(text) for line in wrapped(*block)) + "\n"


def sentences(text: str) -> Iterator[str]:
    """Yield the sentences of a page, without code, tables and headings."""
    text = TEXT_OF_LINK.sub(r"\1", COMMENT.sub("", prose(text)))
    lines = ["" if re.match(r" *(#|\|)", line) else line for line in text.splitlines()]
    lines = [re.sub(r"^ *([-*+]|\d+\.) +", "\n", line) for line in lines]
    for paragraph in re.split(r"\n\s*\n", "\n".join(lines)):
        for sentence in END.split(" ".join(paragraph.split())):
            if len(sentence.split()) > 2:
                yield sentence


def docstrings(path: Path) -> Iterator[str]:
    """Yield the docstrings of a module, and those of its attributes."""
    for node in ast.walk(ast.parse(read(path))):
        for child in ast.iter_child_nodes(node):
            value = child.value if isinstance(child, ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield value.value
