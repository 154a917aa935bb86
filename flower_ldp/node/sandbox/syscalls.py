"""Numbers of system calls on the machines that the sandbox knows.

Source: ``asm/unistd_64.h`` (x86_64) and ``asm-generic/unistd.h`` (aarch64) of Linux; a test
compares them where the headers are installed.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass

#: The last call that was read when this was written (``mseal``, Linux 6.10): later ones answer
#: as on a kernel that lacks them.
LAST_KNOWN = 462

_NUMBERS: Mapping[str, tuple[int, int | None]] = {
    "acct": (163, 89),
    "add_key": (248, 217),
    "adjtimex": (159, 171),
    "bpf": (321, 280),
    "chroot": (161, 51),
    "clock_adjtime": (305, 266),
    "clock_settime": (227, 112),
    "clone": (56, 220),
    "clone3": (435, 435),
    "delete_module": (176, 106),
    "fanotify_init": (300, 262),
    "fanotify_mark": (301, 263),
    "finit_module": (313, 273),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "init_module": (175, 105),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425),
    "ioctl": (16, 29),
    "ioperm": (173, None),
    "iopl": (172, None),
    "kcmp": (312, 272),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "lookup_dcookie": (212, 18),
    "memfd_secret": (447, 447),
    "modify_ldt": (154, None),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "name_to_handle_at": (303, 264),
    "nfsservctl": (180, 42),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "perf_event_open": (298, 241),
    "personality": (135, 92),
    "pidfd_getfd": (438, 438),
    "pivot_root": (155, 41),
    "prlimit64": (302, 261),
    "process_madvise": (440, 440),
    "process_mrelease": (448, 448),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "ptrace": (101, 117),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "reboot": (169, 142),
    "request_key": (249, 218),
    "setdomainname": (171, 162),
    "setrlimit": (160, 164),
    "sethostname": (170, 161),
    "setns": (308, 268),
    "settimeofday": (164, 170),
    "socket": (41, 198),
    "socketpair": (53, 199),
    "swapoff": (168, 225),
    "swapon": (167, 224),
    "syslog": (103, 116),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "uselib": (134, None),
    "userfaultfd": (323, 282),
}


@dataclass(frozen=True)
class Machine:
    """One kind of processor.

    Parameters
    ----------
    name : str
        As ``uname -m`` says.
    audit : int
        ``AUDIT_ARCH_*`` of its 64-bit calls (``linux/audit.h``).
    numbers : mapping of str to int
        Its system calls; those that it lacks are not in it.
    x32 : bool
        Whether calls from bit 30 on are those of a second, 32-bit set.
    """

    name: str
    audit: int
    numbers: Mapping[str, int]
    x32: bool


X86_64 = Machine("x86_64", 0xC000_003E, {name: one for name, (one, _) in _NUMBERS.items()}, True)
AARCH64 = Machine(
    "aarch64",
    0xC000_00B7,
    {name: one for name, (_, one) in _NUMBERS.items() if one is not None},
    False,
)
MACHINES = (X86_64, AARCH64)


def this_machine() -> Machine:
    """Return the machine that this process runs on.

    Raises
    ------
    OSError
        If it is none that the sandbox knows.
    """
    name = platform.machine()
    for machine in MACHINES:
        if machine.name == name:
            return machine
    known = ", ".join(machine.name for machine in MACHINES)
    raise OSError(f"no filter of system calls for a machine of kind {name!r}, only {known}")
