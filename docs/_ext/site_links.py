"""Links of the repository's pages that a site would not know, and names of the package."""

from __future__ import annotations

import re
from pathlib import Path

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

#: A link whose text is the page's own path.
BARE = re.compile(r"\[([\w./-]+\.md)\](?=\(([^)\s#]+)(?:#[^)\s]*)?\))")
LINK = re.compile(r"\]\((?!https?:|mailto:|#)([^)\s#]+)\)")


def to_pages(app: Sphinx, page: str, source: list[str]) -> None:
    """Let a link to a folder lead to the page that GitHub shows for it.

    A link whose text is a path gets the title of what it leads to.
    """
    here = Path(app.env.doc2path(page)).parent

    def target(link: re.Match[str]) -> str:
        folder = here / link[1]
        return f"]({link[1].rstrip('/')}/README.md)" if folder.is_dir() else link[0]

    def name(link: re.Match[str]) -> str:
        return "[]" if Path(link[1]).name == Path(link[2]).name else link[0]

    if app.env.doc2path(page).suffix == ".md":
        source[0] = BARE.sub(name, LINK.sub(target, source[0]))


def to_public_name(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, text: nodes.Element
) -> nodes.Element | None:
    """Resolve where a name was defined to where it is public.

    A signature says ``flower_ldp.clients.ldp_mod.LdpMod``; the reference has
    ``flower_ldp.clients.LdpMod``.
    """
    target = node.get("reftarget", "")
    if node.get("refdomain") != "py" or not target.startswith("flower_ldp."):
        return None
    parts = target.split(".")
    python = env.domains.python_domain
    for length in range(2, len(parts)):
        name = ".".join([*parts[:length], parts[-1]])
        if name in python.objects:
            node["reftarget"] = name
            return python.resolve_xref(
                env, node["refdoc"], app.builder, node["reftype"], name, node, text
            )
    return None


def setup(app: Sphinx) -> dict[str, bool]:
    """Join the build."""
    app.connect("source-read", to_pages)
    app.connect("missing-reference", to_public_name)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
