"""Tries every way out of the sandbox, from inside, and prints the findings as JSON.

    python -m flower_ldp.node.sandbox.escape_test  < attempts

Only the standard library. Tests run it outside of a sandbox, where the ways are open.
"""

import contextlib
import ctypes
import errno
import json
import mmap
import os
import resource
import signal
import socket
import stat
import sys
import termios
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any

from flower_ldp.node.sandbox.filesystem_view import entries, mount_points, speaks
from flower_ldp.node.sandbox.seccomp import FAMILIES, JUDGED

#: Documentation addresses (RFC 5737 and 3849): nothing is sent, the kernel looks for a route.
_NOWHERE = ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1"))
_AF_NETLINK, _AF_PACKET, _AF_VSOCK = 16, 17, 40
_LAST_FAMILY, _LAST_NETLINK = 50, 22
_STREAM, _DATAGRAM, _RAW = socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW
_TYPES = (_STREAM, _DATAGRAM, _RAW, socket.SOCK_SEQPACKET)
_NEW_USER = 0x1000_0000
_PRIVATE = ("/tmp", "/dev/shm")
_DEVICES = ("full", "null", "random", "tty", "urandom", "zero", "pts/ptmx")
#: ``mov eax, 20; int 0x80; ret``: getpid by the 32-bit interface of x86.
_OLD_CALL = bytes((0xB8, 20, 0, 0, 0, 0xCD, 0x80, 0xC3))
_ANSWER = b"node"

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Attempts:
    """The ways out to try.

    Only ``port``, which leads to the node, must be open. ``addresses``, ``abstract``, ``hidden``
    and ``namespaces`` are outside. ``environment``, ``devices``, ``limits`` and ``socket`` are all
    that an app may have of these. ``calls`` are not simply allowed. Every file is looked at if
    ``socket`` is not "".
    """

    port: int
    addresses: list[list[Any]]
    abstract: str
    hidden: dict[str, str]
    namespaces: dict[str, str]
    environment: list[str]
    devices: list[str]
    limits: dict[str, int]
    calls: dict[str, int]
    socket: str


@dataclass(frozen=True)
class Finding:
    """A way out, whether it is open, and what was seen."""

    way: str
    is_open: bool
    seen: str


def main() -> None:
    """Try what the standard input says; print whether the node answers, and what is open."""
    attempts = Attempts(**json.loads(sys.stdin.read()))
    found = [_descriptors(), *_network(attempts), *_sockets(), *_files(attempts)]
    found += [*_processes(attempts), *_calls(attempts.calls), *_rights(attempts)]
    said = [asdict(one) for one in found]
    print(json.dumps({"answers": _answers(attempts.port), "findings": said}))


def judge(way: str, ways_in: list[str], otherwise: str = "none") -> Finding:
    """Return a finding, open if something was found."""
    return Finding(way, bool(ways_in), ", ".join(sorted(ways_in)[:8]) or otherwise)


def attempt(way: str, what: Callable[..., object], *arguments: object) -> Finding:
    """Return a finding, open if the call raises no OSError."""
    try:
        what(*arguments)
    except OSError as error:
        return Finding(way, False, error.strerror or str(error))
    return Finding(way, True, "it works")


def _descriptors() -> Finding:
    found = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            target = os.readlink(f"/proc/self/fd/{name}")
            allowed = int(name) <= 2 and (target.startswith("pipe:") or target == os.devnull)
            if not allowed and target != f"/proc/{os.getpid()}/fd":
                found.append(target)
    return judge("open files of the node's", found)


def _answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 5) as one:
        return one.recv(len(_ANSWER)) == _ANSWER
    return False


def _network(attempts: Attempts) -> Iterator[Finding]:
    for host, port in attempts.addresses:
        yield attempt(f"connect to {host} outside", _connect, socket.AF_INET, _STREAM, (host, port))
    for family, address in _NOWHERE:
        yield attempt(f"a route to {address}", _connect, family, _DATAGRAM, (address, 9))
    yield attempt("resolve example.org", socket.getaddrinfo, "example.org", 80)
    interfaces = [name for _, name in socket.if_nameindex() if name != "lo"]
    yield judge("network interfaces", interfaces, "lo alone")
    abstract = f"\0{attempts.abstract}"
    yield attempt("an abstract socket outside", _connect, socket.AF_UNIX, _STREAM, abstract)


def _connect(family: int, kind: int, address: tuple[str, int] | str) -> None:
    with socket.socket(family, kind) as one:
        one.settimeout(2)
        one.connect(address)


def _sockets() -> Iterator[Finding]:
    known = (*FAMILIES, _AF_NETLINK, _AF_VSOCK, _AF_PACKET)
    others = [one for one in range(1, _LAST_FAMILY) if one not in known]
    for way, families, types, protocols in (
        ("AF_VSOCK", [_AF_VSOCK], _TYPES, [0]),
        ("AF_PACKET", [_AF_PACKET], _TYPES, [0]),
        ("sockets of any other family", others, _TYPES, [0]),
        ("protocols but TCP and UDP", [socket.AF_INET], _TYPES, [33, 132, 136, 262]),
        ("raw sockets", FAMILIES[1:], [_RAW], [1, 58, 255]),
        ("netlink but for routes", [_AF_NETLINK], [_RAW], range(1, _LAST_NETLINK)),
    ):
        found = []
        for family, kind, protocol in product(families, types, protocols):
            with contextlib.suppress(OSError), socket.socket(family, kind, protocol):
                found.append(f"family {family:d} type {kind:d} protocol {protocol}")
        yield judge(way, found)


