"""The deployment example notices that one of its processes has ended."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

PROCESSES = Path(__file__).parents[2] / "examples" / "deployment" / "processes.sh"

pytestmark = pytest.mark.skipif(os.name != "posix", reason="a shell script")


def script(folder: Path, *lines: str) -> tuple[int, str, float]:
    """Return exit status, error output and seconds of a script with these lines."""
    begin = time.monotonic()
    text = "\n".join(["set -euo pipefail", 'work=$1 && . "$2"', *lines])
    done = subprocess.run(
        ["bash", "-c", text, "bash", str(folder), str(PROCESSES)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stderr, time.monotonic() - begin


def test_a_node_that_ends_stops_the_script_with_its_last_words(tmp_path: Path) -> None:
    status, error, seconds = script(
        tmp_path,
        "start superlink sleep 60",
        "start node-0 sh -c 'echo not started: two policies; exit 2'",
        'wait_for "SuperNode ID" "$work/node-0.log"',
    )
    assert status == 1
    assert error == "node-0 has ended:\nnot started: two policies\n"
    assert seconds < 30


def test_a_node_that_ends_during_the_run_is_noticed(tmp_path: Path) -> None:
    status, error, _ = script(
        tmp_path,
        "start node-1 sh -c 'sleep 1; echo gone'",
        "start run sleep 60",
        'wait_for "^wrote " "$work/run.log"',
    )
    assert (status, error) == (1, "node-1 has ended:\ngone\n")


def test_what_was_waited_for_may_be_the_last_that_is_said(tmp_path: Path) -> None:
    status, error, _ = script(
        tmp_path, "start run echo wrote it", 'wait_for "^wrote " "$work/run.log"'
    )
    assert (status, error) == (0, "")


def test_what_never_comes_is_waited_for_no_longer_than_asked(tmp_path: Path) -> None:
    status, error, _ = script(
        tmp_path, "start run sleep 60", 'wait_for "^wrote " "$work/run.log" 1'
    )
    assert status == 1
    assert error.startswith(f"no '^wrote ' in {tmp_path}/run.log")


def test_processes_end_with_the_script(tmp_path: Path) -> None:
    status, _, _ = script(tmp_path, "start one sleep 600", 'echo ${groups[0]} > "$work/pid"')
    assert status == 0
    pid = int((tmp_path / "pid").read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
