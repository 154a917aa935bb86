"""Every public name is on its module's page, or the build fails."""

from __future__ import annotations

from importlib import import_module

from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util import logging

#: What a page of names is called, and the module behind it.
FOLDER, PACKAGE = "docs/api/", "flower_ldp."


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


def setup(app: Sphinx) -> dict[str, bool]:
    """Join the build."""
    app.connect("env-check-consistency", look)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
