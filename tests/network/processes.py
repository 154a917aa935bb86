"""Processes of a test: each in a group of its own, none of them outlives the test."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from flower_ldp.mechanisms.random import RandomSource
from tests.nursery import wait_until_gone

#: Every process of a federation has this variable, whatever started it.
TAG = "FLOWER_LDP_TEST_FEDERATION"

# The UDP ports that hold the ports which this process has chosen.
_HELD = contextlib.ExitStack()
atexit.register(_HELD.close)

# Becomes the command, after it had the kernel (Linux) promise to kill it when the test's own
# process ends, also if that is killed. A preexec_fn would do so too, but forks with threads.
_LAUNCH = """
import ctypes, os, signal, sys
if sys.platform == "linux":
    PR_SET_PDEATHSIG = 1
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
if os.getppid() == int(sys.argv[1]):
    os.execvp(sys.argv[2], sys.argv[2:])
"""


@dataclass
class Process:
    """A command that runs in the background, with its output in a file."""

    popen: subprocess.Popen[bytes]
    log: Path

    @classmethod
    def start(
        cls, command: list[str], environment: Mapping[str, str], log: Path, folder: Path
    ) -> Process:
        """Start a command in a process group of its own; a log that exists is continued."""
        with log.open("ab") as output:
            popen = subprocess.Popen(
                [sys.executable, "-c", _LAUNCH, str(os.getpid()), *command],
                env=dict(environment),
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return cls(popen, log)

    @property
    def output(self) -> str:
        """What it has printed so far."""
        return self.log.read_text(encoding="utf-8", errors="replace")

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self.popen.poll() is None

    def kill(self) -> None:
        """End it and its group as power loss would: SIGKILL, no cleaning up."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.popen.pid, signal.SIGKILL)
        self.popen.wait()
        wait_until_gone(self.popen.pid)

    def stop(self, timeout: float = 15.0) -> None:
        """Ask it to end, then kill what is left of its group."""
        with contextlib.suppress(ProcessLookupError):
            self.popen.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.popen.wait(timeout)
        self.kill()


def kill_tagged(tag: str) -> None:
    """Kill every process whose environment has ``TAG=tag``, except this one."""
    marker = f"{TAG}={tag}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ProcessLookupError):
            if int(folder.name) != os.getpid() and marker in (folder / "environ").read_bytes():
                os.kill(int(folder.name), signal.SIGKILL)


def wait_for(
    condition: Callable[[], bool], what: str, *, timeout: float, shown: Callable[[], str]
) -> None:
    """Wait until a condition holds; fail with the text that ``shown`` returns."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not happen within {timeout} s:\n{shown()}")
        time.sleep(0.1)


def is_listening(port: int) -> bool:
    """Return whether something answers on a port of this machine."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def free_port() -> int:
    """Return a port that is free now, and that nobody else takes before it is used.

    Whoever asked for it takes seconds to begin to listen. Meanwhile the system gives ports from
    32768 on to connections, and the examples take those from 24000 on. Other processes of the
    tests find the UDP port of the same number taken, for as long as this process lives.
    """
    while True:
        port = 15_000 + RandomSource.from_os().below(9_000)
        with contextlib.ExitStack() as held, contextlib.suppress(OSError):
            held.enter_context(socket.socket(type=socket.SOCK_DGRAM)).bind(("127.0.0.1", port))
            with socket.socket() as one:
                one.bind(("127.0.0.1", port))
            _HELD.push(held.pop_all())
            return port
