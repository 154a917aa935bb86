"""Loading of an extension that the owner allows: read, checked by its digest, and run from memory.

The hashed bytes are kept in memory and are the bytes that run. ``RECORD`` lists the files; its own
hashes are not used. An installation must be one package or module in pure Python beside its
metadata, from a wheel, without links, scripts, ``.pth`` files or unlisted files. It imports the
standard library, numpy, this package, and its own modules relatively: the digest covers nothing
else. Compiled files (``__pycache__``) are neither read nor run.

The modules get private names, so neither a changed or compiled file nor another distribution of
that name runs instead. A loaded extension stays as it is while the process lives.

It runs in this process with all of its rights: the owner trusts the digest, and nothing here
confines the code. The guarded node therefore loads none (:func:`never_load`).
"""

from __future__ import annotations

import ast
import csv
import json
import os
import re
import stat
import sys
from collections.abc import Iterator, Mapping, Sequence
from configparser import ConfigParser
from configparser import Error as ParserError
from dataclasses import dataclass
from email.parser import BytesParser
from hashlib import sha256
from importlib.abc import InspectLoader, MetaPathFinder
from importlib.machinery import ModuleSpec
from itertools import chain
from pathlib import Path
from pkgutil import resolve_name
from threading import Lock
from types import CodeType, ModuleType

from flower_ldp.errors import ConfigError, quoted
from flower_ldp.extensions.contract import GROUP, Extension
from flower_ldp.mechanisms import name_complaint

#: What an installer adds beside the metadata, in words of its own.
_ADDED = frozenset({"INSTALLER", "REQUESTED", "RECORD", "direct_url.json", "uv_cache.json"})
_PATH = re.compile(r"[A-Za-z0-9_.+-]+(/[A-Za-z0-9_.+-]+)*", re.ASCII)
_ENTRY = re.compile(r"([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):([A-Za-z_]\w*)", re.ASCII)
_COMPILED = "__pycache__"
_BINARY = (".so", ".pyd", ".dll", ".dylib", ".pyc", ".pth", ".egg-link")
_MOST_FILES = 500
_MOST_BYTES = 8 * 2**20
_UNREADABLE = (
    *(OSError, ValueError, SyntaxError, csv.Error, ParserError),
    *(RecursionError, MemoryError),  # of sources that nest too deep
)
#: What an extension may import besides itself and the standard library.
MAY_IMPORT = frozenset({"numpy", "flower_ldp"})


@dataclass(frozen=True)
class Distribution:
    """An installed distribution, as it was read.

    Parameters
    ----------
    name, version : str
        By its metadata.
    digest : str
        ``sha256:`` and 64 digits, over the paths and contents of all its files.
    entries : mapping of str to (str, str)
        Module and object of each extension, by its name.
    sources : mapping of str to bytes
        Python's source, by path from ``site-packages``.
    """

    name: str
    version: str
    digest: str
    entries: Mapping[str, tuple[str, str]]
    sources: Mapping[str, bytes]


def normal(name: str) -> str:
    """Return the normal form of a distribution's name, as ``typing-extensions``."""
    return re.sub(r"[-_.]+", "-", name).lower()


def read_distribution(name: str, path: Sequence[str] | None = None) -> Distribution:
    """Read an installed distribution; nothing of it is imported.

    Parameters
    ----------
    name : str
        Of the distribution.
    path : sequence of str, optional
        Folders to search; by default ``sys.path``.

    Raises
    ------
    ConfigError
        If it is missing, is there twice, or breaks the rules above.
    """
    try:
        information = _information(name, sys.path if path is None else path)
        files = _files(information)
        own = information.name
        found, version = _metadata(files, own)
        if normal(found) != normal(name) or not found.isascii():
            raise ConfigError(f"{own}: the metadata are those of {quoted(found)}")
        sources = {one: text for one, text in files.items() if one.endswith(".py")}
        top = _top(files, own)
        _check_imports(sources)
        return Distribution(found, version, _digest(files), _entries(files, own, top), sources)
    except ConfigError:
        raise
    except _UNREADABLE as error:
        raise ConfigError(f"{name}: cannot be read: {error}") from error


