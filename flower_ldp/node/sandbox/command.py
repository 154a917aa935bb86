"""The node's part of ``--sandbox`` and ``--check``, and the app executor that it starts.

First :mod:`~flower_ldp.node.sandbox.escape_test` runs in a sandbox, and its findings are judged.
Then the executor runs outside, as a process of its own::

    python -m flower_ldp.node.sandbox.command NODE  < orders

It starts each app in a sandbox of its own, so an app finds nothing of the one before and knows only
its own token. The orders hold a secret, and stand on no command line.

An app prints through a pipe: a log opened for it could be read, emptied or filled with lines like
the node's. Each line is marked, and characters that steer a terminal are escaped.
"""

import argparse
import atexit
import contextlib
import ctypes
import json
import logging
import math
import os
import re
import resource
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from subprocess import PIPE, STDOUT, Popen, TimeoutExpired
from typing import IO, NoReturn

from rich.console import Console
from rich.table import Column, Table

from flower_ldp.node.app_executor import AppExecutor, run_executor, use
from flower_ldp.node.log import IN_AN_HOUR, Allowance, plain
from flower_ldp.node.sandbox.bubblewrap import Group, Jail, make_group
from flower_ldp.node.sandbox.escape_test import Attempts, Finding
from flower_ldp.node.sandbox.filesystem_view import SandboxMissing, Settings
from flower_ldp.node.sandbox.sandbox_init import SOCKET
from flower_ldp.node.sandbox.seccomp import call_numbers

_log = logging.getLogger("flower_ldp")

#: Bytes of the secret by which a node knows its executor.
_SECRET = 32
#: Seconds for which the probe may run.
_SECONDS = 120
_NAMESPACES = ("cgroup", "ipc", "mnt", "net", "pid", "uts")
#: Variables that Python and the shell make by themselves.
_OF_PROGRAMS = ("LC_CTYPE", "PWD", "SHLVL", "_")
_PR_SET_PDEATHSIG = 1
#: Seconds in which an app that has answered may hand in its context and end.
STAYS = 10.0
#: Begins each line of an app's.
MARK = b"[app] "
#: Longer lines are cut into several.
LONGEST = 4096
#: Bytes that one app may write: no more, so that it cannot fill the disk with the ledger on it.
LARGEST = 16 << 20
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")

ANOTHER_USER = (
    "Apps run as another user than this node. What is left: a fault of the kernel, the relay or "
    "Flower's runtime API."
)
NO_LIMIT = (
    "Memory is not limited (--sandbox-no-memory-limit): an app can use up this machine's, and the "
    "kernel may end the node for it."
)
SAME_USER = (
    "This node is not root, so apps run as its own user, in a user namespace. What is left: by a "
    "fault of the kernel's namespaces an app gets this user's files, the node's key among them."
)


