"""Whether a sandbox can be made on the machine that runs the tests, and with which limits."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache

import pytest

from flower_ldp.node.sandbox.filesystem_view import SandboxMissing


@cache
def missing() -> str:
    """Return what is missing for a sandbox; empty if nothing is."""
    if sys.platform != "linux":
        return "the sandbox is for Linux"
    from flower_ldp.node.sandbox.bubblewrap import find_bubblewrap
    from flower_ldp.node.sandbox.seccomp import app_filter

    try:
        program = find_bubblewrap()
        app_filter()
    except SandboxMissing as error:
        return str(error)
    # In a container that may make no namespaces it is installed and of no use.
    trial = [program, "--ro-bind", "/", "/", "--proc", "/proc", "--unshare-pid", "--unshare-net"]
    trial += [] if os.geteuid() == 0 else ["--unshare-user"]
    done = subprocess.run([*trial, "true"], capture_output=True, text=True, check=False)
    return done.stderr.strip() or "bubblewrap fails" if done.returncode else ""


_MAKE = """
from flower_ldp.node.sandbox.bubblewrap import make_group
make_group(1 << 30, 100).remove()
"""


@cache
def has_control_group() -> bool:
    """Return whether memory can be limited here."""
    if missing():
        return False
    # In a process of its own, as a node is: the second version of control groups moves it.
    done = subprocess.run([sys.executable, "-c", _MAKE], capture_output=True, check=False)
    return done.returncode == 0


#: Options of a sandboxed node: little enough that an app can be seen to reach its limits.
LIMITS: tuple[str, ...] = ("--sandbox-memory", "512M", "--sandbox-processes", "200")
if not has_control_group():
    LIMITS += ("--sandbox-no-memory-limit",)

needs_sandbox = pytest.mark.skipif(bool(missing()), reason=missing())
