"""The app executor of a node with a sandbox: outside of it, starts each app in one of its own.

    python -m flower_ldp.node.sandbox.executor  < orders

An app finds nothing of the one before it, and knows no token but its own. The node's orders (where
it is, the secret by which it knows its executor) come on the standard input, so that no command
line has them.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import math
import os
import signal
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from subprocess import PIPE, STDOUT, Popen

from flower_ldp.node.apps import AppExecutor, run_executor, use
from flower_ldp.node.log import IN_AN_HOUR, Allowance
from flower_ldp.node.sandbox.jail import Jail
from flower_ldp.node.sandbox.limits import Group
from flower_ldp.node.sandbox.output import copy_output
from flower_ldp.node.sandbox.settings import SandboxMissing, Settings

_PR_SET_PDEATHSIG = 1
#: Seconds in which an app that has answered may hand in its context and end.
STAYS = 10.0


@dataclass(frozen=True)
class Orders:
    """What the node tells its executor.

    Parameters
    ----------
    settings : Settings
        The operator's.
    hidden : dict of str to Path
        What must not be in a sandbox.
    port : int
        Of the node's runtime API, on 127.0.0.1.
    secret : bytes
        By which the node knows its executor.
    group : Group
        Limits memory and processes.
    """

    settings: Settings
    hidden: dict[str, Path]
    port: int
    secret: bytes
    group: Group

    def to_text(self) -> str:
        """Return these orders as text."""
        given = {**asdict(self), "secret": self.secret.hex()}
        return json.dumps(given, default=str)

    @classmethod
    def from_text(cls, text: str) -> Orders:
        """Read what :meth:`to_text` wrote."""
        found = json.loads(text)
        return cls(
            settings=Settings(**found["settings"]),
            hidden={name: Path(path) for name, path in found["hidden"].items()},
            port=int(found["port"]),
            secret=bytes.fromhex(found["secret"]),
            group=Group(tuple(map(Path, found["group"]["folders"]))),
        )


def start_executor(orders: Orders) -> Popen[bytes]:
    """Start the executor; it ends when the thread that called this does."""
    process = Popen([sys.executable, "-m", __name__, str(os.getpid())], stdin=PIPE)
    with contextlib.suppress(BrokenPipeError), process.stdin as pipe:  # type: ignore[union-attr]
        pipe.write(orders.to_text().encode())
    return process


def main() -> None:
    """Carry out the orders on the standard input."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != int(sys.argv[1]):  # the node ended meanwhile
        return
    orders = Orders.from_text(sys.stdin.read())
    try:
        jail = Jail(orders.settings, orders.hidden, orders.port, orders.group)
    except SandboxMissing as error:
        sys.exit(f"no app is started: {error}")
    log, allowance = sys.stderr.buffer, Allowance(IN_AN_HOUR)

    def start(command: list[str], token: int) -> Popen[bytes]:
        process = jail.start(command, stdin=token, stdout=PIPE, stderr=STDOUT)
        if process.stdout is not None:
            copy_output(process.stdout, log, of_all=allowance)  # type: ignore[arg-type]  # a binary file
        return process

    use(AppExecutor(start, jail.close, STAYS, orders.settings.seconds or math.inf))
    run_executor(f"127.0.0.1:{orders.port}", orders.secret)


if __name__ == "__main__":
    main()