class SandboxedApps:
    """The apps of one node, in sandboxes; SandboxMissing if options contradict each other."""

    def __init__(self, options: argparse.Namespace, arguments: argparse.Namespace) -> None:
        self._settings = Settings.of(options)
        self._port = int(arguments.port)
        self._secret = os.urandom(_SECRET)
        _check_arguments(options, arguments)

    def flower_options(self) -> list[str]:
        """Return Flower's options for this executor and its secret."""
        descriptor = os.memfd_create("superexec-secret")  # this process alone can open it
        os.write(descriptor, self._secret)
        file = f"/proc/self/fd/{descriptor}"
        return ["--isolation", "process", "--superexec-auth-secret-file", file]

    def check(self, hidden: Mapping[str, Path]) -> bool:
        """Print what is open; return whether nothing is."""
        group = self._make_group()
        try:
            findings = run_check(self._settings, hidden, group, every_file=True)
        finally:
            group.remove()
        columns = [Column(heading, overflow="fold") for heading in ("way", "", "seen")]
        table = Table(*columns, title="Ways out of the sandbox, tried from inside")
        for one in findings:
            table.add_row(one.way, "[red]OPEN[/red]" if one.is_open else "closed", one.seen)
        Console().print(table)
        print("The node's runtime API answers, through the one socket that there is.")
        if not self._settings.control_group:
            print(NO_LIMIT)
        print(ANOTHER_USER if os.geteuid() == 0 else SAME_USER)
        return not any(one.is_open for one in findings)

    def start(self, hidden: Mapping[str, Path], ended: Callable[[str], NoReturn]) -> None:
        """Check the sandbox, then start the executor; ``ended`` is called when that ends.

        It ends with the calling thread. Raises SandboxMissing if a part is missing or a way out is
        open.
        """
        group = self._make_group()
        atexit.register(group.remove)
        found = run_check(self._settings, hidden, group, every_file=False)
        ways = "; ".join(f"{one.way} ({one.seen})" for one in found if one.is_open)
        if ways:
            raise SandboxMissing(f"the sandbox has ways out: {ways}")
        if os.geteuid() != 0:
            _log.warning(SAME_USER)
        process = Popen([sys.executable, "-m", __name__, str(os.getpid())], stdin=PIPE)
        orders = (asdict(self._settings), dict(hidden), self._port, self._secret.hex())
        with contextlib.suppress(BrokenPipeError), process.stdin as pipe:  # type: ignore[union-attr]
            pipe.write(json.dumps((*orders, group.folders), default=str).encode())
        atexit.register(process.terminate)

        def watch() -> None:
            process.wait()
            ended(f"the app executor ended, with {process.returncode}")

        threading.Thread(target=watch, daemon=True).start()

    def _make_group(self) -> Group:
        if not self._settings.control_group:
            return Group()
        return make_group(self._settings.memory, self._settings.processes)


def _check_arguments(options: argparse.Namespace, arguments: argparse.Namespace) -> None:
    if options.ldp_gate == "reports":
        raise SandboxMissing(
            "--ldp-gate reports lets the app write to the ledger, which --sandbox hides: leave "
            "the gate at privatize, or run the app as docs/deployment.md says"
        )
    if arguments.superexec_auth_secret_file is not None:
        raise SandboxMissing("--sandbox makes its own secret: leave --superexec-auth-secret-file")
    if arguments.host not in ("127.0.0.1", "localhost"):
        raise SandboxMissing("--sandbox needs no other host than 127.0.0.1: leave --host")
    if arguments.port < 1024:
        raise SandboxMissing("--port: apps cannot be given a port below 1024")
    if arguments.ssl_certfile or arguments.ssl_keyfile or arguments.ssl_ca_certfile:
        raise SandboxMissing("with --sandbox apps reach the node by a socket: leave --ssl-*")


def run_check(
    settings: Settings, hidden: Mapping[str, Path], group: Group, *, every_file: bool
) -> list[Finding]:
    """Try every way out of a sandbox; looking at ``every_file`` takes seconds.

    Raises SandboxMissing if a part is missing on this machine, or no command can be started inside.
    """
    with (
        socket.create_server(("127.0.0.1", 0)) as node,
        socket.create_server(("", 0)) as listening,
        socket.socket(socket.AF_UNIX) as abstract,
        tempfile.NamedTemporaryFile(prefix="flower-ldp-outside-") as file,
        contextlib.closing(Jail(settings, hidden, node.getsockname()[1], group)) as jail,
    ):
        # What the probe is to look for: a node, a file, and sockets that anyone could reach.
        threading.Thread(target=_answer, args=(node,), daemon=True).start()
        os.chmod(file.name, 0o666)
        abstract.bind(f"\0{os.path.basename(file.name)}")
        abstract.listen()
        attempts = Attempts(
            port=node.getsockname()[1],
            addresses=[[host, listening.getsockname()[1]] for host in _own_addresses()],
            abstract=os.path.basename(file.name),
            hidden={name: str(path) for name, path in hidden.items()}
            | {"a file in /tmp outside": file.name, "accounts": "/etc/shadow"},
            namespaces={name: os.readlink(f"/proc/self/ns/{name}") for name in _NAMESPACES},
            environment=[*jail.environment, *_OF_PROGRAMS],
            devices=list(settings.device),
            limits=settings.limits,
            calls=call_numbers(),
            socket=SOCKET if every_file else "",
        )
        limited = _group(settings, group) if settings.control_group else ()
        return [*_probe(jail, attempts), *limited]


