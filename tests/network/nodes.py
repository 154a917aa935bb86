"""A SuperNode and a submitted run, as a test sees them."""

from __future__ import annotations

import re
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from tests.network.processes import Process, wait_for

START_SECONDS = 180.0
#: A SuperNode's words when it starts an app: nothing else tells whether it did.
APP_STARTED = "Start `flwr-clientapp` process"
_CONNECTED = re.compile(r"SuperNode ID: (\d+)")


@dataclass
class Run:
    """A run that was submitted and whose log is being streamed."""

    process: Process
    environment: dict[str, str]
    folder: Path

    @property
    def output(self) -> str:
        """The run's log so far."""
        return self.process.output

    @property
    def run_id(self) -> str:
        """Flower's identity of the run; empty until it was accepted."""
        return "".join(re.findall(r"started run (\d+)", self.output)[:1])

    def wait_for(self, pattern: str, *, timeout: float) -> re.Match[str]:
        """Wait until the log holds a line that matches a regular expression."""
        compiled = re.compile(pattern, re.MULTILINE)
        wait_for(
            lambda: bool(compiled.search(self.output)) or not self.process.is_running,
            f"{pattern!r} in the run's log",
            timeout=timeout,
            shown=lambda: self.output[-8_000:],
        )
        found = compiled.search(self.output)
        assert found is not None, f"the run ended without {pattern!r}:\n{self.output[-8_000:]}"
        return found

    def stop(self) -> None:
        """Have Flower stop the run, and end the stream of its log."""
        command = ["flwr", "stop", self.run_id, "here"]
        subprocess.run(command, env=self.environment, capture_output=True, check=False)
        self.process.kill()


@dataclass
class Node:
    """A SuperNode with a folder of its own."""

    folder: Path
    command: list[str]
    environment: dict[str, str]
    process: Process

    @property
    def ledger(self) -> Path:
        """Where the policies of this module's users keep their ledger."""
        return self.folder / "ledger.sqlite"

    @property
    def node_id(self) -> str:
        """Flower's identity of the node, when it has joined."""
        return _CONNECTED.findall(self.log)[-1]

    @property
    def log(self) -> str:
        """What the SuperNode and its app have printed, over all its starts."""
        return self.process.output

    def wait_until_connected(self, times: int = 1, timeout: float = START_SECONDS) -> None:
        """Wait until it has joined the federation so many times."""
        wait_for(
            lambda: len(_CONNECTED.findall(self.log)) >= times or not self.process.is_running,
            f"{self.folder.name} joining",
            timeout=timeout,
            shown=lambda: self.log[-4_000:],
        )
        assert self.process.is_running, f"{self.folder.name} ended:\n{self.log[-4_000:]}"

    def restart(self, timeout: float = 150.0) -> None:
        """Start it again until it joins, as systemd does: same command, key, policy, ledger.

        The SuperLink refuses a registered node that it believes to be there, so after a
        SIGKILL the first attempts fail, until heartbeats have been missing twice.
        """
        before = len(_CONNECTED.findall(self.log))

        def start() -> None:
            log = self.process.log
            self.process = Process.start(self.command, self.environment, log, self.folder)

        def has_joined() -> bool:
            if not self.process.is_running:
                time.sleep(5)
                start()
            return len(_CONNECTED.findall(self.log)) > before

        start()
        wait_for(
            has_joined,
            f"{self.folder.name} joining again",
            timeout=timeout,
            shown=lambda: self.log[-4_000:],
        )
