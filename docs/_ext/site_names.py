"""Pages of Python's names: every public one is there, and no value fills a screen."""

from __future__ import annotations

from importlib import import_module

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util import logging

#: What a page of names is called, and the module behind it.
FOLDER, PACKAGE = "docs/api/", "flower_ldp."
#: Characters of a value that is shown.
LINE = 60


def missing(module: str, shown: set[str]) -> list[str]:
    """Return the public names of a module that no page shows.

    Parameters
    ----------
    module : str
        As it is imported.
    shown : set of str
        Full names on all pages. A name that another page has by the same name counts.
    """
    ends = {name.rsplit(".", 1)[-1] for name in shown if name.count(".") == 2}
    public = getattr(import_module(module), "__all__", [])
    return [name for name in public if f"{module}.{name}" not in shown and name not in ends]


def look(app: Sphinx, env: BuildEnvironment) -> None:
    """Warn of each public name that is on no page."""
    logger = logging.getLogger(__name__)
    shown = set(env.domains.python_domain.objects)
    for page in sorted(env.found_docs):
        if page.startswith(FOLDER) and not page.endswith("README"):
            for name in missing(PACKAGE + page.removeprefix(FOLDER), shown):
                logger.warning("%s is not on the page", name, location=page)


def hide_long_values(app: Sphinx, domain: str, kind: str, content: nodes.Element) -> None:
    """Drop the value of a constant that is longer than a line: its type and its text say more."""
    if (domain, kind) == ("py", "data"):
        for value in list(content.parent.findall(addnodes.desc_annotation)):
            if value.astext().lstrip().startswith("=") and len(value.astext()) > LINE:
                value.parent.remove(value)


def setup(app: Sphinx) -> dict[str, bool]:
    """Join the build."""
    app.connect("object-description-transform", hide_long_values)
    app.connect("env-check-consistency", look)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
