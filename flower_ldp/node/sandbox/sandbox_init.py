"""The first program in the sandbox: gives up its remaining rights, then becomes the app.

    python -m flower_ldp.node.sandbox.sandbox_init UID GID FILES PROCESSES PORT COMMAND ...

A second process relays the sandbox's one port to the node's socket. Only the standard library.
Nothing here is trusted to the app: when it runs, the first program is gone.
"""

import contextlib
import ctypes
import os
import resource
import signal
import socket
import sys
import threading

#: A path of a socket, or a host and port.
Address = str | tuple[str, int]
#: Where the sandbox has the socket to the node.
SOCKET = "/run/flower/node.sock"
#: Connections at a time. An app needs a handful; what comes beyond that waits.
AT_ONCE = 64
_CHUNK = 1 << 16
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_CAPBSET_DROP = 1, 4, 24
_EINVAL = 22
#: ``_LINUX_CAPABILITY_VERSION_3``, of this process; then the three sets, twice 32 bits each.
_CAPABILITIES_OF_THIS = (0x2008_0522, 0)
_NO_CAPABILITIES = (0,) * 6


def main() -> None:
    """Set user, group, limits and port, and run the command."""
    uid, gid, files, processes, port = map(int, sys.argv[1:6])
    if os.geteuid() == 0:  # else this is the user already
        become(uid, gid)
    limit(resource.RLIMIT_NOFILE, files)
    limit(resource.RLIMIT_NPROC, processes)
    os.umask(0o077)
    serve_in_background(port)
    os.chdir("/tmp")
    os.execvp(sys.argv[6], sys.argv[6:])


def become(uid: int, gid: int) -> None:
    """Become another user for good, and leave nothing by which a program could get rights."""
    libc = ctypes.CDLL(None, use_errno=True)
    capability = 0
    while libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) == 0:
        capability += 1
    if ctypes.get_errno() != _EINVAL:  # the number after the last capability
        raise OSError(ctypes.get_errno(), "a capability cannot be given up")
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    header = (ctypes.c_uint32 * 2)(*_CAPABILITIES_OF_THIS)
    if libc.capset(header, (ctypes.c_uint32 * 6)(*_NO_CAPABILITIES)) != 0:
        raise OSError(ctypes.get_errno(), "the capabilities cannot be given up")


def limit(kind: int, wanted: int) -> None:
    """Set a limit that each process has by itself."""
    _, highest = resource.getrlimit(kind)
    allowed = wanted if highest == resource.RLIM_INFINITY else min(wanted, highest)
    resource.setrlimit(kind, (allowed, allowed))


def serve_in_background(port: int) -> None:
    """Relay a port of the sandbox's own network to the node's socket, in its own process."""
    server = socket.create_server(("127.0.0.1", port))
    if os.fork():
        server.close()
        return
    with contextlib.suppress(BaseException):
        libc = ctypes.CDLL(None)
        libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # it ends with the app
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):  # the app's input is not for this process
            os.dup2(nothing, stream)
        serve(server, SOCKET)
    os._exit(0)


class Meter:
    """Counts the bytes that one app sends, so that it cannot fill the node's memory."""

    def __init__(self, largest: int) -> None:
        self._largest = self._left = largest
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
    server: socket.socket, to: Address, at_once: int = AT_ONCE, meter: Meter | None = None
) -> None:
    """Relay each connection to an address, until the server is closed.

    If ``to`` is not reached, the connection is closed. ``meter`` bounds the bytes from the server's
    side.
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
    """Copy until the source ends; then end the target, but not the way back."""
    with contextlib.suppress(OSError):
        while data := source.recv(_CHUNK):
            if meter is not None and not meter.take(len(data)):
                source.shutdown(socket.SHUT_RDWR)
                break
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)


if __name__ == "__main__":
    main()
