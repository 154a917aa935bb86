"""The operator's settings, and the part of this machine's files that an app sees.

The sandbox begins with an empty root. Shown read-only are programs and libraries (``/usr``, the
Python installation, this package), a few files of ``/etc`` that name libraries, and what the
operator names. Everything else, such as ``/home``, ``/run`` and ``/var``, is not there.
"""

from __future__ import annotations

import argparse
import os
import re
import stat
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

PACKAGE = Path(__file__).parents[2]
#: Programs and libraries; some are links into /usr.
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
#: How libraries are found, and the local time.
_ETC = ("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives", "localtime")
#: Bytes of a core dump. With one the kernel makes none and starts no program for it; with none it
#: still starts a program, outside of the sandbox and as root, if the machine has one for dumps.
LARGEST_DUMP = 1
#: What the sandbox makes itself: nothing may be put over these.
OWN = ("/", "/dev", "/proc", "/sys", "/tmp", "/run", "/etc")
_NEVER_UNDER = ("/dev", "/proc", "/sys")
_NO_FILE = (-1, -1)
_OCTAL = re.compile(r"\\([0-7]{3})")


class SandboxMissing(RuntimeError):  # noqa: N818  # a state of the machine
    """A part of the sandbox is missing here, or cannot be as the operator wants."""


@dataclass(frozen=True)
class Settings:
    """The operator's options ``--sandbox-*``.

    Memory is in bytes and, as processes with their threads, for all apps together, files in
    ``/tmp`` included. ``files`` are open files of a process. ``seconds`` may be 0 for no limit.
    Without ``control_group`` memory is not limited at all.
    """

    data: Sequence[str] = ()
    device: Sequence[str] = ()
    user: str = ""
    memory: int = 8 << 30
    processes: int = 1024
    files: int = 4096
    seconds: int = 0
    control_group: bool = True

    @property
    def limits(self) -> dict[str, int]:
        """Return each process's limits, by their name in the standard library."""
        limits = {"RLIMIT_NOFILE": self.files, "RLIMIT_NPROC": self.processes}
        return {"RLIMIT_CORE": LARGEST_DUMP, **limits}

    @classmethod
    def of(cls, options: argparse.Namespace) -> Settings:
        """Return a command line's choices."""
        return cls(**{one.name: getattr(options, f"sandbox_{one.name}") for one in fields(cls)})


@dataclass(frozen=True)
class View:
    """The files and devices that an app sees.

    ``shown`` maps a path in the sandbox to this machine's, read-only; ``links`` are those of the
    root folder.
    """

    shown: Mapping[str, Path]
    links: Mapping[str, str]
    devices: tuple[Path, ...]


def view_of(settings: Settings, hidden: Mapping[str, Path]) -> View:
    """Return the view of an app, with no ``hidden`` file in it.

    Raises SandboxMissing if something to be shown is missing, of the wrong kind, or holds a hidden
    file.
    """
    links = {path: os.readlink(path) for path in _SYSTEM if os.path.islink(path)}
    shown = {path: Path(path) for path in _SYSTEM if path not in links and os.path.isdir(path)}
    shown |= {f"/etc/{name}": Path("/etc", name) for name in _ETC if Path("/etc", name).exists()}
    shown |= {str(path): path.resolve() for path in _python()}
    if settings.device:
        shown |= {str(path): path for path in _of_devices()}
    for place in settings.data:
        shown[place] = _data(Path(place), hidden)
    for name, secret in hidden.items():
        _check_hidden(name, secret, shown)
    return View(_outermost(shown), links, tuple(_device(Path(one)) for one in settings.device))


def _python() -> list[Path]:
    folders = {Path(one) for one in (sys.prefix, sys.base_prefix, sys.exec_prefix)}
    if any(folder.parent == folder for folder in folders):
        raise SandboxMissing(f"Python is installed in {sorted(map(str, folders))}: not a folder")
    return [*sorted(folders), PACKAGE]


