"""A process that has loaded what Flower's commands load, and is forked in their place.

Flower begins a process for each message, node and link, and each of them loads the same libraries
for one to seven seconds. The tests' session starts this one process, which loads them once. A
command's process then gives its words, folder, variables and open files to it (:func:`hand_over`)
and waits; a fork runs the same command with them. To whoever started the command it is as before:
signals are passed on, whoever kills the command kills the fork (and its group, if it leads one),
and the fork's end is the command's.

The processes of tests are forks of a second one, which has loaded the tests as well: a session's
processes would each do that for themselves.

What a fork does not have of its own: the command line and the environment that ``/proc`` shows, and
the parent. Tests about those, and sandboxes, have ``TESTS_FORKS=0``.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import logging
import os
import runpy
import selectors
import signal
import socket
import sys
import threading
import time
import traceback
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

#: Where the nursery listens; in the environment of whoever may hand a command over.
NURSERY = "TESTS_NURSERY"
#: What the commands of Flower and of the tests' apps load; what is not installed is left out.
LOADED = (
    "flwr.cli.app",
    "flwr.superlink.cli",
    "flwr.superlink.cli.flwr_serverapp",
    "flwr.supernode.cli",
    "flwr.supernode.cli.flwr_clientapp",
    "flwr.supercore.cli",
    "flwr.simulation",
    "torch",
    "torch._dynamo",  # torch's optimizers load it, for two seconds
    "sklearn.linear_model",
    "sklearn.datasets",
    "sklearn.metrics",
    "flower_ldp.clients",
    "flower_ldp.node.app_process",
    "flower_ldp.node.command",
    "flower_ldp.strategies",
    # and what the tests' own processes load besides
    "scipy.stats",
)
#: What is added to the first one's address to get that of the second, which has loaded the tests.
OF_TESTS = "-tests"
_PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)
_SIZE = 4  # of the length before a request


def hand_over(module: str = "", text: str = "") -> None:
    """Have the nursery run this process's command, and end as that ends; return if there is none.

    The command is the file that runs, or the module or the text that ``python -m`` or ``-c`` runs.

    To be called before the command has loaded anything.
    """
    link = socket.socket(socket.AF_UNIX)
    try:
        link.connect(os.environ[NURSERY] + (OF_TESTS if text else ""))
    except OSError:
        return
    files = [one for one in _open_files() if one != link.fileno()]
    request = {
        "module": module,
        "text": text,
        "argv": [sys.orig_argv[0], *sys.orig_argv[3 + sys.flags.safe_path :]]
        if module
        else sys.argv,
        "path": sys.path,
        "folder": os.getcwd(),
        "variables": dict(os.environ),
        "files": files,
        "pid": os.getpid(),
        "group": os.getpgid(0),
        "leads": os.getpgid(0) == os.getpid(),
    }
    # Whatever arrives before the fork has begun is passed on when it has.
    for number in _PASSED_ON:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda number, _: link.sendall(bytes([number])))
    text = json.dumps(request).encode()
    socket.send_fds(link, [len(text).to_bytes(_SIZE, "big")], files)
    link.sendall(text)
    ended = link.recv(_SIZE)
    code = int.from_bytes(ended, "big", signed=True) if ended else 1
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def _open_files() -> list[int]:
    found = []
    for one in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):
            if os.get_inheritable(one):
                found.append(one)
    return found


@dataclass(frozen=True)
class Child:
    """A fork: what it is known by, and the command's process that waits for it."""

    pid: int
    note: str
    watched: int
    waiting: socket.socket
    leads: bool

    def kill(self, number: int) -> None:
        """Send it a signal; the last one goes to all of its group."""
        with contextlib.suppress(ProcessLookupError):
            if number == signal.SIGKILL and self.leads:
                os.killpg(self.pid, number)
            os.kill(self.pid, number)


