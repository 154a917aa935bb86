"""The first program in the sandbox: gives up what is left of its rights, then becomes the app.

    python -m flower_ldp.node.sandbox.inside '{"uid": 61003, ...}' COMMAND ...

Only the standard library, and nothing here is trusted to the app: when it runs, this is gone.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import signal
import socket
import sys
from dataclasses import dataclass

from flower_ldp.node.sandbox.relay import serve, to_path

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_CAPBSET_DROP = 1, 4, 24
_EINVAL = 22
#: ``_LINUX_CAPABILITY_VERSION_3``, of this process; then the three sets, twice 32 bits each.
_CAPABILITIES_OF_THIS = (0x2008_0522, 0)
_NO_CAPABILITIES = (0,) * 6


@dataclass(frozen=True)
class Start:
    """What the first program does.

    Parameters
    ----------
    uid, gid : int
        Who the app is: root becomes it, anyone else already is.
    files, processes : int
        Limits, of each process and of the user.
    port : int
        On 127.0.0.1 in the sandbox, from which ``socket`` is reached.
    socket : str
        The way to the node.
    """

    uid: int
    gid: int
    files: int
    processes: int
    port: int
    socket: str


def main() -> None:
    """Do what the arguments say."""
    start = Start(**json.loads(sys.argv[1]))
    if os.geteuid() == 0:
        become(start.uid, start.gid)
    limit(start)
    os.umask(0o077)
    serve_in_background(start)
    os.chdir("/tmp")
    os.execvp(sys.argv[2], sys.argv[2:])


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


def limit(start: Start) -> None:
    """Set the limits that a process has by itself."""
    for kind, wanted in (
        (resource.RLIMIT_NOFILE, start.files),
        (resource.RLIMIT_NPROC, start.processes),
    ):
        _, highest = resource.getrlimit(kind)
        allowed = wanted if highest == resource.RLIM_INFINITY else min(wanted, highest)
        resource.setrlimit(kind, (allowed, allowed))


def serve_in_background(start: Start) -> None:
    """Relay a port of the sandbox's own network to the node's socket, in a process of its own."""
    server = socket.create_server(("127.0.0.1", start.port))
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
        serve(server, to_path(start.socket))
    os._exit(0)


if __name__ == "__main__":
    main()