def _information(name: str, path: Sequence[str]) -> Path:
    """Return the one folder of metadata under this name."""
    # The first on the path counts, as it does for Python: the others come before it.
    folders = filter(os.path.isdir, (place or os.curdir for place in reversed(path)))
    found = {
        os.path.realpath(one): one
        for one in chain.from_iterable(Path(folder).iterdir() for folder in folders)
        # A wheel's folder has no hyphen but before the version; a link of old has no version.
        if normal(name) in (normal(one.stem.split("-")[0]), normal(one.stem))
        and one.suffix in (".dist-info", ".egg-info", ".egg-link")
    }
    if not found:
        raise ConfigError(f"{name} is not installed here")
    if len(found) > 1:
        raise ConfigError(f"{name} is installed {len(found)} times: {quoted(sorted(found))}")
    (information,) = found.values()
    if information.suffix != ".dist-info" or not information.name.isascii():
        raise ConfigError(f"{information}: is not installed from a wheel")
    return information


def _files(information: Path) -> dict[str, bytes]:
    """Return all files of a distribution but the installer's own, each read once."""
    site, own = information.parent, information.name
    rows = csv.reader(_read(site, f"{own}/RECORD").decode("utf-8").splitlines())
    listed = [row[0] for row in rows if row]
    if len(set(map(str.lower, listed))) != len(listed) or len(listed) > _MOST_FILES:
        raise ConfigError(f"{own}: its list names a file twice, or more than {_MOST_FILES}")
    for one in listed:
        if not _PATH.fullmatch(one) or {".", ".."} & set(one.split("/")):
            raise ConfigError(f"{own}: {quoted(one)} is outside of it, or has no plain name")
    _check_installer(site, own, listed)
    added = {f"{own}/{name}" for name in _ADDED}
    files: dict[str, bytes] = {}
    left = _MOST_BYTES
    for one in sorted(set(listed) - added):
        if _is_compiled(one):
            continue
        if one.endswith(_BINARY):
            raise ConfigError(f"{own}: {quoted(one)} is not Python's source")
        files[one] = _read(site, one, left)
        left -= len(files[one])
    unlisted = sorted(set(_present(site, listed)) - set(listed))
    if unlisted:
        raise ConfigError(f"{own}: its list does not name {quoted(unlisted)}")
    return files


def _check_installer(site: Path, own: str, listed: Sequence[str]) -> None:
    """Refuse an editable installation: its files are elsewhere, and change."""
    note = f"{own}/direct_url.json"
    if note in listed or (site / note).exists():
        told = json.loads(_read(site, note))
        folder = told.get("dir_info", {}) if isinstance(told, dict) else None
        if not isinstance(folder, dict) or folder.get("editable"):
            raise ConfigError(f"{own}: is an editable installation; install the wheel")


def _read(site: Path, path: str, most: int = _MOST_BYTES) -> bytes:
    """Return a regular file's content; no part of its path within the folder is a link."""
    place = site
    for part in path.split("/"):
        place = place / part
        if stat.S_ISLNK(os.lstat(place).st_mode):
            raise ConfigError(f"{quoted(str(place))}: is a link")
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    with os.fdopen(os.open(place, flags | getattr(os, "O_BINARY", 0)), "rb") as stream:
        if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
            raise ConfigError(f"{quoted(str(place))}: is no regular file")
        content = stream.read(most + 1)
    if len(content) > most:
        raise ConfigError(f"{quoted(str(place))}: the files have more than {_MOST_BYTES:,} bytes")
    return content


def _is_compiled(path: str) -> bool:
    return path.split("/")[-2:-1] == [_COMPILED] and path.endswith(".pyc")


