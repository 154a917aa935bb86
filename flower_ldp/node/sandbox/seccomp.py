"""The system calls that an app in the sandbox may make.

Namespaces hide the network, the files and the other processes. This filter forbids what they do not
cover (sockets of virtual machines, the keyring), ways out of them, reading other processes, and
large parts of the kernel that apps do not need.

=============================================  =============================================
call                                           answer
=============================================  =============================================
of another instruction set (32-bit, x32)       the process is killed
those from number 1024 on                      not permitted
newer than those that were read                "there is no such call"
``clone3``, whose flags a filter cannot read   the same: C libraries then use ``clone``
``clone``, ``unshare``, ``setns`` for a        not permitted
new namespace
sockets: families but AF_UNIX, AF_INET,        not permitted
AF_INET6 and NETLINK_ROUTE; raw sockets;
protocols but TCP and UDP
``ioctl`` that types into a terminal, or       not permitted
sets its line discipline
another limit on core dumps                    not permitted: see ``LARGEST_DUMP``
those of ``FORBIDDEN``                         not permitted
any other                                      allowed
=============================================  =============================================
"""

import errno
import tempfile
from collections.abc import Iterator
from itertools import product
from typing import Any

from flower_ldp.node.sandbox.filesystem_view import SandboxMissing

#: Calls that are never permitted, by what they are for.
_FORBIDDEN = {
    "other processes": "kcmp pidfd_getfd process_madvise process_mrelease process_vm_readv "
    "process_vm_writev ptrace userfaultfd",
    "namespaces and mounts": "chroot fsconfig fsmount fsopen fspick mount mount_setattr move_mount "
    "open_tree pivot_root setns umount2 unshare",
    "files by other ways than their path": "fanotify_init fanotify_mark lookup_dcookie "
    "name_to_handle_at nfsservctl open_by_handle_at quotactl quotactl_fd",
    "keys and secrets": "add_key keyctl memfd_secret request_key",
    "programs in the kernel": "bpf delete_module finit_module init_module io_uring_enter "
    "io_uring_register io_uring_setup kexec_file_load kexec_load uselib",
    "the processor": "ioperm iopl modify_ldt perf_event_open",
    "the machine": "acct adjtimex clock_adjtime clock_settime reboot setdomainname sethostname "
    "settimeofday swapoff swapon syslog",
}
FORBIDDEN = tuple(" ".join(_FORBIDDEN.values()).split())
#: Calls that are permitted with some arguments: see :func:`_permitted`.
JUDGED = ("clone", "ioctl", "personality", "prlimit64", "setrlimit", "socket", "socketpair")
#: The last call that was read when this was written: ``mseal``, Linux 6.10.
LAST_KNOWN = 462
#: Calls up to this one answer as on a kernel that lacks them, so that C libraries use older ones.
#: Those beyond it are not permitted; Linux adds fewer than ten calls a year.
LAST_NEWER = 1023
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
#: The low half of an argument: of most arguments judged here the kernel reads no more.
_LOW, _WHOLE = 0xFFFF_FFFF, 0xFFFF_FFFF_FFFF_FFFF
_UNKNOWN = -1  # of libseccomp, for a name
_NEEDED = "apt install libseccomp2 (2.5.3 or later)"
#: The number of an argument, a mask, and what the argument has to be under it.
Condition = tuple[int, int, int]


