"""Modules of the package's extras: a test that needs one which is not installed skips and says so.

A module of tests that needs one throughout calls ``pytest.importorskip`` before its imports.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import pytest

NAMES = ("dp_accounting", "matplotlib", "mpmath", "opacus", "scipy", "skimage", "sklearn", "torch")
#: Those that are not installed; what a test hides from the package on purpose is none of these.
ABSENT = frozenset(name for name in NAMES if find_spec(name) is None)


@contextmanager
def skipping() -> Iterator[None]:
    """Skip where the package itself asks for an extra that is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        missing = _missing(error)
        if not missing:
            raise
        pytest.skip(_reason(missing))


def _missing(error: BaseException | None) -> str:
    """Return the absent extra that an error, or one that led to it, is about."""
    while error is not None:
        name = (getattr(error, "name", None) or "").partition(".")[0]
        if name in ABSENT:
            return name
        error = error.__cause__
    return ""


def _reason(name: str) -> str:
    return f"{name} is not installed (the extra 'dev' brings it)"


class _Missing:
    """In the place of a module: what touches it is skipped, and all else in the file runs."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__"):  # pytest looks at what a file holds, and needs nothing
            raise AttributeError(attribute)
        pytest.skip(_reason(self._name))


def extra(name: str) -> Any:
    """Return a module, or what skips each test that uses it.

    Parameters
    ----------
    name : str
        Of a module of an extra, or of the package's that imports one; with its package's.
    """
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in ABSENT:
            raise
        return _Missing(missing)
