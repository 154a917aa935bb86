"""Copies bytes between a listening socket and another: outside to the node, inside to the socket.

Only the standard library: it runs inside the sandbox too, in the app's place.
"""

from __future__ import annotations

import contextlib
import socket
import threading

#: Connections at a time. An app needs a handful; what comes beyond that waits.
AT_ONCE = 64
_CHUNK = 1 << 16


class Meter:
    """Counts the bytes that one app sends, so that it cannot fill the node's memory."""

    def __init__(self, largest: int) -> None:
        self._largest = largest
        self._left = largest
        self._lock = threading.Lock()

    def begin(self) -> None:
        """Begin to count for another app."""
        with self._lock:
            self._left = self._largest

    def take(self, size: int) -> bool:
        """Count some bytes; return whether they may be sent."""
        with self._lock:
            self._left -= size
            return self._left >= 0


def serve(
    server: socket.socket,
    to: str | tuple[str, int],
    at_once: int = AT_ONCE,
    meter: Meter | None = None,
) -> None:
    """Relay each connection to an address, until the server is closed.

    Parameters
    ----------
    server : socket
        Listens.
    to : str or (str, int)
        A socket in the file system, or a host and port; a connection is closed where it is not
        reached.
    at_once : int
        Largest number of connections at a time.
    meter : Meter, optional
        Counts what comes from the server's side; without one there is no limit.
    """
    family = socket.AF_UNIX if isinstance(to, str) else socket.AF_INET
    free = threading.BoundedSemaphore(at_once)

    def relay(near: socket.socket) -> None:
        try:
            with near, contextlib.suppress(OSError), socket.socket(family) as far:
                far.connect(to)
                back = threading.Thread(target=_copy, args=(far, near), daemon=True)
                back.start()
                _copy(near, far, meter)
                back.join()
        finally:
            free.release()

    while True:
        free.acquire()
        try:
            near, _ = server.accept()
        except OSError:
            return
        threading.Thread(target=relay, args=(near,), daemon=True).start()


def _copy(source: socket.socket, target: socket.socket, meter: Meter | None = None) -> None:
    """Copy until the source ends; then end the target, but not what comes back from it."""
    with contextlib.suppress(OSError):
        while data := source.recv(_CHUNK):
            if meter is not None and not meter.take(len(data)):
                source.shutdown(socket.SHUT_RDWR)
                break
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)
