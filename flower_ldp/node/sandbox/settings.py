"""What the operator chose of the sandbox, and how it is said on the command line."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import partial

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
#: Python and Flower alone take more than this.
_LEAST_MEMORY = 256 << 20


class SandboxMissing(RuntimeError):  # noqa: N818  # a state of the machine
    """A part of the sandbox is missing on this machine, or cannot be as the operator wants."""


@dataclass(frozen=True)
class Settings:
    """The operator's choices.

    Parameters
    ----------
    data : sequence of str
        Folders and files that apps may read.
    device : sequence of str
        Devices that apps may use, usually those of a GPU.
    user : str
        Account of the apps where the node is root; "" for the usual one.
    memory : int
        Bytes that all apps of this node may use together, files in ``/tmp`` included.
    processes : int
        Processes and threads of all apps together.
    files : int
        Open files of a process.
    seconds : int
        For which an app may run; 0 for as long as it likes.
    control_group : bool
        Whether memory and processes are limited by a control group. Without it memory is not
        limited at all.
    """

    data: Sequence[str] = ()
    device: Sequence[str] = ()
    user: str = ""
    memory: int = 8 << 30
    processes: int = 1024
    files: int = 4096
    seconds: int = 0
    control_group: bool = True


def _size(text: str) -> int:
    found = re.fullmatch(r"(\d{1,9})([KMGT]?)", text)
    value = int(found[1]) * _UNITS[found[2]] if found else 0
    if value < _LEAST_MEMORY:
        raise argparse.ArgumentTypeError(f"must be a size as 8G, at least 256M, got {text!r}")
    return value


def _number(text: str, least: int) -> int:
    if not re.fullmatch(r"\d{1,7}", text) or int(text) < least:
        raise argparse.ArgumentTypeError(f"must be a whole number from {least} on, got {text!r}")
    return int(text)


_count = partial(_number, least=64)
_NOBODY = "flower-app, or a number that no account has"
#: Options with a value: name, what stands for the value, how it is read, help.
_VALUES: tuple[tuple[str, str, Callable[[str], object], str], ...] = (
    ("user", "NAME", str, f"Account of the apps where this node is root (default: {_NOBODY})."),
    ("memory", "SIZE", _size, "Memory of all apps together, as 8G (default) or 512M."),
    ("processes", "N", _count, "Processes and threads of all apps (default: %(default)s)."),
    ("files", "N", _count, "Open files of a process (default: %(default)s)."),
    (
        "seconds",
        "S",
        partial(_number, least=1),
        "End an app that has run for so long (default: never).",
    ),
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the sandbox to a parser."""
    add = parser.add_argument_group("sandbox options (Linux)").add_argument
    flag = partial(add, action="store_true")
    flag(
        "--sandbox",
        help="Start every app under bubblewrap: no network, no files of this machine's but the "
        "programs and what --sandbox-data names, one socket to this node.",
    )
    flag(
        "--check",
        help="With --sandbox: try every way out from inside, print a table, and end; not 0 if "
        "one is open.",
    )
    place = partial(add, metavar="PATH", action="append", type=os.path.abspath, default=[])
    place("--sandbox-data", help="A folder or file that apps may read; may be repeated.")
    place("--sandbox-device", help="A device for apps, as /dev/nvidia0; may be repeated.")
    for name, metavar, read, text in _VALUES:
        usual = getattr(Settings, name)
        add(f"--sandbox-{name}", metavar=metavar, type=read, default=usual, help=text)
    add(
        "--sandbox-no-memory-limit",
        action="store_false",
        dest="sandbox_control_group",
        help="Start although this machine gives no control group: an app can then use up all of "
        "its memory, and the kernel may end this node for it.",
    )


def settings_of(options: argparse.Namespace) -> Settings:
    """Return the choices that a command line states."""
    names = [one.name for one in fields(Settings)]
    return Settings(**{name: getattr(options, f"sandbox_{name}") for name in names})
