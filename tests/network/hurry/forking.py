"""Apps that begin as a fork of the process that starts them, which has loaded Flower already.

Flower's executor begins a process for each message, and all of them load the same for more than a
second. A forked one is the executor's child as well, in its group, with its output and environment,
and runs the same command's function with the same words. Its command line alone is the executor's,
and what it hides of itself: tests about that have ``TESTS_FORKS=0``, and a sandbox is never forked.
"""

import ctypes
import importlib
import os
import subprocess
import sys
import traceback
from collections.abc import Sequence
from typing import Any, NoReturn

COMMANDS = {
    "flwr-clientapp": "flwr.supernode.cli.flwr_clientapp",
    "flwr-serverapp": "flwr.superlink.cli.flwr_serverapp",
}
#: How Flower starts a server's app: what it prints goes to the SuperLink.
SILENT = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
_PR_SET_DUMPABLE = 4


class Forking(subprocess.Popen[Any]):
    """Any command's process; of an app's, with its output here or nowhere, a fork."""

    def __init__(self, args: Sequence[str], *rest: Any, **how: Any) -> None:
        self._is_app = args[0] in COMMANDS and not rest and how in ({}, SILENT)
        self._silent = bool(how)
        super().__init__(args, *rest, **how)

    def _execute_child(self, args: Sequence[str], *rest: Any) -> None:
        if not self._is_app:
            super()._execute_child(args, *rest)  # type: ignore[misc]
            return
        # Here and not in the child: what it loads, the next one need not.
        function = args[0].replace("-", "_")
        command = getattr(importlib.import_module(COMMANDS[args[0]]), function)
        self.pid = os.fork()
        if not self.pid:
            _become(command, args, self._silent)
        self._child_created = True


def _become(command: Any, args: Sequence[str], silent: bool) -> NoReturn:
    """Run a command's function as its own process would, and end."""
    code: object = 1
    try:
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)  # as after an exec
        sys.argv = list(args)
        for output in (1, 2) if silent else ():
            os.dup2(os.open(os.devnull, os.O_WRONLY), output)
        code = command()
    except SystemExit as ended:
        code = ended.code
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else int(code is not None))
