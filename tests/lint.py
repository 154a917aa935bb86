"""Checks the pages and the layout of the project; tests/unit/test_lint.py runs it too.

python -m tests.lint              prints what is wrong, and ends with 1 if anything is
python -m tests.lint --wrap       wraps the paragraphs that are too long
python -m tests.lint --words      words of pages and docstrings, and the lengths of sentences
python -m tests.lint --long 20    sentences of the pages of more than 20 words
"""

from __future__ import annotations

import argparse
import difflib
import pkgutil
import re
import statistics
from collections.abc import Callable, Iterator
from functools import cache
from importlib import import_module
from pathlib import Path

import flower_ldp
from tests.prose import (
    WIDTH,
    docstrings,
    lines_of,
    prose,
    read,
    sentences,
    wrapped_page,
)

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = Path(flower_ldp.__file__).parent
README = ROOT / "README.md"
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
#: Words of the README, and of a sentence in it and in docs.
MOST_WORDS, LONG = 1_000, 30
PAGES = sorted(
    [
        README,
        ROOT / "CONTRIBUTING.md",
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "benchmarks").glob("*.md"),
        *(ROOT / "examples").rglob("*.md"),
    ]
)
#: Files, folders and modules of the repository, as pages write them.
FILE = re.compile(r"`([\w./-]*\w\.(?:py|yaml|sh|ipynb))`")
FOLDER = re.compile(r"`((?:flower_ldp|configs|examples|tests|benchmarks|docs)(?:/[\w.-]+)*)/?`")
MODULE = re.compile(r"\bflower_ldp(?:\.\w+)+")
LINK = re.compile(r"\]\((?!https?:|mailto:)([^)\s]*)\)")
#: Files that the reader makes.
ELSEWHERE = {"owner-labels/policy.yaml"}


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def is_row(line: str) -> bool:
    """Say whether a line of output is a row of a table, which cannot be folded."""
    return "──" in line or len(re.findall(r"(?<=\S) {2,}(?=\S)", line)) >= 3


# Of one page.


def wide_lines(page: Path, text: str) -> Iterator[str]:
    """Yield the lines that need scrolling."""
    lines, row = text.splitlines(), len(text) if page.name in FOLDED else TABLE
    for number, line, code in lines_of(text):
        # A command that the gate reads has to be one line.
        of_ci = number > 2 and lines[number - 3].startswith("<!-- ci:")
        wide = len(line) > (row if line.lstrip().startswith("|") else WIDTH)
        if wide and " " in line.strip() and not of_ci and not (code and is_row(line)):
            yield f"line {number} is wider than {WIDTH}: {line[:60]}"


def broken_links(page: Path, text: str) -> Iterator[str]:
    """Yield the links to files and headings that are not there."""
    for target in LINK.findall(prose(text)):
        name, _, part = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        if not file.exists() or (part and file.suffix == ".md" and part not in anchors(file)):
            yield f"a link leads nowhere: {target}"


@cache
def anchors(page: Path) -> set[str]:
    """Return what a link may name after the #: headings, as GitHub spells them."""
    headings = re.findall(r"^#+ +(.*)", prose(read(page)), re.MULTILINE)
    bare = (re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading) for heading in headings)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in bare}


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


def unknown_files(page: Path, text: str) -> Iterator[str]:
    """Yield the names of files and folders that are not there."""
    del page
    names = {name.removeprefix("../") for name in FILE.findall(text)}
    places = (ROOT, PACKAGE.parent)  # an installed package is not beside the pages
    named_there = set(FOLDER.findall(text))
    folders = {one for one in named_there if not any((place / one).exists() for place in places)}
    yield from (f"no such file: {name}" for name in sorted(names - files() - ELSEWHERE | folders))


def unknown_modules(page: Path, text: str) -> Iterator[str]:
    """Yield the dotted names that are no module, nor an attribute of one."""
    del page
    yield from (f"no such name: {name}" for name in set(MODULE.findall(text)) if not exists(name))


def exists(name: str) -> bool:
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


def changed_by_wrapping(page: Path, text: str) -> Iterator[str]:
    """Yield a complaint if wrapping the paragraphs would change a word."""
    del page
    if " ".join(text.split()) != " ".join(wrapped_page(text).split()):
        yield "wrapping its paragraphs changes a word"


def long_sentences(page: Path, text: str) -> Iterator[str]:
    """Yield the sentences of docs and the README that have too many words."""
    if page == README and len(text.split()) > MOST_WORDS:
        yield f"{len(text.split())} words, at most {MOST_WORDS}"
    if page == README or page.parent == ROOT / "docs":
        for sentence in sentences(text):
            if len(sentence.split()) > LONG:
                yield f"a sentence of {len(sentence.split())} words: {sentence[:60]}"


#: Each takes a page and its text, and yields complaints.
OF_PAGES: tuple[Callable[[Path, str], Iterator[str]], ...] = (
    wide_lines,
    broken_links,
    unknown_files,
    unknown_modules,
    changed_by_wrapping,
    long_sentences,
)


# Of the project.

#: Files that are the same, since each app is installed alone.
COPIES = {
    "digits.py": [
        f"examples/{name}/{name.replace('-', '_').removesuffix('_eval')}_example/digits.py"
        for name in ("asked-once", "label-dp", "signds", "unsupervised-eval")
    ],
    "report.py": [
        "examples/asked-once/asked_once_example/report.py",
        "examples/signds/signds_example/report.py",
    ],
    "simulation_policy.yaml": [
        "configs/simulation_policy.yaml",
        "examples/signds/simulation_policy.yaml",
    ],
}
#: The examples whose differences the README shows, in order, with their module.
APPS = (("existing_app", "quickstart"), ("few_sites", "sites"))


