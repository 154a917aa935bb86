"""A slow link: relays TCP connections with a delay and at a limited rate, both ways.

TLS passes through as bytes, and the certificate is the SuperLink's: it names 127.0.0.1 and no port.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
from collections.abc import Iterator

_CHUNK = 256
_SLICE = 0.05


class SlowLink:
    """Listens on a port of its own and relays to another; use :func:`slow_link`.

    Parameters
    ----------
    target : int
        Port on 127.0.0.1.
    delay : float
        Seconds that each byte is under way, in each direction.
    rate : float
        Bytes a second, of each connection and in each direction. Both may be set at any time.
    """

    def __init__(self, target: int, delay: float, rate: float) -> None:
        self.delay, self.rate = delay, rate
        self.port = 0
        self._target = target
        self._loop = asyncio.new_event_loop()
        listening = threading.Event()
        self._thread = threading.Thread(target=self._serve, args=(listening,), daemon=True)
        self._thread.start()
        listening.wait()

    def close(self) -> None:
        """Take no more connections and cut those that there are."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _serve(self, listening: threading.Event) -> None:
        asyncio.set_event_loop(self._loop)
        start = asyncio.start_server(self._connected, "127.0.0.1", 0)
        server = self._loop.run_until_complete(start)
        self.port = int(server.sockets[0].getsockname()[1])
        listening.set()
        self._loop.run_forever()
        server.close()
        left = asyncio.all_tasks(self._loop)
        for task in left:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        self._loop.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
        try:
            await asyncio.gather(self._relay(reader, far_writer), self._relay(far_reader, writer))
        except OSError:
            pass
        finally:
            for one in (writer, far_writer):
                one.close()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry one direction: what is read now is due a delay later, and takes its turn."""
        due: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(maxsize=1_024)
        carrying = asyncio.ensure_future(self._deliver(due, writer))
        try:
            while data := await reader.read(_CHUNK):
                await due.put((self._loop.time(), data))
            await due.put((self._loop.time(), b""))
            await carrying
        finally:
            carrying.cancel()

    async def _deliver(
        self, due: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter
    ) -> None:
        while True:
            sent, data = await due.get()
            # In slices, so that a link that is made faster is faster at once.
            while (left := sent + self.delay - self._loop.time()) > 0:
                await asyncio.sleep(min(left, _SLICE))
            left = float(len(data))
            while left > 0 and math.isfinite(rate := self.rate):
                wait = min(left / rate, _SLICE)
                await asyncio.sleep(wait)
                left -= wait * rate
            if not data:
                writer.write_eof()
                return
            writer.write(data)
            await writer.drain()


@contextlib.contextmanager
def slow_link(target: int, *, delay: float, rate: float) -> Iterator[SlowLink]:
    """Open a slow link to the port ``target`` for the time of a ``with`` block."""
    link = SlowLink(target, delay, rate)
    try:
        yield link
    finally:
        link.close()
