"""A page that would fetch something when it is shown fails the build."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.util import logging

FAR = r"(?:https?:)?//"
#: What a browser loads by itself. Links that a reader follows are none of it.
LOADED = (
    re.compile(rf"""<(?!a\b)[a-z]+\s[^>]*\b(?:src|poster|data)=["']({FAR}[^"']+)""", re.IGNORECASE),
    re.compile(rf"""<link\s[^>]*\bhref=["']({FAR}[^"']+)""", re.IGNORECASE),
    re.compile(rf"""url\(\s*["']?({FAR}[^"')]+)""", re.IGNORECASE),
    re.compile(rf"""@import\s+["']({FAR}[^"']+)""", re.IGNORECASE),
)


def fetched(text: str) -> Iterator[str]:
    """Yield the addresses that a page or a style sheet would load.

    Parameters
    ----------
    text : str
        HTML or CSS.
    """
    for pattern in LOADED:
        yield from pattern.findall(text)


def look(app: Sphinx, error: Exception | None) -> None:
    """Warn of each file of the site that would fetch something."""
    if error is not None or app.builder.format != "html":
        return
    logger = logging.getLogger(__name__)
    for path in sorted(Path(app.outdir).rglob("*")):
        if path.suffix in {".html", ".css"}:
            for address in fetched(path.read_text(encoding="utf-8")):
                logger.warning("%s fetches %s", path.relative_to(app.outdir), address)


def setup(app: Sphinx) -> dict[str, bool]:
    """Join the build."""
    app.connect("build-finished", look)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
