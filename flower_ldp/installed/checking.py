"""Whether the files that are installed are those of a release.

What is compared are files, by SHA-256, with the wheel, or with the list that was installed with
them. Not seen are compiled files in ``__pycache__``, what other distributions or ``.pth`` files
bring, and a check that was itself changed.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from importlib.metadata import Distribution
from pathlib import Path

from flower_ldp.errors import ConfigError, quoted
from flower_ldp.installed.files import came_from, normal, rows_of

_COMPILED = "__pycache__"


@dataclass(frozen=True)
class Findings:
    """How installed files differ from those of a release; paths are from ``site-packages``.

    Parameters
    ----------
    compared : int
        Number of files.
    changed, missing : tuple of str
        Files with other content, and files that are not there.
    added : tuple of str
        Files in the release's folders that no release has.
    """

    compared: int
    changed: tuple[str, ...]
    missing: tuple[str, ...]
    added: tuple[str, ...]


def digest_of_file(path: Path) -> str:
    """Return a file's SHA-256, in hexadecimal digits."""
    found = sha256()
    with path.open("rb") as stream:
        while block := stream.read(1 << 20):
            found.update(block)
    return found.hexdigest()


def check_installed(one: Distribution, wheel: Path | None = None) -> Findings:
    """Compare installed files with a wheel, or with the list that was installed with them.

    Parameters
    ----------
    one : Distribution
        As :func:`find_distribution` returns it.
    wheel : Path, optional
        The release.

    Raises
    ------
    ConfigError
        If the installation is an editable one, whose files are of no release; if it has no list;
        if the wheel is none, or is another distribution's or of another version.
    OSError
        If a file cannot be read.
    """
    if came_from(one)[1]:
        raise ConfigError("this is an editable installation: its files are of no release")
    listed = {row.path: row.digest for row in rows_of(one) if row.digest}
    if not listed:
        raise ConfigError("this installation has no list of its files")
    wanted = listed if wheel is None else _released(wheel, f"{_stem(one)}.dist-info")
    root = Path(str(one.locate_file("")))
    changed, missing = list[str](), list[str]()
    for path, digest in sorted(wanted.items()):
        file = root / path
        if not file.exists():
            missing.append(path)
        elif digest_of_file(file) != digest:
            changed.append(path)
    return Findings(len(wanted), tuple(changed), tuple(missing), tuple(_added(root, wanted)))


def _stem(one: Distribution) -> str:
    return f"{normal(one.metadata['Name']).replace('-', '_')}-{one.version}"


def _released(wheel: Path, information: str) -> Mapping[str, str]:
    """Return the SHA-256 of each file of a wheel, by where it is installed."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if not name.endswith("/")]
            own = {name.partition("/")[0] for name in names if name.endswith(".dist-info/RECORD")}
            if own != {information}:
                found = ", ".join(quoted(name) for name in sorted(own)) or "none"
                raise ConfigError(f"{wheel}: is not a wheel of {information}, but of {found}")
            # The installer writes the list anew, and puts what is beneath .data elsewhere.
            return {
                name: sha256(archive.read(name)).hexdigest()
                for name in names
                if name != f"{information}/RECORD" and ".data" not in name.partition("/")[0]
            }
    except zipfile.BadZipFile as error:
        raise ConfigError(f"{wheel}: is no wheel: {error}") from error


def _added(root: Path, wanted: Iterable[str]) -> list[str]:
    """Return what lies in the folders of the wanted files and is none of them."""
    known = set(wanted)
    tops = {path.partition("/")[0] for path in known if "/" in path and not path.startswith("..")}
    found = (
        path.relative_to(root).as_posix()
        for top in tops
        if not top.endswith(".dist-info")
        for path in (root / top).rglob("*")
        if not path.is_dir() and _COMPILED not in path.parts
    )
    return sorted(path for path in found if path not in known)