def app_filter() -> bytes:
    """Return the filter for this machine, as ``bwrap --seccomp`` reads it.

    Raises SandboxMissing if libseccomp is missing or too old, or does not fit this machine.
    """
    lib, numbers = _libseccomp(), call_numbers()
    try:
        rules = lib.SyscallFilter(lib.ERRNO(errno.EPERM))
        rules.set_attr(lib.Attr.ACT_BADARCH, lib.KILL_PROCESS)
        rules.set_attr(lib.Attr.CTL_OPTIMIZE, 2)  # searched as a tree, not in a row
        for call in set(range(LAST_KNOWN + 1)) - set(numbers.values()):
            rules.add_rule(lib.ALLOW, call)
        for call in (numbers["clone3"], *range(LAST_KNOWN + 1, LAST_NEWER + 1)):
            rules.add_rule(lib.ERRNO(errno.ENOSYS), call)
        for name, conditions in _permitted():
            arguments = [lib.Arg(at, lib.MASKED_EQ, mask, to) for at, mask, to in conditions]
            rules.add_rule(lib.ALLOW, numbers[name], *arguments)
        with tempfile.TemporaryFile() as file:
            rules.export_bpf(file)
            file.seek(0)
            return file.read()
    except OSError as error:
        raise SandboxMissing(f"libseccomp makes no filter ({error}): {_NEEDED}") from error


def call_numbers(architecture: int | None = None) -> dict[str, int]:
    """Return the numbers of ``FORBIDDEN``, ``JUDGED`` and ``clone3`` that the architecture has.

    ``architecture`` is one of libseccomp's, by default this machine's. Raises SandboxMissing if the
    sandbox does not know it, or libseccomp not one of the calls.
    """
    lib = _libseccomp()
    architecture = architecture or lib.system_arch()
    if architecture not in (lib.Arch.X86_64, lib.Arch.AARCH64):
        raise SandboxMissing("the sandbox knows system calls of x86_64 and aarch64 alone")
    calls = (*FORBIDDEN, *JUDGED, "clone3")
    numbers = {name: lib.resolve_syscall(architecture, name) for name in calls}
    unknown = [name for name, number in numbers.items() if number == _UNKNOWN]
    if unknown:
        raise SandboxMissing(f"libseccomp does not know {', '.join(unknown)}: {_NEEDED}")
    # Below 0 are calls that only other architectures have.
    return {name: number for name, number in numbers.items() if number >= 0}


def _libseccomp() -> Any:
    try:
        import pyseccomp
    except (ImportError, RuntimeError) as error:  # the latter without the shared library
        raise SandboxMissing(f"libseccomp is not installed: {_NEEDED}") from error
    return pyseccomp


def _permitted() -> Iterator[tuple[str, list[Condition]]]:
    """Yield calls with conditions on their arguments, under all of which they are permitted.

    Of ``clone``'s 64 bits of flags, all that ask for a namespace are low.
    """
    yield "clone", [(0, _NAMESPACES, 0)]
    for mask, block in _all_but(_TIOCSTI, _TIOCLINUX, _TIOCSETD):
        yield "ioctl", [(1, mask, block)]
    for personality in (_LINUX, _SAME_PERSONALITY):
        yield "personality", [(0, _LOW, personality)]
    for mask, block in _all_but(_RLIMIT_CORE):
        yield "setrlimit", [(0, mask, block)]
        yield "prlimit64", [(1, mask, block)]
    yield "prlimit64", [(2, _WHOLE, 0)]  # without a new limit, the old one is only read
    for call in ("socket", "socketpair"):
        # C libraries list a host's own interfaces so.
        yield call, [(0, _LOW, _AF_NETLINK), (2, _LOW, _NETLINK_ROUTE)]
        for kind in _TYPES:
            of_kind = (1, _TYPE_BITS, kind)
            yield call, [(0, _LOW, _AF_UNIX), of_kind]
            for family, protocol in product(_INTERNET, _PROTOCOLS):
                yield call, [(0, _LOW, family), of_kind, (2, _LOW, protocol)]


def _all_but(*values: int) -> set[tuple[int, int]]:
    """Return blocks, as mask and content, that hold every 32-bit number but these.

    libseccomp compares an argument once in a rule, so "none of these" is no rule. From some bit
    upwards, a block's numbers equal one of the values with that bit turned.
    """
    found = set()
    for bit in range(32):
        mask = _LOW >> bit << bit
        near = {value & mask for value in values}
        found |= {(mask, one ^ 1 << bit) for one in near if one ^ 1 << bit not in near}
    return found
