"""Under which user the other end of a local connection is: the kernel's table says.

With ``--isolation process`` somebody else starts the app executor, and the node cannot see who.
But it sees who calls: a caller of the node's own user is an app, or an executor that will start
apps, that can read the node's key.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))


def owner_of(host: str, port: int, tables: tuple[Path, ...] = _TABLES) -> int | None:
    """Return the user of the socket that has this address on this machine.

    Parameters
    ----------
    host, port : str, int
        The socket's own address.
    tables : tuple of Path
        The kernel's, of this process's network.

    Returns
    -------
    int or None
        None if no socket of this network has the address, as from another machine or container.
    """
    wanted = (_plain(ipaddress.ip_address(host)), port)
    for table in tables:
        for address, user in _rows(table):
            if address == wanted:
                return user
    return None


def can_read_the_node(user: int | None) -> bool:
    """Return whether a user can read this node's files and memory: its own, and root."""
    return user is not None and user in (0, os.geteuid())


def _rows(table: Path) -> Iterator[tuple[tuple[Any, int], int]]:
    if not table.exists():
        return
    for line in table.read_text().splitlines()[1:]:
        fields = line.split()
        packed, _, port = fields[1].partition(":")
        # Words of 32 bits, each in the order of this machine (all that the sandbox knows: little).
        words = (bytes.fromhex(packed[at : at + 8])[::-1] for at in range(0, len(packed), 8))
        address = ipaddress.ip_address(b"".join(words))
        if fields[9] != "0":  # a socket that its process has closed is nobody's
            yield (_plain(address), int(port, 16)), int(fields[7])


def _plain(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    mapped = getattr(address, "ipv4_mapped", None)
    return address if mapped is None else mapped


@dataclass(frozen=True)
class OwnUserWatch:
    """A layer around the node's runtime API that notices callers of the node's own user, and root.

    Parameters
    ----------
    app : callable
        The ASGI application.
    noticed : callable
        Is called, with what was seen, before such a call is let through; ends the process.
    """

    app: Callable[..., Any]
    noticed: Callable[[str], object]

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Look at a call, and pass it on."""
        # Executors and apps post; whoever asks for the node's health gets.
        if scope["type"] == "http" and scope["method"] != "GET" and scope.get("client"):
            host, port = scope["client"]
            if os.name == "posix" and can_read_the_node(owner_of(host, port)):
                self.noticed(f"a caller of {scope['path']} is of this node's own user, or root")
        await self.app(scope, receive, send)
