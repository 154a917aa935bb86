"""Measures the prose: words of the pages and the docstrings, and the lengths of sentences.

python tests/prose.py                        the whole project
python tests/prose.py --long 30 docs/cli.md  a page's sentences of more than 30 words
"""

from __future__ import annotations

import argparse
import ast
import re
import statistics
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CODE = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
#: What ends a sentence: not the points of "e.g." and "1.5", nor those of a name of a file.
END = re.compile(r"(?<=[.!?:])[)*`\"]*\s+(?=[A-Z`*\"(\[])")


def sentences(text: str) -> Iterator[str]:
    """Yield the sentences of a page in Markdown, without code, tables and headings."""
    text = LINK.sub(r"\1", COMMENT.sub("", CODE.sub("\n\n", text)))
    lines = ["" if re.match(r" *(#|\|)", line) else line for line in text.splitlines()]
    lines = [re.sub(r"^ *([-*+]|\d+\.) +", "\n", line) for line in lines]
    for paragraph in re.split(r"\n\s*\n", "\n".join(lines)):
        for sentence in END.split(" ".join(paragraph.split())):
            if len(sentence.split()) > 2:
                yield sentence


def docstrings(path: Path) -> Iterator[str]:
    """Yield the docstrings of a module, and those of its attributes."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        for child in ast.iter_child_nodes(node):
            value = child.value if isinstance(child, ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield value.value


def main() -> None:
    """Print the table, or the long sentences of the pages that are named."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pages", nargs="*", type=Path, help="pages; all of docs by default")
    parser.add_argument("--long", type=int, help="print the sentences of more words than this")
    options = parser.parse_args()
    pages = options.pages or sorted((ROOT / "docs").glob("*.md"))
    if options.long:
        for page in pages:
            for sentence in sentences(page.read_text(encoding="utf-8")):
                if len(sentence.split()) > options.long:
                    print(f"{page}: {len(sentence.split())}: {sentence}")
        return
    total: list[int] = []
    words = 0
    for page in pages:
        text = page.read_text(encoding="utf-8")
        lengths = [len(sentence.split()) for sentence in sentences(text)]
        total += lengths
        words += len(text.split())
        print(_row(page.name, len(text.split()), lengths))
    print(_row("all pages", words, total))
    if not options.pages:
        texts = [text for file in (ROOT / "flower_ldp").rglob("*.py") for text in docstrings(file)]
        print(f"{'README':24} {len((ROOT / 'README.md').read_text().split()):7,} words")
        print(f"{'docstrings':24} {sum(len(text.split()) for text in texts):7,} words")


def _row(name: str, words: int, lengths: list[int]) -> str:
    long = sum(length > 30 for length in lengths)
    return (
        f"{name:24} {words:7,} words, a sentence's median {statistics.median(lengths):4g}, "
        f"longest {max(lengths):3}, above 30: {long}"
    )


if __name__ == "__main__":
    main()
