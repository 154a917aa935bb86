"""Where and with what a benchmark ran: the part of a result file that is common to all."""

from __future__ import annotations

import datetime
import json
import platform
import shlex
import sys
from pathlib import Path
from typing import Any

import flwr
import numpy as np


def cpu_model() -> str:
    """Return the processor's name as the system reports it."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def command() -> str:
    """Return the process's own command; files elsewhere are named, not located."""
    words = [Path(one).name if one.startswith(("/", "..")) else one for one in sys.argv[1:]]
    return shlex.join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *words])


def report(path: Path | None, body: dict[str, Any]) -> None:
    """Write what this process's command measured, if a file was named for it."""
    if path is not None:
        _write(path, command(), body)


def write_report(path: Path, script: str, arguments: list[str], body: dict[str, Any]) -> None:
    """Write a result with its command, date, versions and processor.

    Parameters
    ----------
    path : Path
        JSON file to write; its folder is made.
    script : str
        The benchmark, as in ``"benchmarks/gate.py"``.
    arguments : list of str
        Those of the command line that the result depends on.
    body : dict
        What was measured.
    """
    _write(path, " ".join(["python", script, *arguments]), body)


def _write(path: Path, made_by: str, body: dict[str, Any]) -> None:
    found = {
        "command": made_by,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "flwr": flwr.__version__,
        "cpu": cpu_model(),
        **body,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found, indent=2) + "\n")
