"""The list of attacks names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "threat_model.md").read_text(encoding="utf-8")
LIST = PAGE.partition("\n## Attacks")[2].partition("\n\nNext:")[0]
ATTACKS = re.findall(r"^- \*\*(.+?)\*\*:(.*?)(?=\n\n|\n- |\Z)", LIST, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize(("attack", "rest"), ATTACKS, ids=[attack[:40] for attack, _ in ATTACKS])
def test_every_attack_names_a_test_that_exists(attack: str, rest: str) -> None:
    named = re.findall(r"`(test_\w+\.py)(?:::(test_\w+))?`", rest)
    assert named
    for file, name in named:
        (path,) = (ROOT / "tests").rglob(file)
        assert not name or f"def {name}(" in path.read_text(encoding="utf-8"), (file, name)


def test_every_item_of_the_list_is_looked_at() -> None:
    assert len(ATTACKS) == len(re.findall(r"^- ", LIST, re.MULTILINE)) > 40
