"""Whole encodings of codewords: an update, the random bytes that are taken, and the report."""

from __future__ import annotations

import hashlib
import math
import struct
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from tests.vectors import layouts, proposals
from tests.vectors.drawing import Question, Stream, draw, exp_floor, flip_weight, flipped

#: Nearest codewords of an update with roundings are so far apart, over its largest entry.
MARGIN = Fraction(1, 2**30)
#: All float32 numbers are multiples of one over this.
UNITS = 2**149


def normals(d: int) -> list[float]:
    """Return float32 numbers of about a normal law, the same each time."""
    words = struct.unpack(f"<{12 * d}H", hashlib.shake_128(b"normals").digest(24 * d))
    sums = (sum(words[12 * i : 12 * i + 12]) / 65_536 - 6 for i in range(d))
    return [struct.unpack("<f", struct.pack("<f", value))[0] for value in sums]


@dataclass(frozen=True)
class Try:
    """One encoding: what is asked, the update as JSON has it, and the health bit's epsilon."""

    name: str
    question: Question
    update: list[float | str] | None
    health: str | None = None

    @property
    def is_readable(self) -> bool:
        numbers = self.update is not None and all(isinstance(v, float) for v in self.update)
        return numbers and len(self.update or ()) == self.question.d

    def entries(self) -> list[int]:
        """Return the update in units, or the zeros that are taken for it."""
        if not self.is_readable or self.update is None:
            return [0] * self.question.d
        return [int(Fraction(value) * UNITS) for value in self.update]

    def fields(self) -> dict[str, Any]:
        asked = self.question
        own = {"epsilon": float(asked.epsilon), "favoured": asked.favoured}
        own |= {"rotations": asked.rotations, "seed": asked.seed}
        own |= {"blocks": asked.blocks} if asked.blocks > 1 else {}
        own |= {} if self.health is None else {"health-epsilon": float(self.health)}
        return proposals.CODEWORD | own


TRIES = (
    *(
        Try(f"the first one, stream {n}", Question(4, "2.0", 2, 3, 1), [1.0, 0.0, -2.0, 4.0])
        for n in range(6)
    ),
    *(
        Try(f"the others, stream {n}", Question(4, "0.1", 3, 1, 2), [1.0, 0.0, -2.0, 4.0])
        for n in range(6)
    ),
    Try("one code", Question(5, "8.0", 1, 1, 0), [3.0, -1.0, 4.0, 1.0, -8.0]),
    Try("one entry, all codewords tie", Question(5, "8.0", 3, 4, 9), [0.0, 0.0, -1.0, 0.0, 0.0]),
    Try("all tie, and offsets wrap", Question(5, "100.0", 8, 4, 9), [0.0, 0.0, 0.25, 0.0, 0.0]),
    Try("zeros", Question(6, "8.0", 5, 4, 2**63 - 1), [0.0] * 6),
    Try("zeros and favoured products of 0", Question(4, "8.0", 4, 2, 3), [1.0, 1.0, 0.0, 0.0]),
    Try("half are favoured", Question(8, "1.0", 8, 7, 5), [float(n - 3) for n in range(8)]),
    Try("an epsilon of next to nothing", Question(2, "1e-12", 1, 2, 5), [1.0, 0.5]),
    Try("a hundred", Question(16, "100.0", 1, 4096, 5), [float(n % 5) for n in range(16)]),
    Try("blocks, and a last one of one entry", Question(7, "8.0", 3, 5, 11, 3),
        [1.0, -1.0, 2.0, 8.0, 0.0, 0.0, -4.0]),
    Try("blocks of one entry", Question(6, "0.1", 2, 5, 11, 6), [1.0, -1.0, 2.0, 8.0, 0.0, -2.0]),
    Try("float32 as it comes", Question(200, "8.0", 13, 64, 77), list(normals(200))),
    Try("float32 in blocks", Question(280, "7.25", 40, 64, 78, 10), list(normals(280))),
    Try("the largest float32", Question(2, "8.0", 1, 2, 6), [2.0**127 * (2 - 2.0**-23), 2.0**126]),
    Try("subnormal numbers", Question(3, "8.0", 1, 2, 6), [2.0**-149, -(2.0**-148), 0.0]),
    Try("a health bit", Question(4, "8.0", 1, 2, 6), [1.0, 2.0, 4.0, -8.0], "1.5"),
    Try("zeros are no failure", Question(4, "8.0", 1, 2, 6), [0.0] * 4, "9.0"),
    Try("not a number", Question(4, "8.0", 1, 2, 6), [1.0, "nan", 4.0, -8.0], "9.0"),
    Try("infinite", Question(4, "8.0", 1, 2, 6), [1.0, 2.0, "-inf", -8.0], "9.0"),
    Try("beyond float32", Question(4, "8.0", 1, 2, 6), [1.0, 2.0, "1e39", -8.0], "9.0"),
    Try("of another length", Question(4, "8.0", 1, 2, 6), [1.0, 2.0, 4.0], "9.0"),
    Try("none", Question(4, "8.0", 1, 2, 6), None, "0.25"),
)  # fmt: skip


def is_dyadic(update: list[int]) -> bool:
    """Return whether doubles hold all sums of the update over its largest entry exactly."""
    largest = max(map(abs, update)) or 1
    finest = largest // math.gcd(largest, *update)
    return not finest & (finest - 1) and finest * len(update) < 2**53


def encoded(one: Try) -> dict[str, Any]:
    asked, random = one.question, Stream(one.name)
    code, products, favoured, position = draw(asked, one.entries(), random)
    if not is_dyadic(one.entries()):
        largest = max(map(abs, one.entries()))
        if asked.margin(products) < MARGIN * largest:
            raise ValueError(f"{one.name}: roundings could decide which codewords are favoured")
    payload = layouts.codeword(2 * asked.n * code + position, asked.n, asked.rotations)
    if one.health is not None:
        payload += bytes([flipped(int(not one.is_readable), one.health, random)])
    return {
        "name": one.name,
        "d": asked.d,
        "proposal": proposals.record(one.fields()),
        "update": one.update,
        "random": random.hex,
        "weight": f"{asked.weight:064x}",
        "code": code,
        "favoured": favoured,
        "payload": payload.hex(),
    }


def made() -> dict[str, Any]:
    epsilons = ("1e-12", "0.1", "0.5", "1.0", "7.25", "8.0", "12.3456789", "100.0")
    powers = [
        {"epsilon": one, "power": f"{exp_floor(one):x}", "flip": f"{flip_weight(one):x}"}
        for one in epsilons
    ]
    return {
        "about": "Codeword reports, from an update and random bytes; e^epsilon and P(flip).",
        "cases": [encoded(one) for one in TRIES],
        "powers": powers,
    }
