"""Starts commands by bubblewrap, each in a sandbox of its own.

A control group limits memory and processes of all together, since CUDA reserves far more address
space than it uses. Version 2 limits only groups whose parent holds no process, so this node moves
into a group beside the apps'. Its own group must then hold no other process (a systemd unit or
scope with ``Delegate=yes``).
"""

from __future__ import annotations

import contextlib
import errno
import os
import pwd
import re
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from flower_ldp.node.app_executor import in_memory
from flower_ldp.node.sandbox.filesystem_view import PACKAGE, SandboxMissing, Settings, View, view_of
from flower_ldp.node.sandbox.sandbox_init import AT_ONCE, SOCKET, Meter, serve
from flower_ldp.node.sandbox.seccomp import app_filter

#: The first bubblewrap with every option that is used here; Debian 12 has it.
FIRST_VERSION = (0, 8)
#: Account of the apps where there is one of that name; else a number that systemd and the
#: distributions give to nobody.
USER, NUMBER = "flower-app", 61_003
#: Variables of this node that apps see too: no secret is among them.
_PASSED_ON = ("LANG", "LC_ALL", "TZ", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES")
#: What the first program inside needs to become another user, where bubblewrap is run by root.
_BECOME_ANOTHER = ("CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP")
# Joins the groups, each by writing to its file, then becomes the command: a shell has no threads to
# fork with.
_JOIN = 'while [ "$1" != -- ]; do echo 0 >"$1" || exit 125; shift; done; shift; exec "$@"'

_APPS, _NODE = "flower-ldp-apps-", "flower-ldp-node-"
_CONTROLLERS = ("memory", "pids")
_WITHOUT_GROUP = (
    "start this node as a systemd unit with Delegate=yes (or by: systemd-run --scope "
    "-p Delegate=yes ...), or with --sandbox-no-memory-limit"
)


class Account(NamedTuple):
    """The user of the apps; if the node is root, another than the node's for the kernel too."""

    name: str
    uid: int
    gid: int


def account_of(settings: Settings) -> Account:
    """Return the user of the apps; SandboxMissing if the operator's choice cannot be used."""
    if os.geteuid() != 0:
        if settings.user:
            raise SandboxMissing("--sandbox-user: only root can start apps as another user")
        return Account("app", os.geteuid(), os.getegid())
    try:
        found = pwd.getpwnam(settings.user or USER)
    except KeyError:
        if settings.user:
            raise SandboxMissing(f"--sandbox-user: there is no account {settings.user}") from None
        return Account("app", NUMBER, NUMBER)
    if found.pw_uid == 0:
        raise SandboxMissing(f"--sandbox-user: {found.pw_name} is root")
    return Account(found.pw_name, found.pw_uid, found.pw_gid)


class Jail:
    """Starts commands in sandboxes, each with one socket to a port of this machine.

    No sandbox shows a ``hidden`` file. ``port`` is the runtime API's, on 127.0.0.1. Raises
    SandboxMissing if a part is missing on this machine.
    """

    def __init__(
        self, settings: Settings, hidden: Mapping[str, Path], port: int, group: Group
    ) -> None:
        # Sandboxes inherit this limit, and cannot change it.
        most = settings.limits["RLIMIT_CORE"]
        with contextlib.suppress(ValueError, OSError):  # not allowed to raise a limit of 0
            resource.setrlimit(resource.RLIMIT_CORE, (most, most))
        self.account = account_of(settings)
        self.environment = _environment()
        self._group = group
        self._program = find_bubblewrap()
        self._filter = app_filter()
        view = view_of(settings, hidden)
        self._folder = Path(tempfile.mkdtemp(prefix="flower-ldp-sandbox-"))
        files = _small_files(self._folder, self.account) | {SOCKET: self._folder / "node.sock"}
        self._server = _listening(files[SOCKET])
        self._meter = Meter(settings.memory)  # a reply was in an app's memory once
        relayed = (self._server, ("127.0.0.1", port), AT_ONCE, self._meter)
        threading.Thread(target=serve, args=relayed, daemon=True).start()
        as_root, memory = os.geteuid() == 0, settings.memory
        self._arguments = arguments(view, files, self.environment, as_root=as_root, memory=memory)
        _, uid, gid = self.account
        told = map(str, (uid, gid, settings.files, settings.processes, port))
        self._first = [sys.executable, "-m", "flower_ldp.node.sandbox.sandbox_init", *told]

    def start(self, command: list[str], **streams: Any) -> subprocess.Popen[bytes]:
        """Start a command in a sandbox of its own; it ends with this process's main thread.

        It is found by the ``PATH`` of the sandbox, and its input is empty unless ``streams``, those
        of :class:`subprocess.Popen`, have one.
        """
        self._meter.begin()
        streams.setdefault("stdin", subprocess.DEVNULL)
        words = "\0".join(self._arguments).encode()
        with in_memory(words) as given, in_memory(self._filter) as rules:
            descriptors = (given.fileno(), rules.fileno())
            bwrap = [self._program, "--args", str(descriptors[0]), "--seccomp", str(descriptors[1])]
            doors = [str(folder / "cgroup.procs") for folder in self._group.folders]
            joined = ["/bin/sh", "-c", _JOIN, "sh", *doors, "--", *bwrap, "--"]
            whole = [*joined, *self._first, *command]
            return subprocess.Popen(whole, pass_fds=descriptors, **streams)

    def close(self) -> None:
        """End the relay and remove the files; commands keep running."""
        self._server.close()
        shutil.rmtree(self._folder, ignore_errors=True)


def _listening(place: Path) -> socket.socket:
    """Return a socket that listens at a path of any length."""
    server = socket.socket(socket.AF_UNIX)
    descriptor = os.open(place.parent, os.O_PATH)
    try:
        server.bind(f"/proc/self/fd/{descriptor}/{place.name}")
    finally:
        os.close(descriptor)
    # The folder keeps everyone else out; the app's user must be able to connect.
    place.chmod(0o666)
    server.listen(64)
    return server


def _small_files(folder: Path, account: Account) -> dict[str, Path]:
    """Write the files of /etc that programs ask for: no other account, no resolver."""
    texts = {
        "passwd": f"{account.name}:x:{account.uid}:{account.gid}::/tmp:/usr/sbin/nologin\n",
        "group": f"{account.name}:x:{account.gid}:\n",
        "hosts": "127.0.0.1 localhost sandbox\n",
        "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
        (folder / name).chmod(0o644)
    return {f"/etc/{name}": folder / name for name in texts}


def _environment() -> dict[str, str]:
    """Return an app's variables: none of this node's but a few without secrets."""
    own = {
        "PATH": os.pathsep.join((os.path.dirname(sys.executable), "/usr/bin", "/bin")),
        "PYTHONPATH": str(PACKAGE.parent),
        "PYTHONUNBUFFERED": "1",
        "HOME": "/tmp",
        "FLWR_HOME": "/tmp/flower",
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
    }
    passed = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    return {"LANG": "C.UTF-8", **passed, **own}


def arguments(
    view: View, files: Mapping[str, Path], env: Mapping[str, str], *, as_root: bool, memory: int
) -> list[str]:
    """Return bubblewrap's arguments, without the filter's descriptor and the command.

    ``files`` are made for the sandbox, by their path in it. As root, the first program inside
    becomes another user; otherwise the sandbox is a user namespace. ``memory`` bounds each folder
    in memory, in bytes.
    """
    found = ["--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts"]
    found += ["--unshare-cgroup-try", "--hostname", "sandbox", "--cap-drop", "ALL"]
    if as_root:
        for capability in _BECOME_ANOTHER:
            found += ["--cap-add", capability]
    else:
        found += ["--unshare-user", "--disable-userns"]
    # It ends with the executor, and has no terminal of the node's to type into.
    found += ["--die-with-parent", "--new-session", "--clearenv"]
    for name, value in sorted(env.items()):
        found += ["--setenv", name, value]
    found += ["--proc", "/proc", "--dev", "/dev"]
    for place in ("/tmp", "/dev/shm"):
        found += ["--perms", "1777", "--size", str(memory), "--tmpfs", place]
    read_only = {**view.shown, **dict(sorted(files.items()))}
    # The outermost first. Bubblewrap would close those that it makes by itself.
    folders = {str(folder) for place in read_only for folder in Path(place).parents} - {"/"}
    for folder in sorted(folders, key=lambda one: (one.count("/"), one)):
        found += ["--perms", "0755", "--dir", folder]
    for place, link in sorted(view.links.items()):
        found += ["--symlink", link, place]
    for place, source in read_only.items():
        found += ["--ro-bind", str(source), place]
    for device in view.devices:
        found += ["--dev-bind", str(device), str(device)]
    return [*found, "--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/"]


def find_bubblewrap() -> str:
    """Return the path of bubblewrap, ``FIRST_VERSION`` or later, or raise SandboxMissing."""
    path = shutil.which("bwrap")
    needed = ".".join(map(str, FIRST_VERSION))
    if path is None:
        raise SandboxMissing(f"bubblewrap {needed} is not installed: apt install bubblewrap")
    done = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
    found = re.search(r"(\d+)\.(\d+)", done.stdout)
    if found is None or (int(found[1]), int(found[2])) < FIRST_VERSION:
        said = done.stdout.strip() or "of an unknown version"
        raise SandboxMissing(f"{path} is {said}; {needed} is needed")
    return path


@dataclass(frozen=True)
class Group:
    """A control group: one folder for both limits (version 2), or one for each (version 1)."""

    folders: tuple[Path, ...] = ()

    def limits(self) -> dict[str, str]:
        """Return the kernel's limits, by the name of their file."""
        names = ("memory.max", "memory.limit_in_bytes", "pids.max")
        files = [folder / name for folder in self.folders for name in names]
        return {file.name: file.read_text().strip() for file in files if file.exists()}

    def remove(self) -> None:
        """Remove the group, if no process is in it."""
        for folder in self.folders:
            with contextlib.suppress(OSError):
                folder.rmdir()


def make_group(memory: int, processes: int, process: Path = Path("/proc/self")) -> Group:
    """Make a group for so many bytes, and processes with threads, or raise SandboxMissing."""
    own = _own_folders(process)
    try:
        controllers = (own[""] / "cgroup.controllers").read_text() if "" in own else ""
        if set(_CONTROLLERS) <= set(controllers.split()):
            folder = _with_controllers(own[""])
            (folder / "memory.max").write_text(str(memory))
            folders = (folder, folder)
        elif all(name in own for name in _CONTROLLERS):
            folders = (_fresh(own["memory"], _APPS), _fresh(own["pids"], _APPS))
            (folders[0] / "memory.limit_in_bytes").write_text(str(memory))
        else:
            raise SandboxMissing(
                f"no control group here limits memory and processes: {_WITHOUT_GROUP}"
            )
        (folders[1] / "pids.max").write_text(str(processes))
        for name, value in (("swap.max", 0), ("oom.group", 1), ("memsw.limit_in_bytes", memory)):
            file = folders[0] / f"memory.{name}"
            if file.exists():  # in that version, and with swap at all
                file.write_text(str(value))
    except OSError as error:
        raise SandboxMissing(f"no control group can be made ({error}): {_WITHOUT_GROUP}") from error
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


def _with_controllers(own: Path) -> Path:
    """Return a folder beneath one of version 2 that may have limits."""
    controllers = " ".join(f"+{name}" for name in _CONTROLLERS)
    file = own / "cgroup.subtree_control"
    try:
        file.write_text(controllers)
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        if set((own / "cgroup.procs").read_text().split()) - {str(os.getpid())}:
            raise OSError(errno.EBUSY, f"other processes are in {own}") from error
        # Groups beneath it may have limits once this node is in one of them.
        (_fresh(own, _NODE) / "cgroup.procs").write_text("0")
        file.write_text(controllers)
    return _fresh(own, _APPS)


def _fresh(parent: Path, prefix: str) -> Path:
    """Make a folder, and remove those of ended nodes."""
    for old in parent.glob(f"{prefix}[0-9]*"):
        if not Path("/proc", old.name.removeprefix(prefix)).exists():
            with contextlib.suppress(OSError):  # its apps have not ended yet
                old.rmdir()
    folder = parent / f"{prefix}{os.getpid()}"
    folder.mkdir(exist_ok=True)
    return folder