def _present(site: Path, listed: Sequence[str]) -> Iterator[str]:
    """Yield what lies in the folders of the listed files, apart from what Python compiled."""
    for top in {one.partition("/")[0] for one in listed if "/" in one}:
        # A link to a folder is not walked into, and is none of the listed files.
        for one in (site / top).rglob("*"):
            path = one.relative_to(site).as_posix()
            counts = one.is_symlink() if one.is_dir() else not _is_compiled(path)
            if counts:
                yield path


def _metadata(files: Mapping[str, bytes], own: str) -> tuple[str, str]:
    told = BytesParser().parsebytes(files.get(f"{own}/METADATA", b""), headersonly=True)
    names, versions = told.get_all("Name", []), told.get_all("Version", [])
    if len(names) != 1 or len(versions) != 1:
        raise ConfigError(f"{own}: its metadata have no name or no version")
    return str(names[0]), str(versions[0])


def _top(files: Mapping[str, bytes], own: str) -> str:
    """Return the name of the one package or module."""
    tops = {one.partition("/")[0] for one in files} - {own}
    if len(tops) != 1:
        raise ConfigError(f"{own}: must have one package or module, has {quoted(sorted(tops))}")
    (found,) = tops
    top = found.removesuffix(".py") if found in files else found
    if not {f"{top}.py", f"{top}/__init__.py"} & files.keys():
        raise ConfigError(f"{own}: {quoted(found)} is no module, and has no __init__.py")
    if not top.isidentifier() or top in MAY_IMPORT or top in sys.stdlib_module_names:
        raise ConfigError(f"{own}: {quoted(top)} is no name of a module, or another's")
    return top


def _check_imports(sources: Mapping[str, bytes]) -> None:
    for path, source in sources.items():
        nodes = list(ast.walk(ast.parse(source, path)))
        plain = [alias.name for one in nodes if isinstance(one, ast.Import) for alias in one.names]
        absolute = (one for one in nodes if isinstance(one, ast.ImportFrom) and not one.level)
        for name in (*plain, *(str(one.module) for one in absolute)):
            first = name.partition(".")[0]
            if first not in MAY_IMPORT and first not in sys.stdlib_module_names:
                allowed = ", ".join(sorted(MAY_IMPORT))
                raise ConfigError(
                    f"{path}: imports {quoted(name)}, which the digest does not cover: only the "
                    f"standard library, {allowed}, and its own modules relatively (from . import)"
                )


def _entries(files: Mapping[str, bytes], own: str, top: str) -> dict[str, tuple[str, str]]:
    # A section of defaults would name extensions here, and none for who lists entry points.
    parser = ConfigParser(delimiters=("=",), interpolation=None, default_section="")
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string(files.get(f"{own}/entry_points.txt", b"").decode("utf-8"))
    found = {}
    for name, value in parser.items(GROUP) if parser.has_section(GROUP) else ():
        parts = _ENTRY.fullmatch(value.strip())
        if parts is None or parts[1].partition(".")[0] != top:
            raise ConfigError(f"{own}: the entry point {quoted(name)} must be {top}...:OBJECT")
        found[name] = (parts[1], parts[2])
    return found


def _digest(files: Mapping[str, bytes]) -> str:
    """Return the digest of all files: of each its path and the hash of what was read."""
    found = sha256(b"flower-ldp extension 1\n")
    for path, content in sorted(files.items()):
        found.update(f"{path} {sha256(content).hexdigest()}\n".encode())
    return f"sha256:{found.hexdigest()}"


_lock = Lock()
_loaded: dict[Allowed, Extension] = {}
_never: list[str] = []


@dataclass(frozen=True)
class Allowed:
    """An extension as an owner allows it.

    Parameters
    ----------
    name : str
        Of the entry point, and of the mechanism.
    distribution, version, digest : str
        Its exact source.
    """

    name: str
    distribution: str
    version: str
    digest: str


def never_load(why: str) -> None:
    """Have this process load no extension any more.

    Parameters
    ----------
    why : str
        A sentence for the log of whoever asks for one.
    """
    _never.append(why)


