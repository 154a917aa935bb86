"""Where and with what a benchmark ran: the part of a result file that is common to all."""

from __future__ import annotations

import datetime
import json
import platform
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


def write_report(
    path: Path, script: str, arguments: list[str] | None, body: dict[str, Any]
) -> None:
    """Write a result with its command, date, versions and processor.

    Parameters
    ----------
    path : Path
        JSON file to write; its folder is made.
    script : str
        The benchmark, as in ``"benchmarks/gate.py"``.
    arguments : list of str, optional
        Those of the command line; None for the process's own.
    body : dict
        What was measured.
    """
    given = sys.argv[1:] if arguments is None else arguments
    report = {
        "command": " ".join(["python", script, *given]),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "flwr": flwr.__version__,
        "cpu": cpu_model(),
        **body,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=2) + "\n")
