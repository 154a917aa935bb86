"""The command ``flower-ldp-superexec``: Flower's app executor, with the token out of sight.

Flower puts the task's token on the app's command line, where every user of the machine can read it.
Here the app reads it from its standard input. ``sandbox.command`` also starts each app in a
sandbox.
"""

import inspect
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import flwr.supercore.superexec.run_superexec as superexec
from flwr.supercore.cli.flower_superexec import flower_superexec
from flwr.supercore.constant import ExecutorType, TaskType
from flwr.supercore.superexec.executor import ExecutionSpec, LaunchResult, SubprocessExecutor

from flower_ldp.node import FlowerChanged
from flower_ldp.node.flower_api import check_flower

#: Starts a command with a descriptor as its standard input.
Starter = Callable[[list[str], int], "subprocess.Popen[bytes]"]
#: The standard input, as a name that Flower opens once more.
_INPUT = "/dev/fd/0"


@dataclass(eq=False)
class AppExecutor(SubprocessExecutor):
    """Starts client apps, and gives each its token on its standard input.

    ``ended`` is called when the executor ends. An app may run ``longest`` seconds, and ``stays``
    seconds after the next one started: a node handles one message at a time.
    """

    start: Starter
    ended: Callable[[], None] = lambda: None
    stays: float = math.inf
    longest: float = math.inf
    _until: dict[subprocess.Popen[bytes], float] = field(init=False, default_factory=dict)

    def launch(self, spec: ExecutionSpec) -> LaunchResult:
        """Start the process of one task."""
        if spec.task_type is not TaskType.CLIENT_APP:
            return LaunchResult.failed(f"this node runs client apps, no {spec.task_type}")
        try:
            with in_memory(spec.token.encode()) as file:
                started = self.start(command_of(spec), file.fileno())
        except OSError as error:
            return LaunchResult.failed(f"the app's process cannot be started: {error}")
        now = time.monotonic()
        for process, until in self._until.items():
            self._until[process] = min(until, now + self.stays)
        self._until[started] = now + self.longest
        return LaunchResult.accepted()

    def reconcile(self) -> None:
        """Reap ended processes, and kill those whose time is over."""
        for process, until in list(self._until.items()):
            if process.poll() is not None:
                del self._until[process]
            elif time.monotonic() > until:
                process.kill()

    def close(self) -> None:
        """Release what the apps ran in."""
        self.ended()


class FreshHomes:
    """Starts each app with a Flower folder of its own, removed when the app has ended.

    Flower takes an installed bundle's folder as it is, named by eight digits of the hash, whoever
    wrote it. Commands are found first beside this interpreter, whose environment an owner pins.
    """

    def __init__(self) -> None:
        self._homes: list[tuple[subprocess.Popen[bytes], Path]] = []

    def __call__(self, command: list[str], token: int) -> subprocess.Popen[bytes]:
        """Start a command, with a descriptor as its input."""
        for process, home in self._homes:
            if process.poll() is not None:
                shutil.rmtree(home, ignore_errors=True)
        self._homes = [one for one in self._homes if one[1].exists()]
        home = Path(tempfile.mkdtemp(prefix="flower-ldp-app-"))
        try:
            path = os.pathsep.join([os.path.dirname(sys.executable), *os.get_exec_path()])
            environment = {**os.environ, "FLWR_HOME": str(home), "PATH": path}
            process = subprocess.Popen(command, stdin=token, env=environment)
        except OSError:
            shutil.rmtree(home, ignore_errors=True)
            raise
        self._homes.append((process, home))
        return process

    def close(self) -> None:
        """Remove the folders of all apps."""
        for _, home in self._homes:
            shutil.rmtree(home, ignore_errors=True)


def command_of(spec: ExecutionSpec) -> list[str]:
    """Return the command of an app, without the token.

    ``-P``: no module is found in the present folder.
    """
    command = [sys.executable, "-P", "-m", "flower_ldp.node.app_process", "--runtime-api-address"]
    command += [spec.runtime_api_address, "--token-file", _INPUT]
    if spec.insecure:
        return [*command, "--insecure"]
    if spec.root_certificates_path is not None:
        command += ["--root-certificates", spec.root_certificates_path]
    return command


def in_memory(content: bytes) -> BinaryIO:
    """Return a nameless file, whose descriptor can be opened again."""
    file = os.fdopen(os.memfd_create("flower-ldp"), "w+b")
    file.write(content)
    file.seek(0)
    return file


def use(executor: AppExecutor) -> None:
    """Have Flower's executor loop start apps by this one, or raise FlowerChanged."""
    check_flower()
    if "get_executor" not in superexec.run_superexec.__code__.co_names:
        raise FlowerChanged("run_superexec does not call get_executor")
    if tuple(inspect.signature(SubprocessExecutor.launch).parameters) != ("self", "spec"):
        raise FlowerChanged("an executor's launch has other parameters")

    def get_executor(executor_type: ExecutorType, **_: object) -> AppExecutor:
        if executor_type is not ExecutorType.SUBPROCESS:
            raise ValueError(f"apps are started as processes here, not by {executor_type}")
        return executor

    vars(superexec)["get_executor"] = get_executor


def run_executor(address: str, secret: bytes) -> None:
    """Ask a node on this machine for tasks, for ever."""
    superexec.run_superexec(
        runtime_api_address=address,
        insecure=True,
        superexec_auth_secret=secret,
        runtime_dependency_install=False,
    )


def main() -> None:
    """Run the command."""
    homes = FreshHomes()
    use(AppExecutor(homes, homes.close))
    flower_superexec()


if __name__ == "__main__":
    main()
