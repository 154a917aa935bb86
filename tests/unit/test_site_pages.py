"""The site has every page, each once, and fetches nothing."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from flower_ldp import advice
from tests.lint import ROOT

pytest.importorskip("sphinx", reason="the extra docs is not installed")
sys.path.insert(0, str(ROOT / "docs" / "_ext"))
from site_contents import LISTS, sections
from site_links import to_pages
from site_math import inline
from site_names import missing
from site_offline import fetched
from site_types import plain

PARTS = ["Start", "Tutorials", "How-to", "Explanation", "Reference", "Project"]
#: Explanations of what is no mechanism.
GROUNDS = {"docs/dpo", "docs/threat_model", "docs/accounting"}


def text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def listed() -> Iterator[str]:
    """Yield the pages of all lists."""
    for page in LISTS.values():
        for _, entries in sections(text(ROOT / f"{page}.md"), str(Path(page).parent)):
            yield from (name for _, name in entries)


def test_the_parts_are_those_that_users_of_flower_know() -> None:
    found = sections(text(ROOT / "docs" / "README.md"), "docs")
    assert [heading for heading, _ in found] == PARTS


def test_every_page_is_in_a_list_once() -> None:
    found = sorted(listed())
    there = {"README", "CONTRIBUTING", "CHANGELOG", "SECURITY", "benchmarks/README"}
    for folder, pattern in (
        ("docs", "*.md"),
        ("docs/api", "*.*"),
        ("examples", "*/*.md"),
        ("examples/tutorials", "*.ipynb"),
    ):
        paths = (path.relative_to(ROOT) for path in (ROOT / folder).glob(pattern))
        there |= {path.with_suffix("").as_posix() for path in paths}
    assert found == sorted(there - {"docs/README"})


def test_every_public_module_has_a_page() -> None:
    package = ROOT / "flower_ldp"
    public = {path.parent.name for path in package.glob("*/__init__.py") if "__all__" in text(path)}
    pages = {path.stem for path in (ROOT / "docs" / "api").glob("*.rst")}
    assert public - {"node", "wire", "cli"} <= pages
    for name in pages:
        assert f"automodule:: flower_ldp.{name}\n" in text(ROOT / "docs" / "api" / f"{name}.rst")


def test_a_mechanisms_page_has_a_proof_and_says_when_to_use_it() -> None:
    parts = dict(sections(text(ROOT / "docs" / "README.md"), "docs"))
    names = {name for _, name in parts["Explanation"]} - GROUNDS
    assert len(names) >= 9
    for name in names:
        page = text(ROOT / f"{name}.md")
        assert "\n## When to use it\n" in page, name
        assert re.search(r"Theorem|[Pp]roof", page), name


@pytest.mark.parametrize(
    ("written", "loaded"),
    [
        ('<script src="https://cdn.example/x.js"></script>', ["https://cdn.example/x.js"]),
        ('<link rel="stylesheet" href="//fonts.example/a.css">', ["//fonts.example/a.css"]),
        ('<img alt="a" src="http://x.example/a.png">', ["http://x.example/a.png"]),
        ("@font-face { src: url('https://x.example/a.woff2') }", ["https://x.example/a.woff2"]),
        ('@import "https://x.example/a.css";', ["https://x.example/a.css"]),
        ('<a href="https://flower.ai">Flower</a>', []),
        ('<script src="../_static/furo.js"></script>', []),
        ('<img src="_images/totals.png"> url(a.woff2)', []),
        ('<svg xmlns="http://www.w3.org/2000/svg"></svg>', []),
    ],
)
def test_what_a_page_would_fetch_is_found(written: str, loaded: list[str]) -> None:
    assert list(fetched(written)) == loaded


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("[signds](../examples/signds)", "[signds](../examples/signds/README.md)"),
        ("([ledger.md](ledger.md#parts-of-the-data))", "([](ledger.md#parts-of-the-data))"),
        ("[docs/policy.md](../docs/policy.md)", "[](../docs/policy.md)"),
        ("[results](../benchmarks/results/totals.json)", None),
        ("[limits](ledger.md)", None),
        ("[Flower](https://flower.ai)", None),
    ],
)
def test_links_lead_on_the_site_where_they_lead_on_github(written: str, read: str | None) -> None:
    env = SimpleNamespace(doc2path=lambda page: ROOT / f"{page}.md")
    source = [written]
    to_pages(SimpleNamespace(env=env), "docs/signds", source)  # type: ignore[arg-type]
    assert source == [read or written]


def test_formulas_need_no_script() -> None:
    nodes = pytest.importorskip("docutils.nodes")
    page = SimpleNamespace(body=[])
    with pytest.raises(nodes.SkipNode):
        inline(page, nodes.math("", r"e^{\epsilon/2}"))  # type: ignore[arg-type]
    assert "<msup>" in "".join(page.body)


def test_a_public_name_without_a_place_is_found() -> None:
    names = {f"flower_ldp.advice.{name}" for name in advice.__all__}
    assert missing("flower_ldp.advice", names) == []
    assert missing("flower_ldp.advice", names - {"flower_ldp.advice.advise"}) == ["advise"]


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        (
            "(x: ~numpy.ndarray[tuple[~typing.Any, ...], ~numpy.dtype[~numpy.float32]] | None)",
            "(x: ~numpy.typing.NDArray[~numpy.float32] | None)",
        ),
        (
            "(x: ~typing.Annotated[~typing.Annotated[dict[str, int], 1], (2, 'a')], y: str)",
            "(x: dict[str, int], y: str)",
        ),
        ("(x: dict[str, int]) -> None", "(x: dict[str, int]) -> None"),
    ],
)
def test_signatures_name_types_as_the_source_does(written: str, shown: str) -> None:
    assert plain(written) == shown
