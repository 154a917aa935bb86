"""Tries the sandbox before an app does: runs the probe in it, and prints what it found."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from subprocess import PIPE, TimeoutExpired

from rich.console import Console
from rich.table import Table

from flower_ldp.node.sandbox.inside import SOCKET
from flower_ldp.node.sandbox.jail import Jail
from flower_ldp.node.sandbox.limits import LARGEST_DUMP, Group
from flower_ldp.node.sandbox.probe import Attempts, Finding
from flower_ldp.node.sandbox.seccomp import call_numbers
from flower_ldp.node.sandbox.settings import SandboxMissing, Settings

_SECONDS = 120
_NAMESPACES = ("cgroup", "ipc", "mnt", "net", "pid", "uts")
#: Variables that Python and the shell make by themselves.
_OF_PROGRAMS = ("LC_CTYPE", "PWD", "SHLVL", "_")


def run_check(
    settings: Settings, hidden: Mapping[str, Path], group: Group, *, every_file: bool
) -> list[Finding]:
    """Try every way out of a sandbox; return what was found.

    Parameters
    ----------
    settings : Settings
        The operator's.
    hidden : mapping of str to Path
        What must not be in it.
    group : Group
        Limits memory and processes.
    every_file : bool
        Whether to look at every file in it, which takes seconds.

    Raises
    ------
    SandboxMissing
        If a part is missing on this machine, or no command can be started in the sandbox.
    """
    with _outside() as (node, place, listening):
        jail = Jail(settings, hidden, node, group)
        try:
            attempts = Attempts(
                port=node,
                addresses=[[host, listening] for host in _own_addresses()],
                abstract=place.name,
                hidden={name: str(path) for name, path in hidden.items()}
                | {"a file in /tmp outside": str(place), "accounts": "/etc/shadow"},
                namespaces={name: os.readlink(f"/proc/self/ns/{name}") for name in _NAMESPACES},
                environment=[*jail.environment, *_OF_PROGRAMS],
                devices=list(settings.devices),
                limits=limits_of(settings),
                calls=call_numbers(),
                socket=SOCKET if every_file else "",
            )
            limited = _group(settings, group) if settings.control_group else ()
            return [*_probe(jail, attempts), *limited]
        finally:
            jail.close()


def limits_of(settings: Settings) -> dict[str, int]:
    """Return the limits of a process, by their name in the standard library."""
    return {
        "RLIMIT_CORE": LARGEST_DUMP,
        "RLIMIT_NOFILE": settings.files,
        "RLIMIT_NPROC": settings.processes,
    }


def print_table(findings: Sequence[Finding]) -> None:
    """Print what was found."""
    table = Table(title="Ways out of the sandbox, tried from inside")
    for heading in ("way", "", "seen"):
        table.add_column(heading, overflow="fold")
    for one in findings:
        table.add_row(one.way, "[red]OPEN[/red]" if one.is_open else "closed", one.seen)
    Console().print(table)


def _probe(jail: Jail, attempts: Attempts) -> list[Finding]:
    command = [sys.executable, "-m", "flower_ldp.node.sandbox.probe"]
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
    """Judge the control group, which is seen from outside alone."""
    limits = group.limits()
    memory = limits.get("memory.max", limits.get("memory.limit_in_bytes", "max"))
    page = resource.getpagesize()
    limited = memory.isdigit() and int(memory) // page <= settings.memory // page
    yield Finding("memory without a limit", not limited, f"{memory} bytes")
    processes = limits.get("pids.max", "max")
    open_end = not processes.isdigit() or int(processes) > settings.processes
    yield Finding("processes without a limit", open_end, f"{processes} processes")


@contextlib.contextmanager
def _outside() -> Iterator[tuple[int, Path, int]]:
    """Put up what the probe is to look for: a node, a file, and sockets that anyone could reach."""
    with contextlib.ExitStack() as stack:
        node = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        listening = stack.enter_context(socket.create_server(("", 0)))
        file = stack.enter_context(tempfile.NamedTemporaryFile(prefix="flower-ldp-outside-"))
        place = Path(file.name)
        place.chmod(0o666)
        abstract = stack.enter_context(socket.socket(socket.AF_UNIX))
        abstract.bind(f"\0{place.name}")
        abstract.listen()
        threading.Thread(target=_answer, args=(node,), daemon=True).start()
        yield node.getsockname()[1], place, listening.getsockname()[1]


def _answer(server: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one, _ = server.accept()
        with one:
            one.sendall(b"node")


def _own_addresses() -> list[str]:
    """Return this machine's addresses: its own, and the one by which it reaches others."""
    found = ["127.0.0.1"]
    with contextlib.suppress(OSError), socket.socket(type=socket.SOCK_DGRAM) as one:
        one.connect(("192.0.2.1", 9))  # sends nothing
        found.append(one.getsockname()[0])
    return found
