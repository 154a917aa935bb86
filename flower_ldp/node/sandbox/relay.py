"""Copies bytes between a listening socket and another: outside to the node, inside to the socket.

Only the standard library: it runs inside the sandbox too, in the app's place.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable

#: Connections at a time. An app needs a handful; what comes beyond that waits.
AT_ONCE = 64
_CHUNK = 1 << 16


def serve(
    server: socket.socket, connect: Callable[[], socket.socket], at_once: int = AT_ONCE
) -> None:
    """Relay each connection to what ``connect`` returns, until the server is closed.

    Parameters
    ----------
    server : socket
        Listens.
    connect : callable
        Opens the other side; an OSError closes the connection.
    at_once : int
        Largest number of connections at a time.
    """
    free = threading.BoundedSemaphore(at_once)
    while True:
        free.acquire()
        try:
            near, _ = server.accept()
        except OSError:
            return
        threading.Thread(target=_relay, args=(near, connect, free), daemon=True).start()


def to_port(port: int) -> Callable[[], socket.socket]:
    """Return what connects to a port of 127.0.0.1."""
    return lambda: socket.create_connection(("127.0.0.1", port))


def to_path(path: str) -> Callable[[], socket.socket]:
    """Return what connects to a socket in the file system."""

    def connect() -> socket.socket:
        one = socket.socket(socket.AF_UNIX)
        try:
            one.connect(path)
        except OSError:
            one.close()
            raise
        return one

    return connect


def _relay(
    near: socket.socket, connect: Callable[[], socket.socket], free: threading.BoundedSemaphore
) -> None:
    try:
        with near, contextlib.suppress(OSError), connect() as far:
            back = threading.Thread(target=_copy, args=(far, near), daemon=True)
            back.start()
            _copy(near, far)
            back.join()
    finally:
        free.release()


def _copy(source: socket.socket, target: socket.socket) -> None:
    """Copy until the source ends; then end the target, but not what comes back from it."""
    with contextlib.suppress(OSError):
        while data := source.recv(_CHUNK):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)
