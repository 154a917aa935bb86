"""The bundle that Flower would make of an app's folder: the bytes that ``flwr run`` sends."""

from __future__ import annotations

import warnings
from pathlib import Path

from flower_ldp.apps.bundle import MOST_PACKED, BundleError


def bundle_of(path: Path) -> bytes:
    """Return a bundle's bytes: those of a file, or what Flower makes of an app's folder.

    The same folder gives the same bytes under the same release of Flower, tomli-w and zlib.

    Parameters
    ----------
    path : Path
        A bundle (``.fab``), or a folder with a ``pyproject.toml``.

    Raises
    ------
    BundleError
        If there is no such thing, or Flower takes it for no app.
    """
    try:
        if not path.is_dir():
            with path.open("rb") as file:
                return file.read(MOST_PACKED + 1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about a name of a library's that Flower uses
            from flwr.cli.build import build_fab_from_disk

            return build_fab_from_disk(path)
    except Exception as error:  # of Flower's, which has its own for each fault
        raise BundleError(f"{path}: {error}") from error
