"""A command that is handed over looks, to whoever started it, as if it ran by itself."""

from __future__ import annotations

import importlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.nursery import HURRY, Nursery

nursery_module = importlib.import_module("tests.network.hurry.nursery")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks are told of by pidfd")


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    """One that has loaded nothing, so that it starts at once."""
    started = Nursery.beside("--bare")
    while not started.place.exists():
        time.sleep(0.01)
    yield started
    started.stop()


def begin(nursery: Nursery, folder: Path, text: str, **how: object) -> subprocess.Popen[bytes]:
    """Start a script that has the name of one of Flower's commands."""
    (folder / "flwr").write_text(text)
    environment = {**os.environ, "PYTHONPATH": str(HURRY), "TESTS_NURSERY": str(nursery.place)}
    return subprocess.Popen(
        [sys.executable, str(folder / "flwr"), "a word"],
        env=environment,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        **how,  # type: ignore[call-overload]
    )


def said(process: subprocess.Popen[bytes]) -> str:
    return process.communicate(timeout=20)[0].decode()


WHO = "import os, sys; print(os.getppid(), sys.argv[1:], os.getcwd(), os.environ['PWD'])\n"


def test_a_fork_has_the_words_the_folder_and_the_output(nursery: Nursery, tmp_path: Path) -> None:
    process = begin(nursery, tmp_path, WHO + "sys.exit(7)")
    assert said(process) == f"{nursery.process.pid} ['a word'] {tmp_path} {os.environ['PWD']}\n"
    assert process.returncode == 7


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        ("", 0, ""),
        ("raise SystemExit('no such node')", 1, "no such node"),
        ("raise KeyError('a node')", 1, "KeyError: 'a node'"),
        ("import os; os.kill(os.getpid(), 9)", -9, ""),
        ("import atexit; atexit.register(print, 'the end')", 0, "the end"),
    ],
)
def test_its_end_is_the_commands(
    text: str, code: int, words: str, nursery: Nursery, tmp_path: Path
) -> None:
    process = begin(nursery, tmp_path, text)
    assert words in said(process)
    assert process.returncode == code


ENDLESS = """
import signal, sys, time
def stop(number, frame):
    print("stopped", flush=True)
    sys.exit(3)
signal.signal(signal.SIGTERM, stop)
print("begun", flush=True)
time.sleep(60)
"""


def test_a_signal_is_passed_on(nursery: Nursery, tmp_path: Path) -> None:
    process = begin(nursery, tmp_path, ENDLESS)
    assert process.stdout is not None
    assert process.stdout.readline() == b"begun\n"
    process.terminate()
    assert said(process) == "stopped\n"
    assert process.returncode == 3


def test_a_fork_and_its_command_may_end_at_once(tmp_path: Path) -> None:
    """One look at the events has the ends of both."""
    door = nursery_module.Nursery(str(tmp_path / "door"))
    fork = subprocess.Popen([sys.executable, "-c", ""])
    own, other = socket.socketpair()
    note = str(tmp_path / "note")
    door.watch(nursery_module.Child(fork.pid, note, os.pidfd_open(fork.pid), own, False))
    os.waitid(os.P_PID, fork.pid, os.WEXITED | os.WNOWAIT)
    other.close()
    door.turn()
    door.leave()
    assert own.fileno() == -1
    fork.returncode = 0  # it was waited for


FAMILY = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
print(os.getpid(), child.pid, flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("leads", [True, False])
def test_who_is_killed_is_gone_with_its_group_if_it_leads_one(
    leads: bool, nursery: Nursery, tmp_path: Path
) -> None:
    process = begin(nursery, tmp_path, FAMILY, start_new_session=leads)
    assert process.stdout is not None
    itself, child = (int(word) for word in process.stdout.readline().split())
    process.send_signal(signal.SIGKILL)
    process.wait(20)
    deadline = time.monotonic() + 20
    while (_runs(itself) or (leads and _runs(child))) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not _runs(itself)
    assert _runs(child) is not leads
    if not leads:
        os.kill(child, signal.SIGKILL)
    process.stdout.close()


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except FileNotFoundError:
        return False


KEPT = """
import sys
print([one for one in sys.modules if one.startswith("tests.unit.test_pa")], sys.argv[1:])
print("sitecustomize" in sys.modules, [one for one in sys.path if one.endswith("hurry")])
"""


def test_a_process_of_tests_has_them_loaded_and_is_in_no_hurry() -> None:
    started = Nursery.beside("--bare", "--tests", "tests/unit/test_parameter_bounds.py")
    try:
        started.wait_until_there()
        environment = {**os.environ, "PYTHONPATH": str(HURRY), "TESTS_WORKER": "1"}
        done = subprocess.run(
            [sys.executable, "-c", KEPT],
            env={**environment, "TESTS_NURSERY": str(started.place)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.stdout == "['tests.unit.test_parameter_bounds'] []\nFalse []\n", done.stderr
    finally:
        started.stop()
