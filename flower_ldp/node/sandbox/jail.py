"""A sandbox in which commands can be started, one sandbox for each command."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from flower_ldp.node.sandbox.bubblewrap import SOCKET, Plan, arguments, find_bubblewrap
from flower_ldp.node.sandbox.inside import Start
from flower_ldp.node.sandbox.limits import Group, no_dumps
from flower_ldp.node.sandbox.relay import AT_ONCE, Meter, serve, to_port
from flower_ldp.node.sandbox.seccomp import app_filter
from flower_ldp.node.sandbox.settings import SandboxMissing, Settings
from flower_ldp.node.sandbox.view import PACKAGE, view_of

#: Account of the apps where there is one of that name; else a number that systemd and the
#: distributions give to nobody.
USER, NUMBER = "flower-app", 61_003
#: Variables of this node that apps see too: no secret is among them.
_PASSED_ON = ("LANG", "LC_ALL", "TZ", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES")
# Joins the groups, then becomes the command: a shell has no threads to fork with.
_JOIN = 'while [ "$1" != -- ]; do echo 0 >"$1" || exit 125; shift; done; shift; exec "$@"'


@dataclass(frozen=True)
class Account:
    """Who runs the apps.

    Parameters
    ----------
    name : str
        For programs that ask.
    uid, gid : int
        As the app sees them.
    is_another : bool
        Whether that is another user than the node's, for the kernel too.
    """

    name: str
    uid: int
    gid: int
    is_another: bool


def account_of(settings: Settings) -> Account:
    """Return who runs the apps.

    Raises
    ------
    SandboxMissing
        If the operator names an account that cannot be used.
    """
    if os.geteuid() != 0:
        if settings.user:
            raise SandboxMissing("--sandbox-user: only root can start apps as another user")
        return Account("app", os.getuid(), os.getgid(), False)
    try:
        found = pwd.getpwnam(settings.user or USER)
    except KeyError:
        if settings.user:
            raise SandboxMissing(f"--sandbox-user: there is no account {settings.user}") from None
        return Account("app", NUMBER, NUMBER, True)
    if found.pw_uid == 0:
        raise SandboxMissing(f"--sandbox-user: {found.pw_name} is root")
    return Account(found.pw_name, found.pw_uid, found.pw_gid, True)


class Jail:
    """Starts commands in sandboxes, each with one socket to a port of this machine.

    Parameters
    ----------
    settings : Settings
        The operator's.
    hidden : mapping of str to Path
        What must not be in a sandbox, by a name for messages.
    port : int
        Of the node's runtime API, on 127.0.0.1.
    group : Group
        Limits memory and processes.

    Raises
    ------
    SandboxMissing
        If a part is missing on this machine.
    """

    def __init__(
        self, settings: Settings, hidden: Mapping[str, Path], port: int, group: Group
    ) -> None:
        no_dumps()  # sandboxes inherit it, and cannot change it
        self.account = account_of(settings)
        self._settings = settings
        self._group = group
        self._program = find_bubblewrap()
        self._port = port
        self._filter = app_filter()
        view = view_of(settings, hidden)
        self.folder = Path(tempfile.mkdtemp(prefix="flower-ldp-sandbox-"))
        self._server = _listening(self.folder, "node.sock")
        self._meter = Meter(settings.memory)  # a reply was in an app's memory once
        relayed = (self._server, to_port(port), AT_ONCE, self._meter)
        threading.Thread(target=serve, args=relayed, daemon=True).start()
        self.plan = Plan(
            view=view,
            files=_small_files(self.folder, self.account),
            environment=_environment(),
            socket=self.folder / "node.sock",
            as_root=self.account.is_another,
            memory=settings.memory,
        )

    def start(
        self,
        command: list[str],
        *,
        stdin: int = subprocess.DEVNULL,
        stdout: int | None = None,
        stderr: int | None = None,
    ) -> subprocess.Popen[bytes]:
        """Start a command in a sandbox of its own; it ends with this process's main thread.

        Parameters
        ----------
        command : list of str
            Found by the ``PATH`` of the sandbox.
        stdin, stdout, stderr : int, optional
            As of :class:`subprocess.Popen`.
        """
        start = Start(
            uid=self.account.uid if self.account.is_another else -1,
            gid=self.account.gid if self.account.is_another else -1,
            files=self._settings.files,
            processes=self._settings.processes,
            port=self._port,
            socket=SOCKET,
        )
        inner = [sys.executable, "-m", "flower_ldp.node.sandbox.inside", start.to_text(), *command]
        self._meter.begin()
        given = _in_memory("\0".join(arguments(self.plan)).encode())
        rules = _in_memory(self._filter)
        try:
            doors = map(str, self._group.doors)
            bwrap = [self._program, "--args", str(given), "--seccomp", str(rules), "--", *inner]
            return subprocess.Popen(
                ["/bin/sh", "-c", _JOIN, "sh", *doors, "--", *bwrap],
                pass_fds=(given, rules),
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
            )
        finally:
            os.close(given)
            os.close(rules)

    def close(self) -> None:
        """End the relay and remove the files; commands that run keep running."""
        self._server.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def _in_memory(content: bytes) -> int:
    """Return a descriptor of a file that has no name."""
    descriptor = os.memfd_create("flower-ldp")
    os.write(descriptor, content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _listening(folder: Path, name: str) -> socket.socket:
    """Return a socket that listens in a folder, whose path may be longer than one of a socket."""
    server = socket.socket(socket.AF_UNIX)
    descriptor = os.open(folder, os.O_PATH)
    try:
        server.bind(f"/proc/self/fd/{descriptor}/{name}")
    finally:
        os.close(descriptor)
    # The folder keeps everyone else out; the app's user must be able to connect.
    (folder / name).chmod(0o666)
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
    """Return the variables of an app: none of this node's but a few that hold no secret."""
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
