"""Which system calls an app in the sandbox may make.

Namespaces take the network, the files and the other processes away. This takes what no namespace
covers (sockets of virtual machines, the keyring), what would let an app out of them (new
namespaces, mounts), what reads other processes, and large parts of the kernel that apps do not
need.

=============================================  =============================================
call                                           answer
=============================================  =============================================
of another instruction set (32-bit, x32)       the process is killed
newer than those that were read                "there is no such call"
``clone3``, whose flags a filter cannot read   the same: C libraries then use ``clone``
``clone``, ``unshare``, ``setns`` for a        not permitted
new namespace
sockets: families but AF_UNIX, AF_INET,        not permitted
AF_INET6 and NETLINK_ROUTE; raw sockets;
protocols but TCP and UDP
``ioctl`` that types into a terminal, or       not permitted
sets its line discipline
another limit on core dumps                    not permitted: see ``limits.no_dumps``
those of ``FORBIDDEN``                         not permitted
any other                                      allowed
=============================================  =============================================
"""

from __future__ import annotations

import errno

from flower_ldp.node.sandbox.bpf import (
    JUMP_AT_LEAST,
    JUMP_EQUAL,
    Jump,
    Label,
    Load,
    Mask,
    Return,
    Step,
    assemble,
)
from flower_ldp.node.sandbox.syscalls import LAST_KNOWN, Machine

KILL = 0x8000_0000  # SECCOMP_RET_KILL_PROCESS
ALLOW = 0x7FFF_0000  # SECCOMP_RET_ALLOW
NOT_PERMITTED = 0x0005_0000 | errno.EPERM  # SECCOMP_RET_ERRNO
NO_SUCH_CALL = 0x0005_0000 | errno.ENOSYS

#: Calls that are judged by their arguments, or answered otherwise than by "not permitted".
JUDGED = (
    "clone",
    "clone3",
    "ioctl",
    "personality",
    "prlimit64",
    "setrlimit",
    "socket",
    "socketpair",
)
_NUMBER, _AUDIT = 0, 4  # offsets of ``struct seccomp_data``
_X32 = 0x4000_0000
#: Bits of ``clone`` that ask for a new namespace: mount, cgroup, UTS, IPC, user, PID, network, time
#: (its bit is that of a signal in clone's flags, and asks for nothing there).
_NAMESPACES = 0x0002_0000 | 0x0200_0000 | 0x0400_0000 | 0x0800_0000
_NAMESPACES |= 0x1000_0000 | 0x2000_0000 | 0x4000_0000
_AF_UNIX, _INTERNET = 1, (2, 10)  # AF_INET and AF_INET6
FAMILIES = (_AF_UNIX, *_INTERNET)
_TYPES = (1, 2, 5)  # SOCK_STREAM, SOCK_DGRAM, SOCK_SEQPACKET
_TYPE_BITS = 0xF  # of a socket's type; the rest are SOCK_CLOEXEC and SOCK_NONBLOCK
_PROTOCOLS = (0, 6, 17)  # the usual one, TCP, UDP: others are modules that the kernel would load
_TIOCSTI, _TIOCLINUX, _TIOCSETD = 0x5412, 0x541C, 0x5423
_RLIMIT_CORE = 4
_AF_NETLINK, _NETLINK_ROUTE = 16, 0
_SAME_PERSONALITY, _LINUX = 0xFFFF_FFFF, 0


def _argument(number: int, half: int = 0) -> Load:
    """Load the low half of an argument: of most arguments judged here the kernel reads no more.

    ``clone`` takes 64 bits of flags on 64-bit machines; all that ask for a namespace are low.
    """
    return Load(16 + 8 * number + 4 * half)


def forbidden(machine: Machine) -> dict[str, int]:
    """Return the calls that are never permitted."""
    return {name: one for name, one in machine.numbers.items() if name not in JUDGED}


def app_filter(machine: Machine) -> bytes:
    """Return the filter for an app's processes, as ``bwrap --seccomp`` reads it."""
    return assemble(_steps(machine))


