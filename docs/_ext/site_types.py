"""Types in signatures as the source has them, not as they are spelled out at run time."""

from __future__ import annotations

import re

from sphinx.application import Sphinx

#: An array of any shape; ``[...]`` is its type of element.
ARRAY = re.compile(r"~?numpy\.ndarray\[tuple\[(?:~?typing\.)?Any, \.\.\.\], ~?numpy\.dtype\[")
#: What numpy's ArrayLike is an alias of.
LIKE = re.compile(
    r"~?numpy\._typing\._array_like\._Buffer \| ~?numpy\._typing\._array_like\._SupportsArray"
    r"\[.*?\] \| complex \| bytes \| str \| "
    r"~?numpy\._typing\._nested_sequence\._NestedSequence\[complex \| bytes \| str\]"
)
ANNOTATED = re.compile(r"~?typing\.Annotated\[")
OPEN, CLOSE = "[({", "])}"


def inside(text: str, start: int) -> tuple[int, int]:
    """Return where the first entry of a bracket ends, and where the bracket closes.

    Parameters
    ----------
    text : str
        A signature.
    start : int
        Behind the bracket that opens.
    """
    depth, first = 0, -1
    for at in range(start, len(text)):
        if text[at] in CLOSE:
            if not depth:
                return (at if first < 0 else first), at
            depth -= 1
        depth += text[at] in OPEN
        if text[at] == "," and not depth and first < 0:
            first = at
    return len(text), len(text)


def plain(text: str) -> str:
    """Return a signature with numpy's names of arrays, and types without their validators.

    Parameters
    ----------
    text : str
        As autodoc has it.
    """
    text = LIKE.sub("~numpy.typing.ArrayLike", text)
    while found := ANNOTATED.search(text):
        first, end = inside(text, found.end())
        text = text[: found.start()] + text[found.end() : first] + text[end + 1 :]
    while found := ARRAY.search(text):
        first, end = inside(text, found.end())  # of the dtype; the array's bracket is the next
        kept = text[found.end() : end]
        text = f"{text[: found.start()]}~numpy.typing.NDArray[{kept}]{text[end + 2 :]}"
    return text


def shorten(
    app: Sphinx, what: str, name: str, obj: object, options: object, args: str, returns: str
) -> tuple[str | None, str | None]:
    """Replace a signature by its plain form."""
    return (plain(args) if args else args), (plain(returns) if returns else returns)


def skip(
    app: Sphinx, what: str, name: str, obj: object, skipped: bool, options: object
) -> bool | None:
    """Leave out pydantic's settings of a section, which are no part of it."""
    return True if name == "model_config" else None


def setup(app: Sphinx) -> dict[str, bool]:
    """Join the build."""
    app.connect("autodoc-process-signature", shorten)
    app.connect("autodoc-skip-member", skip)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
