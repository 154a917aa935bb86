"""Assembles classic BPF, the language of seccomp filters: as much of it as a filter needs.

A program is a list of steps; jumps name labels that come later. See ``struct sock_filter`` in
``linux/filter.h`` and ``struct seccomp_data`` in ``linux/seccomp.h``.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

# Classes, sizes, modes and operations of linux/bpf_common.h, as filters combine them.
LOAD_WORD = 0x20  # BPF_LD | BPF_W | BPF_ABS
AND = 0x54  # BPF_ALU | BPF_AND | BPF_K
RETURN = 0x06  # BPF_RET | BPF_K
JUMP_EQUAL = 0x15  # BPF_JMP | BPF_JEQ | BPF_K
JUMP_AT_LEAST = 0x35  # BPF_JMP | BPF_JGE | BPF_K
#: One instruction: code, offset if true, offset if false, constant.
INSTRUCTION = struct.Struct("=HBBI")
#: BPF_MAXINSNS
LONGEST = 4096


@dataclass(frozen=True)
class Load:
    """Load 32 bits of ``struct seccomp_data`` from an offset."""

    offset: int


@dataclass(frozen=True)
class Mask:
    """Keep only these bits of what was loaded."""

    bits: int


@dataclass(frozen=True)
class Return:
    """End with a verdict."""

    verdict: int


@dataclass(frozen=True)
class Jump:
    """Go on at a label if the test holds of what was loaded, else with the next step."""

    test: int
    value: int
    label: str


@dataclass(frozen=True)
class Label:
    """A place to jump to."""

    name: str


Step = Load | Mask | Return | Jump | Label


def assemble(steps: Sequence[Step]) -> bytes:
    """Return the program's bytes, in this machine's byte order.

    Raises
    ------
    ValueError
        If a jump goes backwards, nowhere or farther than 255 instructions, if the last step is no
        ``Return``, or if the program is longer than the kernel takes.
    """
    instructions = [step for step in steps if not isinstance(step, Label)]
    if not isinstance(instructions[-1], Return) or len(instructions) > LONGEST:
        raise ValueError("a filter must end with a verdict, and not be too long")
    places: dict[str, int] = {}
    here = 0
    for step in steps:
        if isinstance(step, Label):
            places[step.name] = here
        else:
            here += 1
    return b"".join(_packed(step, at, places) for at, step in enumerate(instructions))


def _packed(step: Load | Mask | Return | Jump, at: int, places: dict[str, int]) -> bytes:
    if isinstance(step, Load):
        return INSTRUCTION.pack(LOAD_WORD, 0, 0, step.offset)
    if isinstance(step, Mask):
        return INSTRUCTION.pack(AND, 0, 0, step.bits)
    if isinstance(step, Return):
        return INSTRUCTION.pack(RETURN, 0, 0, step.verdict)
    distance = places.get(step.label, -1) - at - 1
    if not 0 <= distance <= 255:
        raise ValueError(f"there is no label {step.label!r} within 255 instructions after {at}")
    return INSTRUCTION.pack(step.test, distance, 0, step.value)