class Nursery:
    """Forks for whoever asks at a socket, until whoever started it is gone."""

    def __init__(self, place: str) -> None:
        self._folder = os.path.dirname(place)
        self._door = socket.socket(socket.AF_UNIX)
        self._door.bind(place)
        self._door.listen(256)
        self._events = selectors.DefaultSelector()
        self._children: dict[int, Child] = {}

    def leave(self) -> None:
        """Have nothing to do with it: another process serves."""
        self._events.close()
        self._door.close()

    def serve(self) -> None:
        """Answer until standard input ends."""
        self._on(self._door, self._begin)
        self._on(sys.stdin.fileno(), self._close)
        while True:
            self.turn()

    def turn(self) -> None:
        """Wait for something, and answer to all that is there."""
        for key, _ in self._events.select():
            key.data()

    def _on(self, what: Any, then: Callable[[], None]) -> None:
        self._events.register(what, selectors.EVENT_READ, then)

    def _close(self) -> NoReturn:
        for child in self._children.values():
            child.kill(signal.SIGKILL)
        os._exit(0)

    def _begin(self) -> None:
        link, _ = self._door.accept()
        size, files, _, _ = socket.recv_fds(link, _SIZE, 64)
        if len(size) < _SIZE:
            link.close()
            return
        text = b""
        while len(text) < int.from_bytes(size, "big"):
            more = link.recv(1 << 16)
            if not more:
                break
            text += more
        request = json.loads(text)
        # There while the fork is: whoever killed the command can wait for the end of both.
        note = os.path.join(self._folder, str(request["pid"]))
        with open(note, "wb"):
            pid = os.fork()
        if not pid:
            self._leave(link, request["files"], files)
            _become(request)
        for one in files:
            os.close(one)
        leads = _join(pid, request["group"], request["leads"])
        self.watch(Child(pid, note, os.pidfd_open(pid), link, leads))

    def watch(self, child: Child) -> None:
        """Pass on what its command's process says, and its end to that."""
        self._children[child.pid] = child
        self._on(child.waiting, lambda: self._pass_on(child))
        self._on(child.watched, lambda: self._end(child))

    def _leave(self, link: socket.socket, wanted: list[int], files: list[int]) -> None:
        """Have the command's open files at their own numbers, and no others."""
        link.close()
        self._door.close()
        for child in self._children.values():
            child.waiting.close()
            os.close(child.watched)
        self._events.close()
        above = max([*wanted, *files]) + 1
        for high, one in enumerate(files, above):
            os.dup2(one, high)
            os.close(one)
        for high, number in enumerate(wanted, above):
            os.dup2(high, number)
            os.close(high)

    def _pass_on(self, child: Child) -> None:
        # Both may have ended at once: one look at the events then has its end and this.
        if self._children.get(child.pid) is not child:
            return
        try:
            numbers = child.waiting.recv(64)
        except OSError:
            numbers = b""
        for number in numbers or [signal.SIGKILL]:
            child.kill(number)
        if not numbers:
            self._events.unregister(child.waiting)

    def _end(self, child: Child) -> None:
        _, status = os.waitpid(child.pid, 0)
        self._events.unregister(child.watched)
        os.close(child.watched)
        with contextlib.suppress(KeyError):
            self._events.unregister(child.waiting)
        code = os.waitstatus_to_exitcode(status)
        with contextlib.suppress(OSError):
            child.waiting.sendall(code.to_bytes(_SIZE, "big", signed=True))
        child.waiting.close()
        del self._children[child.pid]
        with contextlib.suppress(FileNotFoundError):
            os.unlink(child.note)


def _join(pid: int, group: int, leads: bool) -> bool:
    """Put a fork into the group that its command's process is in; tell whether it leads one."""
    if not leads:
        with contextlib.suppress(OSError):
            os.setpgid(pid, group)
            return False
    with contextlib.suppress(OSError):
        os.setpgid(pid, 0)
    return True


