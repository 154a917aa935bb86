"""Python reads this when it starts, in the processes of a federation of tests.

Flower's nodes ask for messages, and its servers for replies, every three seconds. Tests that run
tens of rounds would mostly wait for that; here both ask more often, and no oftener than is worth
the processor's time. Where ``TESTS_HEARTBEAT`` is set, heartbeats of nodes and apps are due in so
many seconds, not in Flower's 30, so that whoever is gone is missed sooner. A client app's process,
of which each message has its own, is spared the import of the SuperNode's command: Flower's package
imports it beside the app's, no app uses it, and it is half of what such a process loads. What
starts the apps forks them (:mod:`forking`), unless ``TESTS_FORKS`` is 0. And torch's optimizers
load its compiler, for two seconds, to tell it what it should not compile: nothing is compiled
here, so there is nobody to tell. Nothing else is changed.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import os
import subprocess
import sys
import time
import types

FLOWERS_SECONDS, SECONDS = 3, 1.0
CONSTANTS = "flwr.common.constant"
COMPILER = "torch._dynamo"
APP, NODE_COMMAND = "flwr-clientapp", "flwr.supernode.cli.flower_supernode"
EXECUTOR = "flower-superexec"
_sleep = time.sleep


def sleep(seconds: float) -> None:
    """Sleep, but not for Flower's three seconds."""
    _sleep(SECONDS if seconds == FLOWERS_SECONDS else seconds)


class _Heartbeat(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Sets the constant as it is loaded: Flower's other modules copy it."""

    def __init__(self, seconds: int) -> None:
        self._seconds = seconds

    def find_spec(self, fullname, path, target=None):  # type: ignore[no-untyped-def]
        """Find the module where it is, and load it here."""
        if fullname != CONSTANTS:
            return None
        found = importlib.machinery.PathFinder.find_spec(fullname, path)
        self._own, found.loader = found.loader, self
        return found

    def create_module(self, spec):  # type: ignore[no-untyped-def]
        """Leave it to Python."""
        return None

    def exec_module(self, module) -> None:  # type: ignore[no-untyped-def]
        """Load the module, then change what it says."""
        self._own.exec_module(module)
        if module.HEARTBEAT_DEFAULT_INTERVAL != 30:
            raise ImportError("Flower's heartbeats are not due in 30 seconds any more")
        module.HEARTBEAT_DEFAULT_INTERVAL = self._seconds


class _NoCompiler(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Has the two functions of torch's compiler that optimizers call, which do nothing."""

    def find_spec(self, fullname, path, target=None):  # type: ignore[no-untyped-def]
        """Find nothing else."""
        return importlib.machinery.ModuleSpec(fullname, self) if fullname == COMPILER else None

    def create_module(self, spec):  # type: ignore[no-untyped-def]
        """Leave it to Python."""
        return None

    def exec_module(self, module) -> None:  # type: ignore[no-untyped-def]
        """Give it what optimizers call."""
        module.disable = lambda function, recursive=True, wrapping=True: function
        module.graph_break = lambda: None


def _without_the_nodes_command() -> None:
    """Put an empty module, with the one name that the package takes from it."""
    unused = types.ModuleType(NODE_COMMAND)
    unused.flower_supernode = None  # type: ignore[attr-defined]
    sys.modules[NODE_COMMAND] = unused


time.sleep = sleep
_program = os.path.basename(sys.argv[0])
if _program == APP:
    _without_the_nodes_command()
if _program == EXECUTOR and os.environ.get("TESTS_FORKS") != "0":
    from forking import Forking

    subprocess.Popen = Forking  # type: ignore[assignment, misc]
sys.meta_path.insert(0, _NoCompiler())
if "TESTS_HEARTBEAT" in os.environ:
    sys.meta_path.insert(0, _Heartbeat(int(os.environ["TESTS_HEARTBEAT"])))