def _files(attempts: Attempts) -> Iterator[Finding]:
    for name, path in attempts.hidden.items():
        yield attempt(f"{name}: {path}", os.lstat, path)
    yield judge("places to write, but for a private /tmp", list(_writable()))
    devices = {f"/dev/{name}" for name in _DEVICES} | set(attempts.devices)
    seen = set(_special("/dev", stat.S_ISCHR, stat.S_ISBLK))
    yield judge("devices", sorted(seen - devices), "as usual, and those named")
    if attempts.socket:
        speaking = set(_special("/", stat.S_ISSOCK, stat.S_ISFIFO)) - {attempts.socket}
        yield judge("sockets and pipes among the files", sorted(speaking))


def _writable() -> Iterator[str]:
    """Yield the mounts in which a file can be made."""
    for place in sorted(set(mount_points()) - set(_PRIVATE)):
        name = os.path.join(place, f".flower-ldp-probe-{os.getpid()}")
        with contextlib.suppress(OSError):
            os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            os.unlink(name)
            yield place


def _special(top: str, *kinds: Callable[[int], bool]) -> Iterator[str]:
    for entry in entries(top, but=("/proc", "/sys")):
        with contextlib.suppress(OSError):
            mode = entry.stat(follow_symlinks=False).st_mode if speaks(entry) else 0
            if any(kind(mode) for kind in kinds):
                yield entry.path


def _processes(attempts: Attempts) -> Iterator[Finding]:
    own = {name: os.readlink(f"/proc/self/ns/{name}") for name in attempts.namespaces}
    shared = [name for name, outside in attempts.namespaces.items() if own[name] == outside]
    yield judge("namespaces shared with the node", shared)
    strangers, roots = [], []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
            command = file.read()
            if b"flower_ldp.node.sandbox." not in command:
                strangers.append(f"{pid} {command[:40]!r}")
        with contextlib.suppress(OSError):
            if not os.path.samestat(os.stat(f"/proc/{pid}/root/"), os.stat("/")):
                roots.append(pid)
    yield judge("processes but the sandbox's own", strangers)
    yield judge("roots of other processes", roots)


def _calls(numbers: dict[str, int]) -> Iterator[Finding]:
    refused = [name for name in numbers if name not in JUDGED]
    error_of = {name: _errno(numbers[name], *[-1] * 6) for name in refused}
    permitted = [name for name in refused if error_of[name] not in (errno.EPERM, errno.ENOSYS)]
    some = "ptrace, keyctl, bpf, mount, unshare"
    yield judge(f"{some} and {len(refused) - 5} more calls", permitted, "none permitted")
    new_user = _errno(numbers["clone"], _NEW_USER | signal.SIGCHLD)
    yield Finding("a user namespace by clone", new_user == 0, os.strerror(new_user))
    for way, call, arguments in (
        ("typing into a terminal", "ioctl", (0, termios.TIOCSTI)),
        ("a terminal's line discipline", "ioctl", (0, termios.TIOCSETD)),
        ("another limit on core dumps", "prlimit64", (0, resource.RLIMIT_CORE, -1)),
    ):
        error = _errno(numbers[call], *arguments)
        yield Finding(way, error != errno.EPERM, os.strerror(error))
    if os.uname().machine == "x86_64":
        yield _survives("a 32-bit call", _old_call)
        yield _survives("an x32 call", lambda: _errno(0x4000_0000 | 39) == 0)


def _errno(number: int, *arguments: int) -> int:
    """Make a system call; return its error, 0 if it worked. A child that it makes ends at once."""
    parent = os.getpid()
    given = (number, *arguments, *[0] * 6)[:7]
    result = _libc.syscall(*map(ctypes.c_long, given))
    if os.getpid() != parent:
        os._exit(0)
    return ctypes.get_errno() if result == -1 else 0


def _survives(way: str, what: Callable[[], bool]) -> Finding:
    """Try in a child, which the kernel may kill for it."""
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            os._exit(0 if what() else 1)
        os._exit(1)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return Finding(way, False, f"killed by {signal.Signals(os.WTERMSIG(status)).name}")
    works = os.WEXITSTATUS(status) == 0
    return Finding(way, works, "it works" if works else "no such call")


def _old_call() -> bool:
    code = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    code.write(_OLD_CALL)
    place = ctypes.addressof(ctypes.c_char.from_buffer(code))
    return int(ctypes.CFUNCTYPE(ctypes.c_long)(place)()) > 0


def _rights(attempts: Attempts) -> Iterator[Finding]:
    with open("/proc/self/status", encoding="utf-8") as file:
        status = dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
    capabilities = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
    yield judge("capabilities", [name for name in capabilities if int(status[name], 16)])
    expected = {"NoNewPrivs": "1", "Seccomp": "2"}
    lacking = [name for name, value in expected.items() if status[name] != value]
    yield judge("rights by programs that give some", lacking, "no new privileges, a filter")
    yield attempt("become root", os.setuid, 0)
    others = [str(group) for group in os.getgroups() if group != os.getgid()]
    yield judge("groups", others if os.getuid() else ["root"])
    unknown = [name for name in os.environ if name not in attempts.environment]
    yield judge("variables of the node's", unknown)
    highest = {name: resource.getrlimit(getattr(resource, name))[1] for name in attempts.limits}
    beyond = [name for name, most in attempts.limits.items() if not 0 <= highest[name] <= most]
    yield judge("processes, files and dumps without a limit", beyond, "all limited")


if __name__ == "__main__":
    main()
