"""A wire tap: relays TCP connections and keeps every byte that the clients send."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path


class Tap:
    """Listens on a port of its own and relays to another; use :func:`tapped`."""

    def __init__(self, target: int, file: Path) -> None:
        self._target = target
        self._lock = threading.Lock()
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._server.getsockname()[1])
        self.path = file
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def sent(self) -> bytes:
        """What the clients have sent so far."""
        with self._lock:
            return self.path.read_bytes()

    def close(self) -> None:
        """Take no more connections."""
        self._server.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._server.accept()
                threading.Thread(target=self._relay, args=(client,), daemon=True).start()

    def _relay(self, client: socket.socket) -> None:
        with (
            contextlib.suppress(OSError),
            client,
            socket.create_connection(("127.0.0.1", self._target)) as server,
        ):
            back = threading.Thread(target=self._copy, args=(server, client, False), daemon=True)
            back.start()
            self._copy(client, server, True)

    def _copy(self, source: socket.socket, target: socket.socket, kept: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65_536):
                if kept:
                    with self._lock, self.path.open("ab") as file:
                        file.write(data)
                target.sendall(data)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)


@contextlib.contextmanager
def tapped(target: int, file: Path) -> Iterator[Tap]:
    """Tap the port ``target`` for the time of a ``with`` block."""
    tap = Tap(target, file)
    try:
        yield tap
    finally:
        tap.close()
