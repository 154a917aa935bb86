"""Every example of the package's docstrings and of the pages runs, and prints what it says."""

from __future__ import annotations

import ast
import builtins
import doctest
import importlib
import re
import runpy
import symtable
from pathlib import Path

import pytest

import flower_ldp

ROOT = Path(__file__).parents[2]
PACKAGE = Path(flower_ldp.__file__).parent
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")])
#: What optional dependencies are imported as: without them an example skips.
EXTRAS = {"torch", "sklearn", "skimage", "dp_accounting", "matplotlib", "pandas"}
PROMPT = re.compile(r"^\s*>>> ", re.MULTILINE)


def named(path: Path) -> str:
    return str(path.relative_to(PACKAGE.parent if path.suffix == ".py" else ROOT))


def prompts(path: Path) -> int:
    """Return how many examples a file has."""
    return len(PROMPT.findall(path.read_text(encoding="utf-8")))


def skip_without_extra(error: BaseException) -> None:
    """Skip the test if what is missing is an extra; else raise the error."""
    if isinstance(error, ModuleNotFoundError) and (error.name or "").split(".")[0] in EXTRAS:
        pytest.skip(f"needs {error.name}, which is not installed")
    raise error


def run(test: doctest.DocTest) -> int:
    """Run the examples of one docstring or page, and return how many they are."""
    try:
        doctest.DebugRunner(verbose=False).run(test)
    except doctest.UnexpectedException as unexpected:
        skip_without_extra(unexpected.exc_info[1])
    except doctest.DocTestFailure as failure:
        pytest.fail(
            f"{test.name}: {failure.example.source.strip()}\n"
            f"wanted {failure.example.want.strip()}, got {failure.got.strip()}"
        )
    return len(test.examples)


@pytest.mark.parametrize(
    "path", [p for p in sorted(PACKAGE.rglob("*.py")) if prompts(p)], ids=named
)
def test_examples_of_a_module_run(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    expected = prompts(path)
    module = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(
        ".__init__"
    )
    try:
        loaded = importlib.import_module(module)
    except ModuleNotFoundError as error:
        skip_without_extra(error)
    assert sum(map(run, doctest.DocTestFinder().find(loaded))) == expected


@pytest.mark.parametrize("path", [page for page in PAGES if prompts(page)], ids=named)
def test_examples_of_a_page_run(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    parsed = doctest.DocTestParser().get_doctest(text, {}, path.name, named(path), 0)
    assert run(parsed) == prompts(path)


def blocks() -> list[tuple[str, str]]:
    """Return the pages' Python without prompts, each block with its place."""
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for match in re.finditer(r"^( *)```python\n(.*?)^ *```", text, re.MULTILINE | re.DOTALL):
            code = "\n".join(line.removeprefix(match[1]) for line in match[2].splitlines())
            if not PROMPT.search(code):
                line = text[: match.start()].count("\n") + 1
                found.append((f"{named(page)}:{line}", code))
    return found


def unbound(code: str) -> set[str]:
    """Return the names that a block uses and neither defines nor imports."""
    table = symtable.symtable(code, "block", "exec")
    tables, defined, used = [table], set(dir(builtins)), set()
    while tables:
        scope = tables.pop()
        tables += scope.get_children()
        for symbol in scope.get_symbols():
            if scope is table and (symbol.is_assigned() or symbol.is_imported()):
                defined.add(symbol.get_name())
            elif symbol.is_global() and symbol.is_referenced():
                used.add(symbol.get_name())
    return used - defined


def is_whole(code: str) -> bool:
    """Say whether a block defines or imports every name that it uses."""
    return not unbound(code)


@pytest.mark.parametrize(("place", "code"), blocks())
def test_what_a_block_imports_is_there(place: str, code: str) -> None:
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and node.module:
            try:
                module = importlib.import_module(node.module)
            except ModuleNotFoundError as error:
                skip_without_extra(error)
            for alias in node.names:
                assert hasattr(module, alias.name), (place, alias.name)


WHOLE = [(place, code) for place, code in blocks() if is_whole(code)]


@pytest.mark.parametrize(("place", "code"), WHOLE, ids=[place for place, _ in WHOLE])
def test_a_block_that_stands_alone_runs(
    place: str, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    script = tmp_path / "block.py"
    script.write_text(code, encoding="utf-8")
    runpy.run_path(str(script))


def test_there_are_examples() -> None:
    assert sum(map(prompts, PACKAGE.rglob("*.py"))) > 40
    assert sum(map(prompts, PAGES)) >= 10
    assert len(WHOLE) >= 3
