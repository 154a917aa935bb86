"""The site's contents are the lists of pages: each section of a list is a part of the side bar."""

from __future__ import annotations

import posixpath
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx

#: The page beneath which the pages of a list hang, and the list.
LISTS = {"README": "docs/README", "docs/api/README": "docs/api/README"}
SECTION = re.compile(r"^## +(.*)\n((?:(?!## ).*\n?)*)", re.MULTILINE)
ENTRY = re.compile(r"^[-*] \[([^]]+)\]\(([^)#\s]+)\)", re.MULTILINE)


def page(target: str) -> str:
    """Return the site's name of a page, or of the page of a folder."""
    path = posixpath.normpath(target)
    stem, suffix = posixpath.splitext(path)
    return stem if suffix else f"{path}/README"


def sections(text: str, folder: str) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Yield each section's heading, and title and page of its entries.

    Parameters
    ----------
    text : str
        A list of pages, in Markdown.
    folder : str
        Where the list lies, from the root of the repository.
    """
    for heading, body in SECTION.findall(text):
        entries = [(title, page(posixpath.join(folder, to))) for title, to in ENTRY.findall(body)]
        if entries:
            yield heading, entries


def toctree(parent: str, heading: str, entries: list[tuple[str, str]]) -> nodes.Element:
    """Return what puts a section into the side bar, and nothing on the page."""
    tree = addnodes.toctree()
    tree["parent"] = parent
    tree["entries"] = entries
    tree["includefiles"] = [name for _, name in entries if name != "self"]
    tree["maxdepth"] = 1
    tree["caption"] = tree["rawcaption"] = heading
    tree["hidden"] = True
    tree["glob"] = tree["includehidden"] = tree["titlesonly"] = False
    tree["numbered"] = 0
    return nodes.compound("", tree, classes=["toctree-wrapper"])


def add_contents(app: Sphinx, document: nodes.document) -> None:
    """Hang the pages of a list beneath the page that stands for it."""
    name = app.env.docname
    if name in LISTS.values():
        app.env.metadata[name]["orphan"] = True  # it is the side bar
    if name not in LISTS:
        return
    path = LISTS[name]
    app.env.note_dependency(str(Path(app.srcdir, f"{path}.md")))
    text = Path(app.srcdir, f"{path}.md").read_text(encoding="utf-8")
    for heading, entries in sections(text, posixpath.dirname(path)):
        there = [(title, "self" if page == name else page) for title, page in entries]
        document[0] += toctree(name, heading, there)


def front_page(app: Sphinx, error: Exception | None) -> None:
    """Let the address of the site, and of its folder, show the first page."""
    if error is None and app.builder.format == "html":
        first = Path(app.outdir, f"{app.config.root_doc}.html")
        shutil.copyfile(first, first.with_name("index.html"))


def setup(app: Sphinx) -> dict[str, bool]:
    """Join the build."""
    app.connect("doctree-read", add_contents, priority=100)
    app.connect("build-finished", front_page)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
