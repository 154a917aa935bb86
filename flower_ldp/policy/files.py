"""Loading a policy: a file that the operator names, outside of any run.

The path is walked folder by folder (:mod:`flower_ldp.safe_files`), links and their targets
included. The file and each folder must belong to root or this user, and nobody else may write to
them. A sticky folder, as ``/tmp``, may be writable by all: nobody can replace another's file there.
Linux's access lists show in the group's bits, which are checked; those of NFSv4 and macOS are not.
On Windows nothing is checked.
"""

import os
import stat
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO

from flower_ldp.errors import ConfigError
from flower_ldp.policy.policy import Policy
from flower_ldp.safe_files import faults, warn_once, way
from flower_ldp.yaml_source import YamlFormat, reading

#: Where the operator names the policy: a key of ``--node-config``, and a variable.
NODE_CONFIG_KEY = "ldp-policy"
ENVIRONMENT_VARIABLE = "FLOWER_LDP_POLICY"
_STARTED = f"{ENVIRONMENT_VARIABLE}, when this process was started,"

#: A policy is a few kilobytes; this keeps a wrong name from filling the memory.
MOST_BYTES = 2**20
# Opening must not wait for the other end of a pipe, nor take a terminal over.
_READ = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_READ |= getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0) | getattr(os, "O_NOFOLLOW", 0)

FORMAT = YamlFormat(Policy)


def load_policy(path: str | Path) -> Policy:
    """Read a policy file for display, whoever could change it.

    Raises
    ------
    ConfigError
        If the file cannot be read, is not YAML, or is no policy. The text gives file, line and
        field of every error.
    """
    path = Path(path)
    return _parsed(_read(path)[0], str(path), path.absolute().parent)


def load_own_policy(path: str | Path) -> tuple[Policy, tuple[str, ...]]:
    """Read a policy file for use here, with doubts about its rights.

    Returns
    -------
    Policy, tuple of str
        In ``mode: simulation``, a sentence for each file or folder that the group may write; else
        nothing.

    Raises
    ------
    ConfigError
        As :func:`load_policy`; also if anyone but root and this user could change the policy, in
        either mode.
    """
    path = Path(path)
    text, found = _read(path)
    by_group = tuple(fault for by, fault in found if by == "group")
    if len(by_group) < len(found):
        raise ConfigError("\n".join(fault for by, fault in found if by != "group"))
    policy = _parsed(text, str(path), path.absolute().parent)
    if by_group and not policy.is_simulation:
        raise ConfigError("\n".join(by_group))
    return policy, by_group


# The file is read, and its rights are judged, for each release, so that a change holds from the
# next one on. Parsing the same text again takes longer than a charge to the ledger.
@lru_cache(maxsize=4)
def _parsed(text: str, source: str, folder: Path) -> Policy:
    return FORMAT.parse(text, source=source, context={"folder": folder})


def find_policy(
    node_config: Mapping[str, object], environ: Mapping[str, str] | None = None
) -> Policy | None:
    """Load the operator's policy, or return None if none is named.

    Parameters
    ----------
    node_config : mapping
        The node's configuration (``context.node_config``), never the run's.
    environ : mapping, optional
        Environment variables; by default the process's, with those it was started with.

    Raises
    ------
    ConfigError
        If two different files are named, a name is empty or no text, the file is no policy, or
        somebody else could change it (:func:`load_own_policy`).
    """
    path = policy_path(node_config, environ)
    if path is None:
        return None
    policy, doubts = load_own_policy(path)
    for doubt in doubts:
        warn_once(doubt)
    return policy


def policy_path(
    node_config: Mapping[str, object], environ: Mapping[str, str] | None = None
) -> Path | None:
    """Return the path of the operator's policy; see :func:`find_policy`."""
    variables = os.environ if environ is None else environ
    sources = ((NODE_CONFIG_KEY, node_config), (ENVIRONMENT_VARIABLE, variables))
    origins: list[tuple[str, object]] = [(key, held[key]) for key, held in sources if key in held]
    if environ is None and _at_start is not None:
        origins.append((_STARTED, _at_start))
    named: dict[str, Path] = {}
    for origin, value in origins:
        if not isinstance(value, str) or not value.strip() or "\0" in value:
            raise ConfigError(f"{origin} must name a policy file, got {value!r}")
        named[origin] = Path(value)
    if len({os.path.realpath(path) for path in named.values()}) > 1:
        both = " and ".join(f"{origin} names {path}" for origin, path in named.items())
        raise ConfigError(f"two policies, and no telling which holds: {both}")
    return next(iter(named.values()), None)


@contextmanager
def no_environment() -> Iterator[None]:
    """Hide the environment's policy meanwhile, for audits."""
    global _at_start
    before, named = _at_start, os.environ.pop(ENVIRONMENT_VARIABLE, None)
    _at_start = None
    try:
        yield
    finally:
        _at_start = before
        if named is not None:
            os.environ[ENVIRONMENT_VARIABLE] = named


def _started_with() -> str | None:
    """Return the variable's value at the start of the process."""
    try:
        given = Path("/proc/self/environ").read_bytes().split(b"\0")
    except OSError:
        given = []
    if not any(b"=" in one for one in given):
        # No Linux, or the process has written its title over it: what it is now, at the import.
        return os.environ.get(ENVIRONMENT_VARIABLE)
    start = os.fsencode(ENVIRONMENT_VARIABLE) + b"="
    return next((os.fsdecode(one[len(start) :]) for one in given if one.startswith(start)), None)


_at_start = _started_with()


def _read(path: Path) -> tuple[str, list[tuple[str, str]]]:
    """Return the text of a policy file, and its :func:`.faults`.

    Raises
    ------
    ConfigError
        If there is no regular file of at most 1 MiB of UTF-8 text, or it changes meanwhile.
    """
    with reading(path):
        if sys.platform == "win32":
            with open(os.open(path, _READ), "rb") as file:
                return _text(path, file), []
        found: list[tuple[str, str]] = []
        with closing(way(path)) as steps:
            for step in steps:
                if stat.S_ISLNK(step.status.st_mode) or stat.S_ISDIR(step.status.st_mode):
                    found += faults(str(step), step.status)
                    continue
                with open(os.open(step.name, _READ, dir_fd=step.folder), "rb") as file:
                    found += faults(f"policy {step.path}", os.fstat(file.fileno()))
                    return _text(path, file), found
        raise ConfigError(f"{path}: cannot be read: Is a directory")


def _text(path: Path, file: BinaryIO) -> str:
    before = os.fstat(file.fileno())
    if not stat.S_ISREG(before.st_mode):
        raise ConfigError(f"{path}: cannot be read: it is no regular file")
    content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise ConfigError(f"{path}: cannot be read: it has more than {MOST_BYTES:,} bytes")
    if _version(os.fstat(file.fileno())) != _version(before):
        # Half of a new text may be a policy too, with a limit less.
        raise ConfigError(f"{path}: cannot be read: it changed meanwhile")
    return content.decode("utf-8")


def _version(status: os.stat_result) -> tuple[int, ...]:
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns
