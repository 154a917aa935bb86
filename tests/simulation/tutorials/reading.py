"""Numbers in the text that a tutorial printed."""

from __future__ import annotations

import re


def number(pattern: str, text: str) -> float:
    """Return the first group of the first match as a number; commas part thousands."""
    found = re.search(pattern, text, flags=re.MULTILINE)
    assert found is not None, pattern
    return float(found[1].replace(",", ""))
