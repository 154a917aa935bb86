"""Pages of Python's names without the names: for a look at the other pages, which is quick."""

from __future__ import annotations

from typing import ClassVar

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective


class Nothing(SphinxDirective):
    """What stands in the place of a module's names."""

    required_arguments = 1
    has_content = True
    option_spec: ClassVar = {"exclude-members": str}

    def run(self) -> list[nodes.Node]:
        """Return nothing."""
        return []


def setup(app: Sphinx) -> dict[str, bool]:
    """Join the build."""
    for name in ("automodule", "autoclass", "autofunction"):
        app.add_directive(name, Nothing)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
