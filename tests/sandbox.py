"""Whether a sandbox can be made on the machine that runs the tests."""

from __future__ import annotations

import os
import sys

import pytest

from flower_ldp.node.sandbox.settings import SandboxMissing


def missing() -> str:
    """Return what is missing for a sandbox; empty if nothing is."""
    if sys.platform != "linux":
        return "no Linux"
    from flower_ldp.node.sandbox.bubblewrap import find_bubblewrap
    from flower_ldp.node.sandbox.syscalls import this_machine

    try:
        find_bubblewrap()
        this_machine()
    except (SandboxMissing, OSError) as error:
        return str(error)
    return ""


#: Options of a sandboxed node: little enough that an app can be seen to reach its limits.
LIMITS: tuple[str, ...] = ("--sandbox-memory", "512M", "--sandbox-processes", "200")
if sys.platform == "linux" and os.geteuid() != 0:
    LIMITS += ("--sandbox-no-memory-limit",)

needs_sandbox = pytest.mark.skipif(bool(missing()), reason=missing())
