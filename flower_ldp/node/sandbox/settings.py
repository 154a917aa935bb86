"""What the operator chose of the sandbox, and how it is said on the command line."""

from __future__ import annotations

import argparse
import os
import re
from dataclasses import dataclass

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
    data : tuple of str
        Folders and files that apps may read.
    devices : tuple of str
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

    data: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    user: str = ""
    memory: int = 8 << 30
    processes: int = 1024
    files: int = 4096
    seconds: int = 0
    control_group: bool = True


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the sandbox to a parser."""
    usual = Settings()
    group = parser.add_argument_group("sandbox options (Linux)")
    group.add_argument(
        "--sandbox",
        action="store_true",
        help="Start every app under bubblewrap: no network, no files of this machine's but the "
        "programs and what --sandbox-data names, one socket to this node.",
    )
    group.add_argument(
        "--check",
        action="store_true",
        help="With --sandbox: try every way out from inside, print a table, and end; not 0 if "
        "one is open.",
    )
    group.add_argument(
        "--sandbox-data",
        metavar="PATH",
        action="append",
        type=_absolute,
        default=[],
        help="A folder or file that apps may read; may be given more than once.",
    )
    group.add_argument(
        "--sandbox-device",
        metavar="PATH",
        action="append",
        type=_absolute,
        default=[],
        help="A device that apps may use, such as /dev/nvidia0; may be given more than once.",
    )
    group.add_argument(
        "--sandbox-user",
        metavar="NAME",
        default="",
        help="Account of the apps where this node is root (default: flower-app, or a number "
        "that no account has).",
    )
    group.add_argument(
        "--sandbox-memory",
        metavar="SIZE",
        type=_size,
        default=usual.memory,
        help="Memory of all apps together, as 8G (default) or 512M.",
    )
    group.add_argument(
        "--sandbox-processes",
        metavar="N",
        type=_count,
        default=usual.processes,
        help=f"Processes and threads of all apps together (default: {usual.processes}).",
    )
    group.add_argument(
        "--sandbox-files",
        metavar="N",
        type=_count,
        default=usual.files,
        help=f"Open files of a process (default: {usual.files}).",
    )
    group.add_argument(
        "--sandbox-seconds",
        metavar="S",
        type=_time,
        default=usual.seconds,
        help="End an app that has run for so long (default: never).",
    )
    group.add_argument(
        "--sandbox-no-memory-limit",
        action="store_true",
        help="Start although this machine gives no control group: an app can then use up all of "
        "its memory, and the kernel may end this node for it.",
    )


def settings_of(options: argparse.Namespace) -> Settings:
    """Return the choices that a command line states."""
    return Settings(
        data=tuple(options.sandbox_data),
        devices=tuple(options.sandbox_device),
        user=options.sandbox_user,
        memory=options.sandbox_memory,
        processes=options.sandbox_processes,
        files=options.sandbox_files,
        seconds=options.sandbox_seconds,
        control_group=not options.sandbox_no_memory_limit,
    )


def _absolute(text: str) -> str:
    return os.path.abspath(text)


def _size(text: str) -> int:
    found = re.fullmatch(r"(\d{1,9})([KMGT]?)", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"must be a size as 8G or 512M, got {text!r}")
    value = int(found[1]) * _UNITS[found[2]]
    if value < _LEAST_MEMORY:
        raise argparse.ArgumentTypeError(f"must be at least 256M, got {text}")
    return value


def _time(text: str) -> int:
    if not re.fullmatch(r"[1-9]\d{0,6}", text):
        raise argparse.ArgumentTypeError(f"must be a whole number of seconds, got {text!r}")
    return int(text)


def _count(text: str) -> int:
    if not re.fullmatch(r"\d{1,7}", text) or int(text) < 64:
        raise argparse.ArgumentTypeError(f"must be a number from 64 on, got {text!r}")
    return int(text)