def _steps(machine: Machine) -> list[Step]:
    numbers = machine.numbers
    steps: list[Step] = [
        Load(_AUDIT),
        Jump(JUMP_EQUAL, machine.audit, "this instruction set"),
        Return(KILL),
        Label("this instruction set"),
        Load(_NUMBER),
    ]
    if machine.x32:
        steps += [Jump(JUMP_AT_LEAST, _X32, "kill")]
    steps += [
        Jump(JUMP_AT_LEAST, LAST_KNOWN + 1, "no such call"),
        Jump(JUMP_EQUAL, numbers["clone3"], "no such call"),
        *(
            Jump(JUMP_EQUAL, numbers[name], name)
            for name in ("clone", "ioctl", "personality", "prlimit64", "setrlimit")
        ),
        Jump(JUMP_EQUAL, numbers["socket"], "socket"),
        Jump(JUMP_EQUAL, numbers["socketpair"], "socket"),
        *(Jump(JUMP_EQUAL, one, "not permitted") for one in sorted(forbidden(machine).values())),
        Return(ALLOW),
    ]
    steps += _clone() + _ioctl() + _personality() + _limits() + _socket()
    return [
        *steps,
        Label("allow"),
        Return(ALLOW),
        Label("no such call"),
        Return(NO_SUCH_CALL),
        Label("kill"),
        Return(KILL),
        Label("not permitted"),
        Return(NOT_PERMITTED),
    ]


def _clone() -> list[Step]:
    return [
        Label("clone"),
        _argument(0),
        Mask(_NAMESPACES),
        Jump(JUMP_EQUAL, 0, "allow"),
        Return(NOT_PERMITTED),
    ]


def _ioctl() -> list[Step]:
    return [
        Label("ioctl"),
        _argument(1),
        Jump(JUMP_EQUAL, _TIOCSTI, "not permitted"),
        Jump(JUMP_EQUAL, _TIOCLINUX, "not permitted"),
        Jump(JUMP_EQUAL, _TIOCSETD, "not permitted"),
        Return(ALLOW),
    ]


def _personality() -> list[Step]:
    return [
        Label("personality"),
        _argument(0),
        Jump(JUMP_EQUAL, _LINUX, "allow"),
        Jump(JUMP_EQUAL, _SAME_PERSONALITY, "allow"),
        Return(NOT_PERMITTED),
    ]


def _limits() -> list[Step]:
    return [
        Label("setrlimit"),
        _argument(0),
        Jump(JUMP_EQUAL, _RLIMIT_CORE, "not permitted"),
        Return(ALLOW),
        Label("prlimit64"),
        _argument(1),
        Jump(JUMP_EQUAL, _RLIMIT_CORE, "a new limit"),
        Return(ALLOW),
        # Without one, whose address both halves hold, the limit is only read.
        Label("a new limit"),
        _argument(2),
        Jump(JUMP_AT_LEAST, 1, "not permitted"),
        _argument(2, 1),
        Jump(JUMP_AT_LEAST, 1, "not permitted"),
        Return(ALLOW),
    ]


def _socket() -> list[Step]:
    return [
        Label("socket"),
        _argument(0),
        Jump(JUMP_EQUAL, _AF_NETLINK, "netlink"),
        *(Jump(JUMP_EQUAL, family, "protocol") for family in _INTERNET),
        Jump(JUMP_EQUAL, _AF_UNIX, "type"),
        Return(NOT_PERMITTED),
        Label("protocol"),
        _argument(2),
        *(Jump(JUMP_EQUAL, protocol, "type") for protocol in _PROTOCOLS),
        Return(NOT_PERMITTED),
        Label("type"),
        _argument(1),
        Mask(_TYPE_BITS),
        *(Jump(JUMP_EQUAL, kind, "allow") for kind in _TYPES),
        Return(NOT_PERMITTED),
        # C libraries list a host's own interfaces so.
        Label("netlink"),
        _argument(2),
        Jump(JUMP_EQUAL, _NETLINK_ROUTE, "allow"),
        Return(NOT_PERMITTED),
    ]