def different_copies() -> Iterator[str]:
    """Yield the files that should be the same and are not."""
    for name, places in COPIES.items():
        if len({(ROOT / place).read_bytes() for place in places}) != 1:
            yield f"copies of {name} differ: {', '.join(places)}"
    there = {named(path) for path in (ROOT / "examples").glob("*/*/digits.py")}
    yield from (f"{path} is no known copy" for path in there - set(COPIES["digits.py"]))


def different_diffs() -> Iterator[str]:
    """Yield the README's diffs that are not the difference of their two apps."""
    shown = re.findall(r"```diff\n(.*?)```", read(README), flags=re.DOTALL)
    for text, (example, module) in zip(shown, APPS, strict=True):
        folder, lines = ROOT / "examples" / example, list[str]()
        for name in ("client_app.py", "server_app.py"):
            pair = [f"{side}/{module}/{name}" for side in ("plain", "private")]
            sources = [read(folder / file).splitlines() for file in pair]
            lines += difflib.unified_diff(*sources, *pair, n=1, lineterm="")
        if text.splitlines() != lines:
            yield f"README.md: the diff of {example} is another one"
        for path in sorted((folder / "plain").rglob("*.*")):
            own = path.name in ("client_app.py", "server_app.py", ".gitignore")
            if own or "__pycache__" in path.parts:
                continue
            other = read(folder / "private" / path.relative_to(folder / "plain"))
            if re.sub(r'"flower-ldp(\[dpsgd\]>=0\.2)?", ', "", other) != read(path):
                yield f"{named(path)} differs from the private app's, and no diff shows it"


def attacks_without_test() -> Iterator[str]:
    """Yield the attacks of docs/threat_model.md that name no test, or one that is not there."""
    text = read(ROOT / "docs" / "threat_model.md")
    listed = text.partition("\n## Attacks")[2].partition("\n\nNext:")[0]
    items = re.findall(r"^- (.*?)(?=\n\n|\n- |\Z)", listed, re.MULTILINE | re.DOTALL)
    if len(items) <= 40:
        yield f"docs/threat_model.md: only {len(items)} attacks"
    for item in items:
        tests = re.findall(r"`(test_\w+\.py)(?:::(test_\w+))?`", item)
        if not (tests and item.startswith("**")):
            yield f"docs/threat_model.md: no test is named: {item[:60]}"
        for file, name in tests:
            paths = list((ROOT / "tests").rglob(file))
            if len(paths) != 1 or (name and f"def {name}(" not in read(paths[0])):
                yield f"docs/threat_model.md: no such test: {file} {name}"


def codes_elsewhere() -> Iterator[str]:
    """Yield the files of the package that spell a refusal's code, which refusals.py alone does."""
    for path in PACKAGE.rglob("*"):
        if path.suffix not in (".py", ".yaml") or path.name == "refusals.py":
            continue
        if re.search(r"ldp:(refused|failed)", read(path)):
            yield f"{path.relative_to(PACKAGE)} spells a refusal's code"


OF_PROJECT: tuple[Callable[[], Iterator[str]], ...] = (
    different_copies,
    different_diffs,
    attacks_without_test,
    codes_elsewhere,
)


def counted() -> Iterator[str]:
    """Yield the words of each page of docs, and the lengths of its sentences."""
    total, words = list[int](), 0
    for page in sorted((ROOT / "docs").glob("*.md")):
        text = read(page)
        lengths = [len(sentence.split()) for sentence in sentences(text)]
        yield _count(page.name, len(text.split()), lengths)
        total, words = total + lengths, words + len(text.split())
    yield _count("all pages", words, total)
    texts = [text for file in PACKAGE.rglob("*.py") for text in docstrings(file)]
    yield f"{'README':24} {len(read(README).split()):7,} words"
    yield f"{'docstrings':24} {sum(len(text.split()) for text in texts):7,} words"


def _count(name: str, words: int, lengths: list[int]) -> str:
    return (
        f"{name:24} {words:7,} words, a sentence's median {statistics.median(lengths):4g}, "
        f"longest {max(lengths):3}, above {LONG}: {sum(length > LONG for length in lengths)}"
    )


def complaints() -> Iterator[str]:
    """Yield everything that is wrong."""
    for page in PAGES:
        yield from (f"{named(page)}: {said}" for of in OF_PAGES for said in of(page, read(page)))
    for of_project in OF_PROJECT:
        yield from of_project()


def main() -> None:
    """Check, wrap or count."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--wrap", action="store_true", help="wrap paragraphs that are too long")
    parser.add_argument("--words", action="store_true", help="count words and sentences")
    parser.add_argument("--long", type=int, help="print the sentences of more words than this")
    options = parser.parse_args()
    if options.wrap:
        for page in PAGES:
            page.write_text(wrapped_page(read(page)), encoding="utf-8")
    elif options.words:
        print(*counted(), sep="\n")
    elif options.long:
        for page in PAGES:
            for sentence in sentences(read(page)):
                if len(sentence.split()) > options.long:
                    print(f"{named(page)}: {len(sentence.split())}: {sentence}")
    else:
        found = list(complaints())
        print(*found, sep="\n")
        raise SystemExit(bool(found))


if __name__ == "__main__":
    main()
