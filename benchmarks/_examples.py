"""Puts the repository, whose tests some benchmarks share, and the examples on the path."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"
_FOLDERS = ("", "signds", "hospitals", "asked-once", "existing_app/plain")

sys.path[:0] = [str(ROOT), *(str(EXAMPLES / folder) for folder in _FOLDERS)]


def replace_once(file: Path, old: str, new: str) -> None:
    """Change an app's file."""
    text = file.read_text()
    if text.count(old) != 1:
        raise ValueError(f"{file.name} is not what it was: {old!r}")
    file.write_text(text.replace(old, new))
