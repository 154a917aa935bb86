"""The drawings of the pages are those that the script makes, and every one is on a page."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
IMAGES = ROOT / "docs" / "images"
NAMES = sorted(path.stem for path in IMAGES.glob("*.svg") if not path.stem.startswith("badge-"))


def told(svg: str) -> tuple[list[str], set[str]]:
    """Return the words of a drawing, and its colours on a light page."""
    words, styles = re.findall(r"<text [^>]*>([^<]*)", svg), re.findall(r'style="([^"]*)"', svg)
    return words, set(re.findall(r"#\w+", " ".join(styles)))


def test_the_script_makes_the_drawings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the extra plots is not installed")
    pytest.importorskip("sklearn", reason="the extra evaluation is not installed")
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    script = importlib.import_module("drawings")
    dark = importlib.import_module("_drawings_canvas").DARK
    script.main(tmp_path)
    assert sorted(path.stem for path in tmp_path.iterdir()) == NAMES
    for name in NAMES:
        words, colours = told((IMAGES / f"{name}.svg").read_text(encoding="utf-8"))
        made = told((tmp_path / f"{name}.svg").read_text(encoding="utf-8"))
        assert (words, colours) == made, f"{name}: python benchmarks/drawings.py"
        assert words
        assert colours <= dark.keys(), name


@pytest.mark.parametrize("name", NAMES)
def test_a_drawing_is_on_one_page_with_words_for_who_cannot_see_it(name: str) -> None:
    pages = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs").glob("*.md"))
    (words,) = re.findall(rf"!\[([^]]*)\]\(images/{name}\.svg\)", pages)
    assert len(words.split()) > 3