def _become(request: dict[str, Any]) -> NoReturn:
    """Run a command as its own process would, and end."""
    code: object = 1
    try:
        _join(os.getpid(), request["group"], request["leads"])
        for number in (*_PASSED_ON, signal.SIGCHLD, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        os.environ.clear()
        os.environ.update(request["variables"])
        os.chdir(request["folder"])
        sys.argv, sys.path[:] = request["argv"], request["path"]
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
        _as_if_new()
        _run(request["module"], request["text"])
        code = 0
    except SystemExit as ended:
        code = ended.code
        if code is not None and not isinstance(code, int):
            print(code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            threading._shutdown()  # type: ignore[attr-defined]
        with contextlib.suppress(BaseException):
            atexit._run_exitfuncs()
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code if isinstance(code, int) else int(code is not None))


def _run(module: str, text: str) -> None:
    """Run what ``python`` was told to, in a main module of its own."""
    sys.path.insert(0, "" if module or text else os.path.dirname(sys.argv[0]))
    if text:
        _found_by_nobody()
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(text, vars(main))  # noqa: S102
    elif module:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(sys.argv[0], run_name="__main__")


def _not_in_a_hurry() -> None:
    """Undo what ``sitecustomize`` did: for tests' own processes."""
    hurry = os.path.dirname(__file__)
    sys.path[:] = [one for one in sys.path if one != hurry]
    customized = sys.modules.pop("sitecustomize")
    time.sleep = customized._sleep
    sys.meta_path[:] = [one for one in sys.meta_path if type(one).__module__ != "sitecustomize"]


def _found_by_nobody() -> None:
    """Undo what lets another process find ``sitecustomize``."""
    hurry = os.path.dirname(__file__)
    path = os.environ.pop("PYTHONPATH", "").split(os.pathsep)
    if kept := [one for one in path if one != hurry]:
        os.environ["PYTHONPATH"] = os.pathsep.join(kept)
    os.environ.pop("TESTS_WORKER", None)
    sys.path[:] = [one for one in sys.path if one != hurry]


def _collect(tests: list[str]) -> None:
    """Load tests as each process of theirs would: what does not load now fails there again."""
    import pytest

    _not_in_a_hurry()
    _found_by_nobody()
    os.environ[NURSERY] = ""  # no nursery of its own
    with _silence():
        pytest.main(["--collect-only", "-qqs", "-n0", "-p", "no:cacheprovider", *tests])


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Let nothing be said, by logs either: who loads the tests after this says it again."""
    with open(os.devnull, "w") as nowhere:
        own = [os.dup(one) for one in (1, 2)]
        for one in (1, 2):
            os.dup2(nowhere.fileno(), one)
        yield
        for one, kept in zip((1, 2), own, strict=True):
            os.dup2(kept, one)
            os.close(kept)


def _as_if_new() -> None:
    """Undo what this process has and a new one has not: what it drew, and its own settings."""
    import random

    random.seed()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    if os.environ.get("PYTHONUNBUFFERED"):
        sys.stdout.reconfigure(write_through=True)  # type: ignore[union-attr]
    seconds = os.environ.get("TESTS_HEARTBEAT")
    name = "HEARTBEAT_DEFAULT_INTERVAL"
    for module in list(sys.modules.values()) if seconds else ():
        if isinstance(vars(module).get(name) if hasattr(module, "__dict__") else None, int):
            setattr(module, name, int(seconds or 0))


def main() -> None:
    """Load, and serve at the sockets that the command line names, the second for these tests."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    place, *rest = sys.argv[1:]
    tests = rest[rest.index("--tests") + 1 :] if "--tests" in rest else None
    nursery = Nursery(place)
    second = Nursery(place + OF_TESTS) if tests is not None else None
    for name in () if "--bare" in rest else LOADED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    # A library that writes all logs a second time does so where a command loads it, if any does.
    logging.root.handlers.clear()
    logging.root.setLevel(logging.WARNING)
    gc.collect()
    gc.freeze()
    if tests is not None and second is not None:
        own, other = (nursery, second) if os.fork() else (second, nursery)
        other.leave()
        nursery = own
        if own is second:
            _collect(tests)
    nursery.serve()


if __name__ == "__main__":
    main()
