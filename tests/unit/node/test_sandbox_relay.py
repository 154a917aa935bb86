"""The relay between the sandbox and the node: every byte, both ways, and no more at a time."""

from __future__ import annotations

import hashlib
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from flower_ldp.node.sandbox.sandbox_init import AT_ONCE, Meter, serve

if not hasattr(socket, "AF_UNIX") or sys.platform == "win32":
    pytest.skip("no sockets in the file system", allow_module_level=True)


def everything(one: socket.socket) -> bytes:
    return b"".join(iter(lambda: one.recv(65536), b""))


@contextmanager
def listening(work: Callable[[socket.socket], None], server: socket.socket) -> Iterator[None]:
    with server:
        threading.Thread(target=work, args=(server,), daemon=True).start()
        yield


def digests(server: socket.socket) -> None:
    """Answer each connection with the digest of all that it sent, and as many bytes back."""
    while True:
        try:
            one, _ = server.accept()
        except OSError:
            return
        with one:
            got = everything(one)
            one.sendall(hashlib.sha256(got).digest() + got[::-1])


@contextmanager
def two_relays(folder: Path, at_once: int = AT_ONCE, meter: Meter | None = None) -> Iterator[int]:
    """Put both relays between a port and a server: one as inside, one as outside."""
    far = socket.create_server(("127.0.0.1", 0))
    middle = socket.socket(socket.AF_UNIX)
    middle.bind(str(folder / "s"))
    middle.listen()
    near = socket.create_server(("127.0.0.1", 0))
    outside = far.getsockname()
    with (
        listening(digests, far),
        listening(lambda one: serve(one, outside, at_once, meter), middle),
        listening(lambda one: serve(one, str(folder / "s")), near),
    ):
        yield near.getsockname()[1]


def ask(port: int, sent: bytes) -> bytes:
    def send() -> None:
        with suppress(OSError):  # whoever waits for the answer sees it
            one.sendall(sent)
            one.shutdown(socket.SHUT_WR)

    with socket.create_connection(("127.0.0.1", port), 20) as one:
        sending = threading.Thread(target=send)
        sending.start()
        got = everything(one)
        sending.join()
        return got


@pytest.mark.parametrize("size", [0, 1, 65_537, 5_000_000])
def test_all_bytes_arrive_both_ways_though_one_side_ends_first(size: int, tmp_path: Path) -> None:
    sent = (b"0123456789abcdef" * (size // 16 + 1))[:size]
    with two_relays(tmp_path) as port:
        assert ask(port, sent) == hashlib.sha256(sent).digest() + sent[::-1]


def test_more_connections_than_at_once_wait_and_all_are_served(tmp_path: Path) -> None:
    with two_relays(tmp_path, at_once=2) as port:
        idle = [socket.create_connection(("127.0.0.1", port)) for _ in range(2)]
        got: list[bytes] = []
        waiting = threading.Thread(target=lambda: got.append(ask(port, b"later")))
        waiting.start()
        waiting.join(0.3)
        assert got == []
        for one in idle:
            one.close()
        waiting.join(20)
        assert got == [hashlib.sha256(b"later").digest() + b"retal"]


def test_an_app_sends_so_many_bytes_in_all_and_the_next_one_as_many(tmp_path: Path) -> None:
    meter = Meter(1_000_000)
    with two_relays(tmp_path, meter=meter) as port:
        for _ in range(3):
            meter.begin()
            for _ in range(2):
                sent = bytes(400_000)
                assert ask(port, sent) == hashlib.sha256(sent).digest() + sent
            # What is beyond ends the connection, now and from here on.
            for _ in range(2):
                with pytest.raises((OSError, AssertionError)):
                    assert len(ask(port, sent)) == 32 + len(sent)


def test_a_node_that_is_gone_ends_the_connection(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as near:
        threading.Thread(target=serve, args=(near, str(tmp_path / "nowhere")), daemon=True).start()
        for _ in range(100):  # and gives its place back
            with socket.create_connection(near.getsockname(), 20) as one:
                assert everything(one) == b""
