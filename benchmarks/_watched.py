"""A command and all that it starts, watched from outside: memory, processor time, its lines."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

#: How often the processes are looked at, in seconds, and how often at least what they share:
#: that takes the system some milliseconds for a process. In between where much is new.
EVERY, SHARES_EVERY, MUCH = 0.1, 1.0, 1.05
_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass
class Watched:
    """What was seen of a command.

    Parameters
    ----------
    lines : list of (float, str)
        Of its output, each with the seconds since the start.
    peak : int
        Bytes of memory that the process and its descendants had at most at one time, each with
        its share of what it shares with others.
    cpu : float
        Seconds of processor time that they were seen to have used.
    seconds : float
        From the start to the end.
    code : int
        Of the exit; negative if it took too long and was killed.
    """

    lines: list[tuple[float, str]] = field(default_factory=list)
    peak: int = 0
    cpu: float = 0.0
    seconds: float = 0.0
    code: int = 0


def watch(
    command: list[str], limit: float, environment: Mapping[str, str] | None = None
) -> Watched:
    """Run a command to its end, at most ``limit`` seconds."""
    found, start = Watched(), time.perf_counter()
    process = subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )

    def read() -> None:
        for line in process.stdout or ():
            found.lines.append((time.perf_counter() - start, line.rstrip("\n")))

    reader = threading.Thread(target=read)
    reader.start()
    used: dict[int, float] = {}
    seen: set[int] = set()
    most, looked = 0, start
    try:
        while process.poll() is None:
            seen = _descendants(process.pid)
            resident, now = sum(map(_resident, seen)), time.perf_counter()
            if resident > MUCH * most or now - looked > SHARES_EVERY:
                found.peak = max(found.peak, sum(map(_proportional, seen)))
                most, looked = max(most, resident), now
            used.update((pid, _used(pid)) for pid in seen)
            if time.perf_counter() - start > limit:
                break
            time.sleep(EVERY)
    finally:
        ended = process.poll() is not None
        _end(process, seen)
    reader.join()
    found.seconds, found.cpu = time.perf_counter() - start, sum(used.values())
    found.code = process.returncode if ended else -1
    return found


def _end(process: subprocess.Popen[str], seen: set[int]) -> None:
    """Ask what is left to end, which also ends what it started elsewhere, then make it."""
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=30)
    for pid in seen:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, 9)
    process.wait()


def _descendants(root: int) -> set[int]:
    parents = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, IndexError):
            parents[int(entry.name)] = int(_stat(int(entry.name))[1])
    found, new = {root}, {root}
    while new:
        new = {pid for pid, parent in parents.items() if parent in new} - found
        found |= new
    return found


def _stat(pid: int) -> list[str]:
    """Return the fields of a process after its name."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _resident(pid: int) -> int:
    with contextlib.suppress(OSError, IndexError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE
    return 0


def _proportional(pid: int) -> int:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0


def _used(pid: int) -> float:
    with contextlib.suppress(OSError, IndexError):
        fields = _stat(pid)
        return (int(fields[11]) + int(fields[12])) / _TICKS
    return 0.0
