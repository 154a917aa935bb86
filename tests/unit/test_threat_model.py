"""The table of attacks names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ATTACKS = (ROOT / "docs" / "threat_model.md").read_text(encoding="utf-8").partition("\n## Attacks")
ROWS = [line for line in ATTACKS[2].splitlines() if line.startswith("| ")][1:]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.split("|")[1].strip()[:40])
def test_every_attack_names_a_test_that_exists(row: str) -> None:
    attack, _, _, shown = (cell.strip() for cell in row.strip("|").split("|"))
    named = re.findall(r"`(test_\w+\.py)(?:::(test_\w+))?`", shown)
    assert attack
    assert named
    for file, name in named:
        (path,) = (ROOT / "tests").rglob(file)
        assert not name or f"def {name}(" in path.read_text(encoding="utf-8"), (file, name)


def test_the_table_is_there() -> None:
    assert len(ROWS) > 15
