"""Loading an extension that the owner has allowed, from the very bytes that were hashed.

Nothing is imported by its name: the modules get names of their own, which no other module can have
taken, and their source comes from memory. So neither a file that changes after it was hashed, nor
a compiled file, nor another distribution of that name is run in the place of what was allowed. What
is loaded once stays what it is as long as the process lives.

It runs in this process and with all of its rights. The digest is what the owner's trust rests on:
nothing here confines the code. So the guarded node, which is beyond the reach of apps, loads none
(:func:`never_load`).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.abc import InspectLoader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pkgutil import resolve_name
from threading import Lock
from types import CodeType, ModuleType

from flower_ldp.errors import ConfigError, quoted
from flower_ldp.extensions.contract import Extension
from flower_ldp.extensions.files import Distribution, normal, read_distribution
from flower_ldp.mechanisms import name_complaint

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
        What it must be read from, exactly.
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
    """Return an extension that is allowed; nothing of another is imported.

    Parameters
    ----------
    allowed : Allowed
        The owner's word.
    path : sequence of str, optional
        Folders to look in, where it was not loaded before; by default ``sys.path``.

    Raises
    ------
    ConfigError
        If this process loads none, the distribution is not what is allowed, has no such entry
        point, or fails when it is loaded.
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
        What that is called here.
    """

    def __init__(self, found: Distribution, top: str, alias: str) -> None:
        self._files: dict[str, tuple[str, bytes]] = {}
        self._packages: set[str] = set()
        for path, source in found.sources.items():
            parts = path.removesuffix(".py").split("/")
            is_package = parts[-1] == "__init__"
            name = ".".join([alias, *(parts[1:-1] if is_package else parts[1:])])
            if is_package:
                self._packages.add(name)
            # A package hides a module of its name, as Python has it.
            if is_package or name not in self._files:
                self._files[name] = (path, source)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return where a module comes from, if it is one of these."""
        if fullname not in self._files:
            return None
        is_package = fullname in self._packages
        origin = f"<{self._files[fullname][0]}>"
        return ModuleSpec(fullname, self, origin=origin, is_package=is_package)

    def get_source(self, fullname: str) -> str:
        """Return a module's source: tracebacks show it."""
        return self._files[fullname][1].decode("utf-8", errors="replace")

    def get_code(self, fullname: str) -> CodeType:
        """Return a module's code, compiled from the bytes that were hashed."""
        path, source = self._files[fullname]
        return compile(source, f"<{path}>", "exec", dont_inherit=True)
