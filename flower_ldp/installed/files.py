"""The files of an installed distribution, as its own list (``RECORD``) has them."""

from __future__ import annotations

import base64
import csv
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from importlib.metadata import Distribution, distributions
from pathlib import Path

from flower_ldp.errors import ConfigError

#: What an installer adds beside a distribution's metadata, in the words of its own.
ADDED = frozenset({"INSTALLER", "REQUESTED", "RECORD", "direct_url.json", "uv_cache.json"})


@dataclass(frozen=True)
class Row:
    """A file of a distribution.

    Parameters
    ----------
    path : str
        From the folder that the distribution lies in, with slashes.
    digest : str
        SHA-256 in hexadecimal digits; empty where the list has none, or of another kind.
    """

    path: str
    digest: str

    @property
    def is_released(self) -> bool:
        """Whether it lies among the released files, and the installer has not made it."""
        folder, _, name = self.path.rpartition("/")
        made = folder.endswith(".dist-info") and name in ADDED
        return bool(self.digest) and not self.path.startswith(("/", "..")) and not made


def rows_of(one: Distribution) -> tuple[Row, ...]:
    """Return the files that a distribution's list names, sorted; none if it has no list."""
    text = one.read_text("RECORD")
    return () if text is None else tuple(sorted(_rows(text), key=lambda row: row.path))


def _rows(text: str) -> Iterator[Row]:
    for path, digest, *_ in csv.reader(text.splitlines()):
        kind, _, value = digest.partition("=")
        known = base64.urlsafe_b64decode(value + "=" * (-len(value) % 4)) if value else b""
        yield Row(path.replace("\\", "/"), known.hex() if kind == "sha256" else "")


def contents(one: Distribution) -> str:
    """Return one SHA-256 of all released files; empty where the list names none.

    The same release gives the same on each machine: scripts that an installer made, and its own
    notes, are not in it.
    """
    lines = [f"{row.path} {row.digest}\n" for row in rows_of(one) if row.is_released]
    return sha256("".join(lines).encode()).hexdigest() if lines else ""


def came_from(one: Distribution) -> tuple[str, bool]:
    """Return the SHA-256 of the archive that was installed, if known, and whether it is editable.

    An index leaves no note of the archive; a file's or an address's is in ``direct_url.json``.
    """
    text = one.read_text("direct_url.json")
    found = {} if text is None else json.loads(text)
    archive, folder = found.get("archive_info", {}), found.get("dir_info", {})
    return archive.get("hashes", {}).get("sha256", ""), bool(folder.get("editable"))


def every(site: Path | None = None) -> Iterable[Distribution]:
    """Return all that is installed in a folder, or where this interpreter looks."""
    return distributions() if site is None else distributions(path=[str(site)])


def normal(name: str) -> str:
    """Return the normal form of a distribution's name, as ``typing-extensions``."""
    return re.sub(r"[-_.]+", "-", name).lower()


def find_distribution(name: str, site: Path | None = None) -> Distribution:
    """Return an installed distribution.

    Parameters
    ----------
    name : str
        Of the distribution.
    site : Path, optional
        The folder that it lies in (``site-packages``); by default where this interpreter looks.

    Raises
    ------
    ConfigError
        If it is not there.
    """
    for one in every(site):
        if normal(one.metadata["Name"]) == normal(name):
            return one
    raise ConfigError(f"{name} is not installed {'here' if site is None else f'in {site}'}")
