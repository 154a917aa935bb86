"""Python reads this when it starts, in the processes of a federation of tests.

Flower's nodes ask for messages, and its servers for replies, every three seconds. Tests that run
tens of rounds would mostly wait for that; here both ask more often, and no oftener than is worth
the processor's time. Where ``TESTS_HEARTBEAT`` is set, heartbeats of nodes and apps are due in so
many seconds, not in Flower's 30, so that whoever is gone is missed sooner. A command is handed over
to a process that has loaded all that it needs (:mod:`nursery`), unless ``TESTS_FORKS`` is 0.
Nothing else is changed.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import time

FLOWERS_SECONDS, SECONDS = 3, 1.0
CONSTANTS = "flwr.common.constant"
COMMANDS = {
    "flower-superexec",
    "flower-superlink",
    "flower-supernode",
    "flwr",
    "flwr-clientapp",
    "flwr-serverapp",
    "flwr-simulation",
    "default_worker.py",  # of Ray
    "run.py",  # of an example
}
GUARDED = "flower_ldp.node"
MODULES = {
    GUARDED,
    "flower_ldp.node.app_process",
    "flower_ldp.node.app_executor",
    "ipykernel_launcher",
    "tests.simulation.flower_apps",
}
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


time.sleep = sleep
_words = sys.orig_argv[sys.flags.safe_path :]  # without -P
_module = _words[2] if _words[1:2] == ["-m"] else ""
_handed = _module in MODULES or os.path.basename(sys.argv[0]) in COMMANDS
# A guarded node with a sandbox hides what a fork has not.
if _module == GUARDED and "--ldp-unsafe-app-user" not in sys.orig_argv:
    _handed = False
_text = sys.orig_argv[-1] if os.environ.get("TESTS_WORKER") and sys.argv[0] == "-c" else ""
if (_handed or _text) and os.environ.get("TESTS_FORKS") != "0":
    from nursery import NURSERY, hand_over

    if NURSERY in os.environ:
        hand_over(_module, _text)
if "TESTS_HEARTBEAT" in os.environ:
    sys.meta_path.insert(0, _Heartbeat(int(os.environ["TESTS_HEARTBEAT"])))
