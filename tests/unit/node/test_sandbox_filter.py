"""The sandbox's filter of system calls, run by an interpreter that shares no code with it."""

from __future__ import annotations

import itertools
import re
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flower_ldp.node.sandbox.bpf import JUMP_EQUAL, Jump, Label, Load, Mask, Return, assemble
from flower_ldp.node.sandbox.seccomp import JUDGED, app_filter, forbidden
from flower_ldp.node.sandbox.syscalls import AARCH64, LAST_KNOWN, MACHINES, X86_64, Machine

# From linux/seccomp.h, linux/audit.h and asm-generic/errno-base.h.
KILLED, ALLOWED, REFUSED, ABSENT = 0x80000000, 0x7FFF0000, 0x00050001, 0x00050026
I386, ARM = 0x40000003, 0x40000028
EVERY_MACHINE = pytest.mark.parametrize("machine", MACHINES, ids=lambda one: one.name)
HEADERS = {
    X86_64.name: Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
    AARCH64.name: Path("/usr/include/asm-generic/unistd.h"),
}
FILTERS = {machine.name: app_filter(machine) for machine in MACHINES}


def run(program: bytes, number: int, audit: int, *arguments: int) -> int:
    """Run a filter on one call, as Documentation/networking/filter.rst describes the machine."""
    data = struct.pack("<II7Q", number, audit, 0, *(*arguments, *[0] * 6)[:6])
    code = [struct.unpack_from("=HBBI", program, at) for at in range(0, len(program), 8)]
    at = held = 0
    while True:
        what, true, false, k = code[at]
        at += 1
        if what == 0x20:
            assert k % 4 == 0
            (held,) = struct.unpack_from("<I", data, k)
        elif what == 0x54:
            held &= k
        elif what == 0x06:
            return k
        else:
            holds = {0x15: held == k, 0x35: held >= k}[what]
            at += true if holds else false


def judge(machine: Machine, number: int, *arguments: int) -> int:
    return run(FILTERS[machine.name], number, machine.audit, *arguments)


@EVERY_MACHINE
def test_every_call_that_is_not_named_is_allowed_and_every_named_one_is_not(
    machine: Machine,
) -> None:
    never = set(forbidden(machine).values())
    judged = {machine.numbers[name] for name in JUDGED}
    for number in range(LAST_KNOWN + 1):
        if number not in judged:
            assert judge(machine, number) == (REFUSED if number in never else ALLOWED), number
    for number in (LAST_KNOWN + 1, LAST_KNOWN + 50, 0x3FFFFFFF):
        assert judge(machine, number) == ABSENT
    for number in (0x40000000, 0x40000000 | 39, 0xFFFFFFFF):
        assert judge(machine, number) == (KILLED if machine is X86_64 else ABSENT)


def test_what_the_documentation_names_is_among_them() -> None:
    named = {"ptrace", "keyctl", "add_key", "request_key", "bpf", "perf_event_open", "mount"}
    named |= {
        "unshare",
        "setns",
        "userfaultfd",
        "io_uring_setup",
        "process_vm_readv",
        "pidfd_getfd",
    }
    for machine in MACHINES:
        assert named <= forbidden(machine).keys()


@EVERY_MACHINE
@pytest.mark.parametrize("audit", [I386, ARM, 0, 0xFFFFFFFF])
def test_a_call_of_another_instruction_set_is_fatal(machine: Machine, audit: int) -> None:
    for number in (0, 1, 20, 39, 102, 0x40000000, machine.numbers["socket"]):
        assert run(FILTERS[machine.name], number, audit) == KILLED


@EVERY_MACHINE
def test_sockets_are_those_of_this_machine_and_none_is_raw(machine: Machine) -> None:
    options = (0, 0o2000000, 0o4000, 0o2004000)  # SOCK_CLOEXEC, SOCK_NONBLOCK
    for family, kind, more in itertools.product(range(64), range(16), options):
        allowed = family in (1, 2, 10) and kind in (1, 2, 5)
        allowed |= family == 16  # NETLINK_ROUTE is protocol 0
        for call in ("socket", "socketpair"):
            verdict = judge(machine, machine.numbers[call], family, kind | more, 0)
            assert verdict == (ALLOWED if allowed else REFUSED), (family, kind)
    for protocol in range(1, 64):
        assert judge(machine, machine.numbers["socket"], 16, 3, protocol) == REFUSED


