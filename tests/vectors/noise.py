"""Whole encodings of Laplace-protected rows: the rows, the random bytes, and the report."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from tests.vectors import layouts, proposals
from tests.vectors.drawing import Stream, flipped

Row = Sequence[float | str]


@dataclass(frozen=True)
class Noised:
    """One encoding: the proposal's numbers, and rows whose sums doubles hold exactly."""

    name: str
    epsilon: str
    classes: int
    grid_bits: int
    rows: list[Row] | None
    count: int = 1
    health: str | None = None
    first: bytes = b""

    def fields(self) -> dict[str, Any]:
        own = {"epsilon": float(self.epsilon), "classes": self.classes, "rows": self.count}
        own |= {"grid-bits": self.grid_bits}
        own |= {} if self.health is None else {"health-epsilon": float(self.health)}
        return proposals.ROWS | own

    def readable(self) -> list[list[Fraction] | None]:
        """Return the rows that are on the simplex; none if their number is another."""
        if self.rows is None or len(self.rows) != self.count:
            return [None] * self.count
        return [self._on_simplex(row) for row in self.rows]

    def _on_simplex(self, row: Row) -> list[Fraction] | None:
        if len(row) != self.classes or not all(
            isinstance(value, float) and value >= 0 for value in row
        ):
            return None
        values = [Fraction(value) for value in row]
        return values if abs(sum(values) - 1) <= Fraction(1, 1000) else None


def rounded(row: list[Fraction], steps: int) -> list[int]:
    scaled = [value * steps / sum(row) for value in row]
    found = [math.floor(value) for value in scaled]
    order = sorted(range(len(row)), key=lambda i: (found[i] - scaled[i], i))
    for place in order[: steps - sum(found)]:
        found[place] += 1
    return found


def centre(classes: int, steps: int, random: Stream) -> list[int]:
    least, missing = divmod(steps, classes)
    found, chosen = [least] * classes, set[int]()
    while len(chosen) < missing:
        chosen.add(random.below(classes))
    return [value + (place in chosen) for place, value in enumerate(found)]


def is_kept(a: int, b: int, random: Stream) -> bool:
    """Return True with probability e^(-a/b)."""
    turn = 1
    while random.below(b * turn) < a:
        turn += 1
    return turn % 2 == 1


def discrete_laplace(rate: tuple[int, int], random: Stream) -> int:
    top, bottom = rate
    while True:
        part = random.below(bottom)
        if not is_kept(part, bottom, random):
            continue
        wholes = 0
        while is_kept(1, 1, random):
            wholes += 1
        magnitude = (part + bottom * wholes) // top
        negative = random.bits(1)
        if not (negative and magnitude == 0):
            return -magnitude if negative else magnitude


def fraction(text: str) -> tuple[int, int]:
    """Return a decimal as a numerator and a power of ten, as it is written."""
    number, _, exponent = text.partition("e")
    whole, _, part = number.partition(".")
    places = len(part) - int(exponent or 0)
    return int(whole + part) * 10 ** max(0, -places), 10 ** max(0, places)


def far(sign: int) -> bytes:
    """Return bytes of which noise of rate 1 becomes 70: u = 0, then 1/1 is kept 70 times."""
    return b"\0\0" + b"\x00\x40" * 70 + b"\x80" + bytes([0x80 if sign < 0 else 0])


TRIES = (
    *(Noised(f"three classes, stream {n}", "4", 3, 10, [[0.5, 0.25, 0.25]]) for n in range(6)),
    Noised("two rows", "0.5", 4, 12, [[1.0, 0.0, 0.0, 0.0], [0.25] * 4], 2),
    Noised("remainders that are equal", "4", 3, 0, [[0.5, 0.25, 0.25]]),
    Noised("halves of one step", "4", 2, 0, [[0.5, 0.5]]),
    Noised("a sum too far off 1", "2", 2, 14, [[0.5, 0.5 + 2.0**-9]]),
    Noised("a sum a little off 1", "2", 2, 14, [[0.5, 0.5 + 2.0**-11]]),
    Noised("a tiny epsilon", "0.000001", 2, 10, [[1.0, 0.0]]),
    Noised("a large one", "100", 2, 30, [[1.0, 0.0]]),
    Noised("an epsilon with a point", "7.25", 5, 20, [[0.5, 0.125, 0.125, 0.125, 0.125]]),
    Noised("cut at both ends", "2", 2, 0, [[1.0, 0.0]], first=far(1) + far(-1)),
    Noised("a health bit", "4", 2, 10, [[1.0, 0.0]], 1, "1.5"),
    Noised("off the simplex", "4", 3, 10, [[0.5, 0.5, 0.5]], 1, "9"),
    Noised("one of two", "4", 3, 10, [[0.5, "nan", 0.5], [0.5, 0.25, 0.25]], 2, "9"),
    Noised("negative", "4", 3, 10, [[1.5, -0.25, -0.25]]),
    Noised("too few entries", "4", 3, 10, [[0.5, 0.5]], 1, "9"),
    Noised("too few entries in one of two", "4", 3, 10, [[0.5, 0.5], [0.5, 0.25, 0.25]], 2, "9"),
    Noised("too few rows", "4", 3, 10, [[0.5, 0.25, 0.25]], 2),
    Noised("none", "4", 7, 10, None, 1, "0.25"),
)


def encoded(one: Noised) -> dict[str, Any]:
    random, steps = Stream(one.name, one.first), 2**one.grid_bits
    top, bottom = fraction(one.epsilon)
    readable = one.readable()
    grid = [
        centre(one.classes, steps, random) if row is None else rounded(row, steps)
        for row in readable
    ]
    beyond = math.ceil(64 / (Fraction(one.epsilon) / (2 * steps)))
    entries = []
    for entry in (entry for row in grid for entry in row):
        noisy = entry + discrete_laplace((top, bottom * 2 * steps), random)
        entries.append(min(max(noisy, -beyond), steps + beyond))
    width = layouts.entry_bytes(steps + beyond)
    payload = layouts.evaluation(1, width, entries, ())
    if one.health is not None:
        payload += bytes([flipped(int(None in readable), one.health, random)])
    return {
        "name": one.name,
        "proposal": proposals.record(one.fields()),
        "rows": None if one.rows is None else [list(row) for row in one.rows],
        "random": random.hex,
        "grid": [None if row is None else rounded(row, steps) for row in readable],
        "entries": entries,
        "payload": payload.hex(),
    }


def made() -> dict[str, Any]:
    return {"cases": [encoded(one) for one in TRIES]}
