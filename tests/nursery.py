"""The one process of a session that has loaded what Flower's commands load (Linux)."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

#: Where Python looks first, in processes of a federation: for what hurries them.
HURRY = Path(__file__).parent / "network" / "hurry"


@dataclass(frozen=True)
class Nursery:
    """A running nursery; this process's children find it by their environment."""

    process: subprocess.Popen[bytes]
    folder: Path

    @classmethod
    def start(cls, tests: Sequence[str] | None = None) -> Nursery | None:
        """Start it, and go on while it loads; where it cannot be there is none.

        With tests, processes of tests can be handed over as well: a second one loads these.
        """
        if sys.platform != "linux" or "TESTS_NURSERY" in os.environ:
            return None
        started = cls.beside(*([] if tests is None else ["--tests", *tests]))
        os.environ["TESTS_NURSERY"] = str(started.place)
        return started

    @classmethod
    def beside(cls, *options: str) -> Nursery:
        """Start one that nobody knows of yet."""
        folder = Path(tempfile.mkdtemp(prefix="nursery-"))
        own = [one for one in os.environ.get("PYTHONPATH", "").split(os.pathsep) if one]
        variables = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(HURRY), *own]),
            "FLWR_TELEMETRY_ENABLED": "0",
        }
        command = [sys.executable, str(HURRY / "nursery.py"), str(folder / "door"), *options]
        return cls(subprocess.Popen(command, env=variables, stdin=subprocess.PIPE), folder)

    @property
    def place(self) -> Path:
        """Where it listens."""
        return self.folder / "door"

    def wait_until_there(self) -> None:
        """Wait until it can be asked, if not answered: whoever cannot ask goes without."""
        last = self.place.with_name("door-tests")
        while not last.exists() and self.process.poll() is None:
            time.sleep(0.01)

    def stop(self) -> None:
        """End it, and whatever it still runs."""
        if self.process.stdin is not None:
            self.process.stdin.close()
        self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)
        if os.environ.get("TESTS_NURSERY") == str(self.place):
            del os.environ["TESTS_NURSERY"]


def wait_until_gone(pid: int) -> None:
    """Wait for the end of what ran in place of a command's process that has ended."""
    place = os.environ.get("TESTS_NURSERY")
    while place and (Path(place).parent / str(pid)).exists():
        time.sleep(0.01)