def _of_devices() -> list[Path]:
    """Return folders on processors and PCI devices, which drivers' libraries read."""
    folders = [Path("/sys/bus/pci"), Path("/sys/devices/system")]
    return [one for one in (*folders, *Path("/sys/devices").glob("pci*")) if one.is_dir()]


def _outermost(shown: Mapping[str, Path]) -> dict[str, Path]:
    """Leave out what another entry shows at the same place; order by depth."""
    kept: dict[str, Path] = {}
    for place in sorted(shown, key=lambda one: (len(Path(one).parts), one)):
        if not any(
            Path(place).is_relative_to(above)
            and source / Path(place).relative_to(above) == shown[place]
            for above, source in kept.items()
        ):
            kept[place] = shown[place]
    return kept


def _data(path: Path, hidden: Mapping[str, Path]) -> Path:
    """Return the real path of data that holds nothing hidden."""
    if str(path) in OWN or any(path.is_relative_to(one) for one in _NEVER_UNDER):
        raise SandboxMissing(f"--sandbox-data {path}: this place is the sandbox's own")
    try:
        found = path.resolve(strict=True)
    except OSError as error:
        raise SandboxMissing(f"--sandbox-data {path}: {error}") from error
    if not (found.is_dir() or found.is_file()):
        raise SandboxMissing(f"--sandbox-data {path}: neither a folder nor a file")
    # What is hidden may have other names: links and mounts.
    by_file = {_file(secret): name for name, secret in hidden.items()}
    by_file.pop(_NO_FILE, None)
    inodes = {inode for _, inode in by_file}
    mounted = (place for place in mount_points() if Path(place).is_relative_to(found))
    suspects = [str(found), *mounted]
    for entry in entries(found):
        if speaks(entry):
            raise SandboxMissing(
                f"--sandbox-data {path}: {entry.path} is a socket, a pipe or a device, so "
                "something could be sent through it"
            )
        if entry.inode() in inodes:
            suspects.append(entry.path)
    for suspect in suspects:
        name = by_file.get(_file(suspect))
        if name is not None:
            raise SandboxMissing(f"--sandbox-data {path}: apps would see {name}, as {suspect}")
    return found


def _file(path: str | Path) -> tuple[int, int]:
    try:
        found = os.stat(path)
    except OSError:
        return _NO_FILE
    return (found.st_dev, found.st_ino)


def mount_points() -> list[str]:
    """Return the mount points of this process."""
    with open("/proc/self/mountinfo", encoding="utf-8") as file:
        # The kernel writes spaces and the like as octal numbers.
        return [_OCTAL.sub(lambda one: chr(int(one[1], 8)), line.split()[4]) for line in file]


def _device(path: Path) -> Path:
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise SandboxMissing(f"--sandbox-device {path}: {error}") from error
    if not stat.S_ISCHR(mode) or not path.is_relative_to("/dev"):
        raise SandboxMissing(f"--sandbox-device {path}: no character device in /dev")
    return path


def _check_hidden(name: str, secret: Path, shown: Mapping[str, Path]) -> None:
    real = Path(os.path.realpath(secret))
    for place, source in shown.items():
        if real.is_relative_to(source) or source.is_relative_to(real):
            raise SandboxMissing(
                f"apps would see {name} ({secret}), because they see {place}: keep it elsewhere"
            )


def speaks(entry: os.DirEntry[str]) -> bool:
    """Return whether something could be sent through this, though it is mounted read-only."""
    plain = entry.is_dir(follow_symlinks=False) or entry.is_file(follow_symlinks=False)
    return not plain and not entry.is_symlink()


def entries(top: str | Path, but: Collection[str] = ()) -> Iterator[os.DirEntry[str]]:
    """Yield all that is beneath a folder, without descending into ``but``."""
    waiting = [str(top)]
    while waiting:
        try:
            here = list(os.scandir(waiting.pop()))
        except OSError:  # what this user cannot read it cannot vouch for, nor show
            continue
        for entry in here:
            if entry.is_dir(follow_symlinks=False) and entry.path not in but:
                waiting.append(entry.path)
            yield entry
