"""The sandbox's filter of system calls, run by an interpreter that shares no code with it."""

from __future__ import annotations

import itertools
import platform
import re
import struct
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flower_ldp.node.sandbox import seccomp
from flower_ldp.node.sandbox.filesystem_view import SandboxMissing
from flower_ldp.node.sandbox.seccomp import LAST_KNOWN, LAST_NEWER, app_filter, call_numbers

try:
    CALLS, PROGRAM = call_numbers(), app_filter()
except SandboxMissing as error:
    pytest.skip(str(error), allow_module_level=True)
import pyseccomp

# From linux/seccomp.h, linux/audit.h and asm-generic/errno-base.h.
KILLED, ALLOWED, REFUSED, ABSENT = 0x80000000, 0x7FFF0000, 0x00050001, 0x00050026
AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
I386, X32, ARM = 0x40000003, 0x4000003E, 0x40000028
ON_X86 = platform.machine() == "x86_64"
#: Numbers of the calls that are never permitted, by hand from the kernel's tables.
NEVER = {
    "x86_64": {
        *(101, 103, 134, 154, 155, 159, 161, *range(163, 174), 175, 176, 179, 180, 212, 227, 246),
        *(248, 249, 250, 272, 298, 300, 301, 303, 304, 305, 308, *range(310, 314), 320, 321, 323),
        *(*range(425, 434), 438, 440, 442, 443, 447, 448),
    },
    "aarch64": {
        *(18, *range(39, 43), 51, 60, 89, 97, 104, 105, 106, 112, 116, 117, 142, 161, 162, 170),
        *(171, 217, 218, 219, 224, 225, 241, *range(262, 267), 268, *range(270, 274), 280, 282),
        *(294, *range(425, 434), 438, 440, 442, 443, 447, 448),
    },
}
EVERY_MACHINE = pytest.mark.parametrize(
    ("machine", "architecture", "header"),
    [
        ("x86_64", pyseccomp.Arch.X86_64, "/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
        ("aarch64", pyseccomp.Arch.AARCH64, "/usr/include/asm-generic/unistd.h"),
    ],
)


def run(number: int, audit: int, *arguments: int) -> int:
    """Run the filter on one call, as Documentation/networking/filter.rst describes the machine."""
    data = struct.pack("<II7Q", number, audit, 0, *(*arguments, *[0] * 6)[:6])
    at = held = 0
    while True:
        what, true, false, k = struct.unpack_from("=HBBI", PROGRAM, 8 * at)
        at += 1
        if what == 0x20:
            assert k % 4 == 0
            (held,) = struct.unpack_from("<I", data, k)
        elif what == 0x54:
            held &= k
        elif what == 0x05:
            at += k
        elif what == 0x06:
            return k
        else:
            holds = {0x15: held == k, 0x25: held > k, 0x35: held >= k}[what]
            at += true if holds else false


def judge(call: int | str, *arguments: int) -> int:
    """Run the filter on a call of this machine's, by name or number."""
    number = CALLS[call] if isinstance(call, str) else call
    return run(number, AUDIT[platform.machine()], *arguments)


def test_every_call_that_is_not_named_is_allowed_and_every_named_one_is_not() -> None:
    never = NEVER[platform.machine()]
    judged = {CALLS[name] for name in seccomp.JUDGED}
    for number in {*range(LAST_KNOWN + 1)} - judged - {CALLS["clone3"]}:
        assert judge(number) == (REFUSED if number in never else ALLOWED), number
    for number in range(LAST_KNOWN + 1, LAST_NEWER + 1):
        assert judge(number) == ABSENT
    for number in (LAST_NEWER + 1, 5000, 0x3FFFFFFF, 0xFFFFFFFF):
        assert judge(number) == REFUSED
    for number in (0x40000000, 0x40000000 | 39, 0x40000000 | 5000, 0xFFFFFFFE):
        assert judge(number) == (KILLED if ON_X86 else REFUSED)


def test_the_kernel_takes_the_program() -> None:
    assert len(PROGRAM) % 8 == 0
    assert len(PROGRAM) // 8 <= 4096  # BPF_MAXINSNS


@EVERY_MACHINE
def test_the_calls_are_those_of_each_machine(machine: str, architecture: int, header: str) -> None:
    numbers = call_numbers(architecture)
    judged = {*seccomp.JUDGED, "clone3"}
    assert judged <= numbers.keys()
    assert {numbers[name] for name in numbers.keys() - judged} == NEVER[machine]
    lacking = {"ioperm", "iopl", "modify_ldt", "uselib"} if machine == "aarch64" else set()
    assert {*seccomp.FORBIDDEN, *judged} - numbers.keys() == lacking
    if Path(header).exists():
        found = re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", Path(header).read_text())
        assert numbers.items() <= {name: int(number) for name, number in found}.items()


def test_what_the_documentation_names_is_among_them() -> None:
    named = {"ptrace", "keyctl", "add_key", "request_key", "bpf", "perf_event_open", "mount"}
    named |= {"unshare", "setns", "userfaultfd", "io_uring_setup", "process_vm_readv"}
    assert named | {"pidfd_getfd"} <= {*seccomp.FORBIDDEN}


@pytest.mark.parametrize("audit", [I386, X32, ARM, 0, 0xFFFFFFFF])
def test_a_call_of_another_instruction_set_is_fatal(audit: int) -> None:
    for number in (0, 1, 20, 39, 102, LAST_NEWER + 1, 0x40000000, CALLS["socket"]):
        assert run(number, audit) == KILLED


Patch = pytest.MonkeyPatch


def no_library(patch: Patch) -> None:
    patch.setitem(sys.modules, "pyseccomp", None)


def old_library(patch: Patch) -> None:
    known = pyseccomp.resolve_syscall
    without = {"bpf": -1}
    patch.setattr(pyseccomp, "resolve_syscall", lambda a, n: without.get(n) or known(a, n))


def no_tree(patch: Patch) -> None:
    patch.setattr(pyseccomp.Attr, "CTL_OPTIMIZE", 99)


def other_machine(patch: Patch) -> None:
    patch.setattr(pyseccomp, "system_arch", lambda: pyseccomp.Arch.S390X)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (no_library, "not installed: apt install libseccomp2"),
        (old_library, "does not know bpf: apt install"),
        (no_tree, "makes no filter"),
        (other_machine, "x86_64 and aarch64 alone"),
    ],
)
def test_a_library_that_is_missing_or_old_is_named(
    change: Callable[[Patch], None], said: str, monkeypatch: Patch
) -> None:
    change(monkeypatch)
    with pytest.raises(SandboxMissing, match=said):
        app_filter()


