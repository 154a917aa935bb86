"""Digests of a Flower app bundle (FAB) and of the environment that it runs in, for allowlists.

A bundle is read as bytes: nothing is unpacked to disk, imported or run. Flower installs also files
that the bundle's own list does not name, and a name that stands twice depends on the reader. A
sound bundle has each name once, all of them on the list with the right digests, none outside of its
folder, and no compiled file, which Python would run in place of the source.

The environment is one digest of the interpreter and of the distributions' ``RECORD`` files, which
hold the digests of all installed files. It does not cover later changes, files of no distribution
(``.pth``, ``sitecustomize``), editable sources, and system libraries and drivers.
"""

import json
import platform
import re
import stat
import sys
import tomllib
import unicodedata
import warnings
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from importlib.metadata import Distribution, distributions
from io import BytesIO
from pathlib import Path
from typing import Any

from flower_ldp.errors import LdpError, quoted

#: Bytes of a bundle, packed and unpacked: Flower makes none with more than ten million.
MOST_PACKED, MOST_UNPACKED = 16 << 20, 256 << 20
_CONFIG, _LIST = "pyproject.toml", ".info/CONTENT"
#: Ways of packing that are unpacked by a bounded number of bytes at a time.
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_COMPILED = (".pyc", ".pyo", ".so", ".pyd", ".dll", ".dylib")
_PLAIN = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*")
_PREFIX = "sha256:"


class BundleError(LdpError):
    """Bytes are no bundle, or not a sound one."""


@dataclass(frozen=True)
class Bundle:
    """A sound bundle.

    Parameters
    ----------
    digest : str
        ``sha256:`` and the SHA-256 of its bytes.
    app : str
        ``publisher/name``.
    version : str
        Of the app.
    files : mapping of str to str
        SHA-256 of each file, by its path.
    """

    digest: str
    app: str
    version: str
    files: Mapping[str, str]


def digest_of(content: bytes) -> str:
    """Return the digest of a bundle for a policy."""
    return _PREFIX + sha256(content).hexdigest()


def read_bundle(content: bytes) -> Bundle:
    """Read a bundle's bytes without unpacking it to disk; BundleError if it is not sound."""
    if len(content) > MOST_PACKED:
        raise BundleError(f"the bundle has more than {MOST_PACKED:,} bytes")
    try:
        with zipfile.ZipFile(BytesIO(content)) as archive:
            files = _files(archive)
            listed = _listed(files.pop(_LIST, None))
            app, version = _named(files.get(_CONFIG))
    except BundleError:
        raise
    except Exception as error:  # the library's errors have many types
        raise BundleError(f"the bundle cannot be read: {error}") from error
    found = {name: sha256(one).hexdigest() for name, one in files.items()}
    if found != listed:
        odd = sorted(name for name in {*found, *listed} if found.get(name) != listed.get(name))
        raise BundleError(f"{quoted(odd[0])} is not as the bundle's own list says")
    return Bundle(digest_of(content), app, version, found)


def bundle_of(path: Path) -> bytes:
    """Return a bundle's bytes: those of a file, or those that Flower builds from an app's folder.

    The same folder gives the same bytes under the same release of Flower, tomli-w and zlib.

    Raises
    ------
    BundleError
        If the path is neither, or Flower refuses the folder.
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


def differences(one: Bundle, other: Bundle) -> dict[str, list[str]]:
    """Return sorted files ``only in the first``, ``only in the second`` and ``differs``."""
    both = one.files.keys() & other.files.keys()
    return {
        "only in the first": sorted(one.files.keys() - both),
        "only in the second": sorted(other.files.keys() - both),
        "differs": sorted(name for name in both if one.files[name] != other.files[name]),
    }


def _files(archive: zipfile.ZipFile) -> dict[str, bytes]:
    """Return the files by their paths; each is inside the folder and stands once."""
    members = archive.infolist()
    if sum(one.file_size for one in members) > MOST_UNPACKED:
        raise BundleError(f"the bundle unpacks to more than {MOST_UNPACKED:,} bytes")
    found: dict[str, bytes] = {}
    seen: set[str] = set()
    for one in members:
        # As it stands in the archive: the library cuts a name at a NUL.
        name = one.orig_filename
        if not _leads_inside(name):
            raise BundleError(f"{quoted(name)} is no plain path within the app's folder")
        kind = stat.S_IFMT(one.external_attr >> 16)
        if kind not in (0, stat.S_IFREG):
            raise BundleError(f"{quoted(name)} is a link or another thing that is no file")
        if name.lower().endswith(_COMPILED):
            raise BundleError(f"{quoted(name)} is compiled: nobody can read what it does")
        # Some disks hold letters that look the same for the same.
        same = unicodedata.normalize("NFKC", name).casefold()
        if same in seen:
            raise BundleError(f"{quoted(name)} stands twice, perhaps in another case")
        seen.add(same)
        if one.compress_type not in _METHODS:
            raise BundleError(f"{quoted(name)} is packed in a way that Flower does not use")
        with archive.open(one) as file:
            # To be read whole, a file would first be unpacked whole, and then cut.
            found[name] = file.read(one.file_size + 1)
    return found


def _leads_inside(name: str) -> bool:
    steps = name.split("/")
    # Neither "C:" nor a backslash, which are steps elsewhere.
    return name.isprintable() and not set(name) & {"\\", ":"} and not set(steps) & {"", ".", ".."}


def _listed(content: bytes | None) -> dict[str, str]:
    if content is None:
        raise BundleError(f"the bundle has no {_LIST}")
    rows = (line.split(",") for line in content.decode().strip().split("\n"))
    return {name: digest for name, digest, _ in rows}


def _named(content: bytes | None) -> tuple[str, str]:
    """Return publisher and name, and version, which become a folder's name."""
    if content is None:
        raise BundleError(f"the bundle has no {_CONFIG}")
    config: dict[str, Any] = tomllib.loads(content.decode())
    names = config["tool"]["flwr"]["app"]["publisher"], config["project"]["name"]
    version = config["project"]["version"]
    for one in (*names, version):
        if not (isinstance(one, str) and _PLAIN.fullmatch(one)):
            raise BundleError(f"{quoted(str(one))} is no name of a publisher, app or version")
    return "/".join(names), version


@dataclass(frozen=True)
class Environment:
    """An interpreter and its installed distributions.

    Parameters
    ----------
    python : str
        Its implementation, release, build and machine.
    installed : tuple of (str, str, str)
        Name, version and SHA-256 of the ``RECORD`` of each distribution, sorted; "" without
        ``RECORD``.
    """

    python: str
    installed: tuple[tuple[str, str, str], ...]

    @property
    def digest(self) -> str:
        """The value for a policy."""
        return digest_of(json.dumps([self.python, self.installed]).encode())


def this_environment(found: Iterable[Distribution] | None = None) -> Environment:
    """Return the environment of this interpreter; ``found`` replaces its distributions."""
    rows = {_row(one) for one in (distributions() if found is None else found)}
    python = (sys.implementation.name, sys.version, platform.machine())
    return Environment(" ".join(python), tuple(sorted(rows)))


def _row(one: Distribution) -> tuple[str, str, str]:
    record = one.read_text("RECORD")
    name = str(one.metadata["Name"]).lower()
    return name, one.version, "" if record is None else sha256(record.encode()).hexdigest()
