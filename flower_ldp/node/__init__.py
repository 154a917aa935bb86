"""The guarded SuperNode: the site's gate in a process that the app does not run in.

Nothing of Flower is imported here: the command sets its environment first.
"""

import os
import sys
from typing import NoReturn

PROGRAM = "flower-ldp-supernode"

#: Flower releases whose SuperNode was read and tested.
KNOWN_VERSIONS = ">=1.40,<1.43"


class FlowerChanged(RuntimeError):  # noqa: N818  # a state of the installation
    """The guarded node does not know the installed Flower."""


class NoLinux(RuntimeError):  # noqa: N818  # a state of the machine
    """The guarded node is for Linux."""


def check_here() -> None:
    """Check that a guarded node can run here.

    Raises
    ------
    NoLinux
        Elsewhere there are no tables of sockets with the callers' users, and no namespaces.
    FlowerChanged
        If Flower is not in :data:`KNOWN_VERSIONS`.
    """
    if sys.platform != "linux":
        raise NoLinux(
            f"the guarded node is for Linux, this is {sys.platform}: run the gate in the app "
            "(LdpMod) under flower-supernode, or the node in a Linux machine or container"
        )
    # What runs inside the sandbox does without these.
    import importlib.metadata

    from packaging.specifiers import SpecifierSet

    text = importlib.metadata.version("flwr")
    if not SpecifierSet(KNOWN_VERSIONS).contains(text, prereleases=True):
        raise FlowerChanged(f"flwr {text} is installed; the guarded node knows {KNOWN_VERSIONS}")


def stop(reason: str, said: str = "not started", status: int = 2) -> NoReturn:
    """End the process at once; Flower's server thread would keep it alive."""
    print(f"{PROGRAM}: {said}: {reason}", file=sys.stderr, flush=True)
    os._exit(status)
