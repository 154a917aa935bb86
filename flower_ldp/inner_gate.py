"""Whether a gate in this process steps aside, because the node that started it privatizes.

Only :mod:`flower_ldp.node.app` sets this, in the process of an app and before the app is loaded. A
server reaches it by no message and no configuration, and no variable of a shell is read.
"""

from __future__ import annotations

_aside: list[bool] = []


def step_aside() -> None:
    """Have every ``LdpMod`` of this process pass messages on as they are."""
    _aside.append(True)


def is_aside() -> bool:
    """Return whether the node privatizes in the place of this process's gates."""
    return bool(_aside)
