"""Memory and processes of all apps together, limited by a control group.

A limit on a process's address space would not do: CUDA reserves far more than it uses. Both
versions of the kernel's interface are known. Version 2 gives limits only to groups in a group that
holds no process itself, so this node moves into a group of its own beside the apps'; that is
allowed where the group is this node's alone (a systemd unit or scope with ``Delegate=yes``).
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
from dataclasses import dataclass
from pathlib import Path

from flower_ldp.node.sandbox.settings import SandboxMissing

_APPS, _NODE = "flower-ldp-apps-", "flower-ldp-node-"
_CONTROLLERS = ("memory", "pids")
_WITHOUT = (
    "start this node as a systemd unit with Delegate=yes (or by: systemd-run --scope "
    "-p Delegate=yes ...), or with --sandbox-no-memory-limit"
)


@dataclass(frozen=True)
class Group:
    """A control group for apps.

    Parameters
    ----------
    folders : tuple of Path
        One for both limits (version 2), or one for each (version 1).
    """

    folders: tuple[Path, ...] = ()

    @property
    def doors(self) -> tuple[Path, ...]:
        """Files to which a process writes 0 to be in the group."""
        return tuple(folder / "cgroup.procs" for folder in self.folders)

    def limits(self) -> dict[str, str]:
        """Return what the kernel says the limits are, by the name of its file."""
        names = ("memory.max", "memory.limit_in_bytes", "pids.max")
        files = [folder / name for folder in self.folders for name in names]
        return {file.name: file.read_text().strip() for file in files if file.exists()}

    def remove(self) -> None:
        """Remove the group, if no process is in it."""
        for folder in self.folders:
            with contextlib.suppress(OSError):
                folder.rmdir()


#: Bytes of a core dump. With one the kernel makes none and starts no program for it; with none it
#: still starts a program, outside of the sandbox and as root, if the machine has one for dumps.
LARGEST_DUMP = 1


def no_dumps() -> None:
    """Have this process, and all that it starts, leave no core dump when it crashes."""
    with contextlib.suppress(ValueError, OSError):  # not allowed to raise a limit of 0
        resource.setrlimit(resource.RLIMIT_CORE, (LARGEST_DUMP, LARGEST_DUMP))


def make_group(memory: int, processes: int, process: Path = Path("/proc/self")) -> Group:
    """Make a group under this node's own, with limits.

    Parameters
    ----------
    memory : int
        Bytes.
    processes : int
        Processes and threads.
    process : Path
        Where the kernel describes this process.

    Raises
    ------
    SandboxMissing
        If this machine gives no such group.
    """
    own = _own_folders(process)
    try:
        if "" in own and _has_both(own[""]):
            folder = _with_controllers(own[""])
            (folder / "memory.max").write_text(str(memory))
            folders = (folder, folder)
        elif all(name in own for name in _CONTROLLERS):
            folders = (_fresh(own["memory"], _APPS), _fresh(own["pids"], _APPS))
            (folders[0] / "memory.limit_in_bytes").write_text(str(memory))
        else:
            raise SandboxMissing(f"no control group here limits memory and processes: {_WITHOUT}")
        (folders[1] / "pids.max").write_text(str(processes))
        for name, value in (("swap.max", 0), ("oom.group", 1), ("memsw.limit_in_bytes", memory)):
            file = folders[0] / f"memory.{name}"
            if file.exists():  # in that version, and with swap at all
                file.write_text(str(value))
    except OSError as error:
        raise SandboxMissing(f"no control group can be made ({error}): {_WITHOUT}") from error
    return Group(tuple(dict.fromkeys(folders)))


def _own_folders(process: Path) -> dict[str, Path]:
    """Return this process's group by controller; "" is that of version 2."""
    mounts: dict[str, tuple[str, Path]] = {}
    for line in (process / "mountinfo").read_text(encoding="utf-8").splitlines():
        place, _, kind = line.partition(" - ")
        root, where = place.split()[3:5]
        fields = kind.split()
        if fields[0] == "cgroup2":
            mounts[""] = (root, Path(where))
        elif fields[0] == "cgroup":
            mounts.update({name: (root, Path(where)) for name in fields[2].split(",")})
    found = {}
    for line in (process / "cgroup").read_text(encoding="utf-8").splitlines():
        _, names, path = line.split(":", 2)
        for name in names.split(","):
            if name in mounts:
                top, mounted = mounts[name]
                found[name] = mounted / os.path.relpath(path, top)
    return {name: folder for name, folder in found.items() if folder.is_dir()}


def _has_both(folder: Path) -> bool:
    return set(_CONTROLLERS) <= set((folder / "cgroup.controllers").read_text().split())


def _with_controllers(own: Path) -> Path:
    """Return a folder beneath one of version 2 that may have limits."""
    controllers = " ".join(f"+{name}" for name in _CONTROLLERS)
    try:
        (own / "cgroup.subtree_control").write_text(controllers)
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        _step_aside(own)
        (own / "cgroup.subtree_control").write_text(controllers)
    return _fresh(own, _APPS)


def _step_aside(own: Path) -> None:
    """Move this node out of a group that is to have groups with limits beneath it."""
    others = set((own / "cgroup.procs").read_text().split()) - {str(os.getpid())}
    if others:
        raise OSError(errno.EBUSY, f"other processes are in {own}")
    (_fresh(own, _NODE) / "cgroup.procs").write_text("0")


def _fresh(parent: Path, prefix: str) -> Path:
    """Make a folder, and remove those that ended nodes have left, not those of others that run."""
    for old in parent.glob(f"{prefix}[0-9]*"):
        if not Path("/proc", old.name.removeprefix(prefix)).exists():
            with contextlib.suppress(OSError):  # its apps have not ended yet
                old.rmdir()
    folder = parent / f"{prefix}{os.getpid()}"
    folder.mkdir(exist_ok=True)
    return folder