@EVERY_MACHINE
def test_no_protocol_is_loaded_for_an_app(machine: Machine) -> None:
    for family, kind, protocol in itertools.product((2, 10), (1, 2, 5), range(300)):
        verdict = judge(machine, machine.numbers["socket"], family, kind, protocol)
        assert verdict == (ALLOWED if protocol in (0, 6, 17) else REFUSED), protocol


@EVERY_MACHINE
def test_the_limit_on_core_dumps_is_read_and_not_changed(machine: Machine) -> None:
    old, new = machine.numbers["setrlimit"], machine.numbers["prlimit64"]
    somewhere = (1, 0x7FFF_0000_0000, 0x7FFF_1234_5678, 1 << 32)
    for kind in range(16):
        assert judge(machine, old, kind, somewhere[0]) == (REFUSED if kind == 4 else ALLOWED)
        assert judge(machine, old, kind | 1 << 32) == (REFUSED if kind == 4 else ALLOWED)
        assert judge(machine, new, 0, kind, 0, somewhere[1]) == ALLOWED
        for place in somewhere:
            verdict = judge(machine, new, 0, kind, place)
            assert verdict == (REFUSED if kind == 4 else ALLOWED)


@EVERY_MACHINE
@given(st.integers(0, (1 << 64) - 1))
def test_the_kernel_reads_a_family_as_32_bits_and_so_does_the_filter(
    machine: Machine, family: int
) -> None:
    low = judge(machine, machine.numbers["socket"], family & 0xFFFFFFFF, 1, 0)
    assert judge(machine, machine.numbers["socket"], family, 1, 0) == low


@EVERY_MACHINE
def test_no_new_namespace_is_made(machine: Machine) -> None:
    clone = machine.numbers["clone"]
    threads, child = 0x3D0F00, 0x01200011  # of pthread_create and fork in glibc
    namespaces = (0x20000, *(1 << bit for bit in range(25, 31)))
    for usual in (threads, child, 17, 0x4111):
        assert judge(machine, clone, usual) == ALLOWED
        for bit in namespaces:
            assert judge(machine, clone, usual | bit) == REFUSED
    assert judge(machine, machine.numbers["clone3"]) == ABSENT


@EVERY_MACHINE
def test_terminals_and_personalities(machine: Machine) -> None:
    ioctl, personality = machine.numbers["ioctl"], machine.numbers["personality"]
    for request, verdict in (
        (0x5412, REFUSED),
        (0x541C, REFUSED),
        (0x5423, REFUSED),
        (0x5401, ALLOWED),
    ):
        assert judge(machine, ioctl, 0, request) == verdict
        assert judge(machine, ioctl, 0, request | 1 << 32) == verdict
    for value, verdict in ((0, ALLOWED), (0xFFFFFFFF, ALLOWED), (0x40000, REFUSED), (8, REFUSED)):
        assert judge(machine, personality, value) == verdict


@EVERY_MACHINE
def test_the_numbers_are_those_of_the_kernels_headers(machine: Machine) -> None:
    header = HEADERS[machine.name]
    if not header.exists():
        pytest.skip(f"there is no {header} here")
    found = re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", header.read_text())
    numbers = {name: int(number) for name, number in found}
    for name, number in machine.numbers.items():
        assert numbers.get(name) == number, name
    lacking = X86_64.numbers.keys() - machine.numbers.keys()
    assert not lacking & numbers.keys()


def test_a_program_that_cannot_be_is_refused() -> None:
    far = [Jump(JUMP_EQUAL, 1, "end"), *[Mask(1)] * 256, Label("end"), Return(0)]
    back = [Label("start"), Load(0), Jump(JUMP_EQUAL, 1, "start"), Return(0)]
    nowhere = [Jump(JUMP_EQUAL, 1, "lost"), Return(0)]
    for steps in (far, back, nowhere):
        with pytest.raises(ValueError, match="no label"):
            assemble(steps)
    for steps in ([Load(0)], [*[Mask(1)] * 4096, Return(0)]):
        with pytest.raises(ValueError, match="must end"):
            assemble(steps)
    assert len(assemble([*far[:256], *far[257:]])) == 8 * 257