def load_extension(allowed: Allowed, path: Sequence[str] | None = None) -> Extension:
    """Return an allowed extension; nothing of another is imported.

    Parameters
    ----------
    allowed : Allowed
        The owner's entry.
    path : sequence of str, optional
        Folders to search if it was not loaded before; by default ``sys.path``.

    Raises
    ------
    ConfigError
        If this process loads none, the distribution is another, has no such entry point, or fails
        when it is loaded.
    """
    if _never:
        raise ConfigError(_never[0])
    complaint = name_complaint(allowed.name)
    if complaint is not None:
        raise ConfigError(complaint)
    with _lock:
        if allowed not in _loaded:
            _loaded[allowed] = _load(allowed, path)
        return _loaded[allowed]


def _load(allowed: Allowed, path: Sequence[str] | None) -> Extension:
    found = read_distribution(allowed.distribution, path)
    if found.version != allowed.version:
        told = f"{quoted(found.version)}, and {quoted(allowed.version)} is allowed"
        raise ConfigError(f"{found.name} is installed in version {told}")
    if found.digest != allowed.digest:
        raise ConfigError(f"{found.name} is {found.digest}, and {allowed.digest} is allowed")
    if allowed.name not in found.entries:
        names = quoted(sorted(found.entries))
        raise ConfigError(f"{found.name} has no extension {allowed.name}, only {names}")
    return _run(found, allowed.name)


def _run(found: Distribution, name: str) -> Extension:
    """Run the sources, and return the extension that an entry point names."""
    module, attribute = found.entries[name]
    top = module.partition(".")[0]
    alias = f"_flower_ldp_extension_{os.urandom(8).hex()}"
    sources = Sources(found, top, alias)
    sys.meta_path.insert(0, sources)
    try:
        extension = resolve_name(f"{alias}{module.removeprefix(top)}:{attribute}")
        if type(extension) is not Extension or extension.name != name:
            told = f"{module}:{attribute} of {normal(found.name)}"
            raise ConfigError(f"{told} is not the Extension {name}")
        return extension
    except BaseException as error:  # SystemExit too: it must not end the client
        sys.meta_path.remove(sources)
        for loaded in [one for one in sys.modules if one.partition(".")[0] == alias]:
            del sys.modules[loaded]
        if isinstance(error, (ConfigError, KeyboardInterrupt)):
            raise
        told = f"{found.name} {found.version} cannot be loaded"
        raise ConfigError(f"{told}: {type(error).__name__}") from error


class Sources(MetaPathFinder, InspectLoader):
    """Finds the modules of one distribution in memory, and no others.

    Parameters
    ----------
    found : Distribution
        As it was read.
    top : str
        Its package or module.
    alias : str
        Its name here.
    """

    def __init__(self, found: Distribution, top: str, alias: str) -> None:
        self._sources, self._top, self._alias = found.sources, top, alias

    def _path(self, fullname: str) -> str | None:
        alias, *parts = fullname.split(".")
        base = "/".join([self._top, *parts])
        # A package hides a module of its name, as Python has it.
        found = [one for one in (f"{base}/__init__.py", f"{base}.py") if one in self._sources]
        return found[0] if found and alias == self._alias else None

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return where a module comes from, if it is one of these."""
        source = self._path(fullname)
        if source is None:
            return None
        is_package = source.endswith("/__init__.py")
        return ModuleSpec(fullname, self, origin=f"<{source}>", is_package=is_package)

    def get_source(self, fullname: str) -> str:
        """Return a module's source: tracebacks show it."""
        return self._sources[str(self._path(fullname))].decode("utf-8", errors="replace")

    def get_code(self, fullname: str) -> CodeType:
        """Return a module's code, compiled from the bytes that were hashed."""
        path = str(self._path(fullname))
        return compile(self._sources[path], f"<{path}>", "exec", dont_inherit=True)
