"""The site: the repository's own pages, in the order that docs/README.md gives them.

Pages are read where they lie, so that links between them lead on the site where they lead on
GitHub. Nothing is fetched and no notebook is executed. From the root of the repository:
``sphinx-build -W --keep-going -c docs . build/site``; ``-t pages`` leaves out Python's names.
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE / "_ext"), str(HERE.parent)]

import flower_ldp  # noqa: E402

project = "flower-ldp"
author = "The flower-ldp authors"
project_copyright = author
version = release = flower_ldp.__version__

extensions = ["myst_nb", "site_contents", "site_links", "site_math", "site_offline"]
#: ``-t pages`` leaves out Python's names, whose modules take most of a build's time.
extensions += (
    ["site_no_names"]
    if tags.has("pages")  # noqa: F821  # Sphinx defines it
    else ["sphinx.ext.autodoc", "numpydoc", "site_names", "site_types"]
)

root_doc = "README"
include_patterns = [
    "*.md",
    "docs/*.md",
    "docs/api/*",
    "benchmarks/README.md",
    "examples/**/*.md",
    "examples/tutorials/*.ipynb",
]
exclude_patterns = [".*", "build", "dist", "tests", "**/.*", "**/outputs", "CODE_OF_CONDUCT.md"]

myst_heading_anchors = 4
#: Formulas of the notebooks, as GitHub and Jupyter read them.
myst_enable_extensions = ["dollarmath"]
nb_execution_mode = "off"
nb_merge_streams = True

autodoc_default_options = {"members": True}
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 80
numpydoc_show_class_members = False
numpydoc_xref_param_type = False
add_module_names = False

html_theme = "furo"
html_title = "flower-ldp"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False
pygments_style = "friendly"
pygments_dark_style = "github-dark"
html_show_sphinx = False
html_math_renderer = "mathml"