def test_sockets_are_those_of_this_machine_and_none_is_raw() -> None:
    options = (0, 0o2000000, 0o4000, 0o2004000)  # SOCK_CLOEXEC, SOCK_NONBLOCK
    for family, kind, more in itertools.product(range(64), range(16), options):
        allowed = family in (1, 2, 10) and kind in (1, 2, 5)
        allowed |= family == 16  # NETLINK_ROUTE is protocol 0
        for call in ("socket", "socketpair"):
            verdict = judge(call, family, kind | more, 0)
            assert verdict == (ALLOWED if allowed else REFUSED), (family, kind)
    for protocol in range(1, 64):
        assert judge("socket", 16, 3, protocol) == REFUSED


def test_no_protocol_is_loaded_for_an_app() -> None:
    for family, kind, protocol in itertools.product((2, 10), (1, 2, 5), range(300)):
        verdict = judge("socket", family, kind, protocol)
        assert verdict == (ALLOWED if protocol in (0, 6, 17) else REFUSED), protocol


def test_the_limit_on_core_dumps_is_read_and_not_changed() -> None:
    somewhere = (1, 0x7FFF_0000_0000, 0x7FFF_1234_5678, 1 << 32)
    for kind in range(16):
        assert judge("setrlimit", kind, somewhere[0]) == (REFUSED if kind == 4 else ALLOWED)
        assert judge("setrlimit", kind | 1 << 32) == (REFUSED if kind == 4 else ALLOWED)
        assert judge("prlimit64", 0, kind, 0, somewhere[1]) == ALLOWED
        for place in somewhere:
            verdict = judge("prlimit64", 0, kind, place)
            assert verdict == (REFUSED if kind == 4 else ALLOWED)


@given(st.integers(0, (1 << 64) - 1))
def test_the_kernel_reads_a_family_as_32_bits_and_so_does_the_filter(family: int) -> None:
    low = judge("socket", family & 0xFFFFFFFF, 1, 0)
    assert judge("socket", family, 1, 0) == low


def test_no_new_namespace_is_made() -> None:
    threads, child = 0x3D0F00, 0x01200011  # of pthread_create and fork in glibc
    namespaces = (0x20000, *(1 << bit for bit in range(25, 31)))
    for usual in (threads, child, 17, 0x4111):
        assert judge("clone", usual) == ALLOWED
        for bit in namespaces:
            assert judge("clone", usual | bit) == REFUSED
    assert judge("clone3") == ABSENT


def test_terminals_and_personalities() -> None:
    for request in (0x5412, 0x541C, 0x5423, 0x5401):
        verdict = ALLOWED if request == 0x5401 else REFUSED
        assert judge("ioctl", 0, request) == verdict
        assert judge("ioctl", 0, request | 1 << 32) == verdict
    for value, verdict in ((0, ALLOWED), (0xFFFFFFFF, ALLOWED), (0x40000, REFUSED), (8, REFUSED)):
        assert judge("personality", value) == verdict