def _probe(jail: Jail, attempts: Attempts) -> list[Finding]:
    command = [sys.executable, "-m", "flower_ldp.node.sandbox.escape_test"]
    process = jail.start(command, stdin=PIPE, stdout=PIPE, stderr=PIPE)
    try:
        output, errors = process.communicate(json.dumps(asdict(attempts)).encode(), _SECONDS)
    except TimeoutExpired:
        process.kill()
        raise SandboxMissing("the check of the sandbox did not end") from None
    if process.returncode != 0:
        said = errors.decode(errors="replace").strip().splitlines() or ["nothing"]
        who = f"user {jail.account.uid}" if os.geteuid() == 0 else "a user namespace"
        raise SandboxMissing(f"nothing can be started in the sandbox, as {who}: {said[-1]}")
    found = json.loads(output)
    if not found["answers"]:
        raise SandboxMissing("the node cannot be reached from the sandbox, through its one socket")
    return [Finding(**one) for one in found["findings"]]


def _group(settings: Settings, group: Group) -> Iterator[Finding]:
    """Judge the control group, visible only from outside."""
    limits = group.limits()
    memory = limits.get("memory.max", limits.get("memory.limit_in_bytes", "max"))
    page = resource.getpagesize()
    limited = memory.isdigit() and int(memory) // page <= settings.memory // page
    yield Finding("memory without a limit", not limited, f"{memory} bytes")
    processes = limits.get("pids.max", "max")
    open_end = not processes.isdigit() or int(processes) > settings.processes
    yield Finding("processes without a limit", open_end, f"{processes} processes")


def _answer(server: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one, _ = server.accept()
        with one:
            one.sendall(b"node")


def _own_addresses() -> list[str]:
    """Return loopback, and the address by which this machine reaches others."""
    found = ["127.0.0.1"]
    with contextlib.suppress(OSError), socket.socket(type=socket.SOCK_DGRAM) as one:
        one.connect(("192.0.2.1", 9))  # sends nothing
        found.append(one.getsockname()[0])
    return found


def main() -> None:
    """Start the apps of a node, for ever, by the orders on the standard input."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != int(sys.argv[1]):  # the node ended meanwhile
        return
    settings, hidden, port, secret, folders = json.load(sys.stdin)
    settings = Settings(**settings)
    hidden = {name: Path(path) for name, path in hidden.items()}
    try:
        jail = Jail(settings, hidden, port, Group(tuple(map(Path, folders))))
    except SandboxMissing as error:
        sys.exit(f"no app is started: {error}")
    log, allowance = sys.stderr.buffer, Allowance(IN_AN_HOUR)

    def start(command: list[str], token: int) -> Popen[bytes]:
        process = jail.start(command, stdin=token, stdout=PIPE, stderr=STDOUT)
        if process.stdout is not None:
            copy_output(process.stdout, log, allowance)
        return process

    use(AppExecutor(start, jail.close, STAYS, settings.seconds or math.inf))
    run_executor(f"127.0.0.1:{port}", bytes.fromhex(secret))


def harmless(line: bytes) -> bytes:
    """Return a line for the log: marked, without colours and control characters."""
    text = line.rstrip(b"\r\n").decode(errors="backslashreplace")
    return MARK + plain(_COLOURS.sub("", text)).encode() + b"\n"


def copy_output(
    source: IO[bytes], target: IO[bytes], of_all: Allowance, largest: int = LARGEST
) -> threading.Thread:
    """Copy an app's output to a log until it ends, in a thread, which is returned.

    Beyond ``largest`` bytes, or the allowance of all apps, it is read and dropped, so the app does
    not wait.
    """

    def copy() -> None:
        left = largest
        with source:
            while line := source.readline(LONGEST):
                if left > 0:
                    left = left - len(line) if of_all.take(len(line)) else 0
                    target.write(harmless(line))
                    if left <= 0:
                        target.write(harmless(b"(what it writes from here on is dropped)"))
                    target.flush()

    thread = threading.Thread(target=copy, name="flower-ldp-app-output", daemon=True)
    thread.start()
    return thread


if __name__ == "__main__":
    main()
