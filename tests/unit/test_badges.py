"""The badges say what the build has: Python's and Flower's versions, the licence, the types.

``python -m tests.unit.test_badges`` writes them anew.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "images"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
#: Width of a letter, and of the room at both ends of a text, in pixels.
LETTER, ENDS = 6.6, 12


def badges() -> dict[str, tuple[str, str]]:
    """Return label and text of each badge, from what declares them."""
    project = PROJECT["project"]
    pythons = re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    (oldest,) = re.findall(r"flwr>=([\d.]+)", "\n".join(project["dependencies"]))
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    (tested,) = re.findall(r"^flwr==(\d+\.\d+)", pins, flags=re.MULTILINE)
    strict = "mypy, strict" if PROJECT["tool"]["mypy"]["strict"] else "mypy"
    return {
        "python": ("python", f"{pythons[0]} to {pythons[-1]}"),
        "flower": ("flower", f"{oldest} to {tested}"),
        "licence": ("licence", project["license"]),
        "types": ("types", strict),
    }


def drawn(label: str, text: str) -> str:
    """Return a badge as SVG, with its words for who cannot see it."""
    left, right = (round(LETTER * len(part) + ENDS) for part in (label, text))
    words = f"{label}: {text}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + right}" height="20" role="img" '
        f'aria-label="{words}">\n<title>{words}</title>\n'
        f'<rect width="{left + right}" height="20" rx="3" fill="#3a5a8c"/>\n'
        f'<rect width="{left}" height="20" rx="3" fill="#444"/>\n'
        '<g fill="#fff" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11" '
        'text-anchor="middle">\n'
        f'<text x="{left / 2:g}" y="14">{label}</text>\n'
        f'<text x="{left + right / 2:g}" y="14">{text}</text>\n</g>\n</svg>\n'
    )


def file(name: str) -> Path:
    return FOLDER / f"badge-{name}.svg"


@pytest.mark.parametrize("name", badges())
def test_a_badge_says_what_is_declared(name: str) -> None:
    shown = file(name).read_text(encoding="utf-8")
    assert shown == drawn(*badges()[name]), "python -m tests.unit.test_badges"
    assert ElementTree.fromstring(shown).tag.endswith("svg")


def test_no_badge_is_left_that_nothing_declares() -> None:
    assert sorted(FOLDER.glob("badge-*.svg")) == sorted(map(file, badges()))


if __name__ == "__main__":
    for one, words in badges().items():
        file(one).write_text(drawn(*words), encoding="utf-8")
