"""Whether a sandbox can be made on the machine that runs the tests."""

from __future__ import annotations

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


needs_sandbox = pytest.mark.skipif(bool(missing()), reason=missing())
