"""Whole encodings of SignDS: an update, the random bytes that are taken, and the report."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from tests.vectors import layouts, proposals
from tests.vectors.drawing import Stream, exp_floor, flipped
from tests.vectors.draws import normals

ONE = 1 << 128


@dataclass(frozen=True)
class Selected:
    """One encoding: the proposal's numbers as they are written, and the update as JSON has it."""

    name: str
    d: int
    epsilon: str
    k: str
    h: int
    update: list[float | str] | None
    bit: tuple[str, str] | None = None
    health: str | None = None

    @property
    def top_size(self) -> int:
        return max(1, math.floor(Fraction(self.k) * self.d))

    @property
    def entries(self) -> list[float] | None:
        given = self.update
        if given is None or len(given) != self.d or not all(isinstance(v, float) for v in given):
            return None
        return [value for value in given if isinstance(value, float)]

    def fields(self) -> dict[str, Any]:
        own: dict[str, Any] = {"epsilon": float(self.epsilon), "k": float(self.k)}
        own |= {"threshold-ratio": 0.6, "dim-out": self.h}
        if self.bit is not None:
            own |= {"magnitude-epsilon": float(self.bit[0])}
            own |= {"magnitude-threshold": float(self.bit[1])}
        own |= {} if self.health is None else {"health-epsilon": float(self.health)}
        return proposals.SIGNDS | own

    def counts(self) -> dict[int, int]:
        """Return how many subsets have v members of the top set."""
        size, d, h = self.top_size, self.d, self.h
        values = range(max(0, h - (d - size)), min(h, size) + 1)
        return {v: math.comb(size, v) * math.comb(d - size, h - v) for v in values}

    def threshold(self) -> int:
        """Return the least t with e^epsilon times what lies above it at most what lies below."""
        counts, power = self.counts(), exp_floor(self.epsilon)
        for t in counts:
            above = sum((v - t) * count for v, count in counts.items() if v > t)
            below = sum((t - v) * count for v, count in counts.items() if v < t)
            if power * above <= below * ONE:
                if above and (power + 1) * above > below * ONE:
                    raise ValueError(f"{self.name}: e^epsilon would need more digits")
                return t
        raise ValueError("the last one has nothing above")

    def weights(self) -> dict[int, int]:
        least, power = self.threshold(), exp_floor(self.epsilon)
        return {v: n * (power if v >= least else ONE) for v, n in self.counts().items()}


def top_of(entries: list[float], size: int, sign: int) -> list[int]:
    """Return the positions of the largest entries of sign * entries, the first among equals."""
    order = sorted(range(len(entries)), key=lambda place: (-sign * entries[place], place))
    return order[:size]


def distinct(n: int, count: int, random: Stream) -> list[int]:
    found: list[int] = []
    while len(found) < count:
        one = random.below(n)
        if one not in found:
            found.append(one)
    return found


def pick(weights: dict[int, int], random: Stream) -> int:
    left = random.below(sum(weights.values()))
    for value, weight in weights.items():
        if left < weight:
            return value
        left -= weight
    raise ValueError("a number below the sum lies in one of its parts")


TRIES = (
    *(
        Selected(f"eight entries, stream {n}", 8, "2.0", "0.25", 3, [1.0, 0.0, -2.0, 4.0] * 2)
        for n in range(6)
    ),
    Selected("one entry", 1, "8.0", "0.25", 1, [3.0]),
    Selected("all are reported", 4, "8.0", "0.25", 4, [3.0, 1.0, 2.0, -1.0]),
    Selected("zeros", 12, "8.0", "0.25", 3, [0.0] * 12),
    Selected("an epsilon of next to nothing", 9, "1e-12", "0.25", 2, [float(n) for n in range(9)]),
    Selected("a hundred", 40, "100.0", "0.2", 6, [float(n % 7) for n in range(40)]),
    Selected("a plain bitmap", 64, "8.0", "0.2", 20, [float(n % 9 - 4) for n in range(64)]),
    Selected("a longer bitmap", 900, "8.0", "0.2", 90, list(normals(900))),
    Selected(
        "a bitmap just too long to be plain",
        124,
        "8.0",
        "0.1",
        118,
        [float(n % 9) for n in range(124)],
    ),
    Selected("ranked in two blocks", 400, "8.0", "0.01", 370, [float(n % 9) for n in range(400)]),
    Selected(
        "a mean that is the threshold", 4, "4.0", "0.25", 1, [2.0, 0.0, 0.0, -2.0], ("1.5", "2.0")
    ),
    Selected("many for their number", 2_000, "4.0", "0.1", 20, list(normals(2_000))),
    Selected("a magnitude bit", 8, "4.0", "0.25", 2, [8.0, 4.0, 2.0, 1.0] * 2, ("1.5", "1.0")),
    Selected("a larger threshold", 8, "4.0", "0.25", 2, [8.0, 4.0, 2.0, 1.0] * 2, ("1.5", "9.0")),
    Selected("both bits", 4, "8.0", "0.25", 1, [1.0, 2.0, 4.0, -8.0], ("2.0", "3.0"), "1.5"),
    Selected("subnormal numbers", 4, "8.0", "0.25", 1, [2.0**-149, -(2.0**-148), 0.0, 0.0]),
    Selected("not a number", 4, "8.0", "0.25", 1, [1.0, "nan", 4.0, -8.0], ("2.0", "3.0"), "9.0"),
    Selected("beyond float32", 4, "8.0", "0.25", 1, [1.0, 2.0, "1e39", -8.0], None, "9.0"),
    Selected("of another length", 4, "8.0", "0.25", 1, [1.0, 2.0, 4.0], None, "9.0"),
    Selected("none", 6, "8.0", "0.25", 2, None, ("2.0", "3.0"), "0.25"),
)


def encoded(one: Selected) -> dict[str, Any]:
    random, entries = Stream(one.name), one.entries
    sign = 1 if random.bits(1) else -1
    below, inside = None, None
    if entries is None:
        indices = distinct(one.d, one.h, random)
    else:
        top = top_of(entries, one.top_size, sign)
        inside = pick(one.weights(), random)
        members, others = sorted(top), sorted(set(range(one.d)) - set(top))
        indices = [members[place] for place in distinct(len(members), inside, random)]
        indices += [others[place] for place in distinct(len(others), one.h - inside, random)]
        below = sign * sum(Fraction(entries[place]) for place in top) / len(top)
    bit = None
    if one.bit is not None:
        epsilon, threshold = one.bit
        truth = random.bits(1) if below is None else int(below < Fraction(threshold))
        bit = flipped(truth, epsilon, random)
    payload = layouts.signds(sorted(indices), one.d, sign, bit)
    if one.health is not None:
        payload += bytes([flipped(int(entries is None), one.health, random)])
    return {
        "name": one.name,
        "d": one.d,
        "proposal": proposals.record(one.fields()),
        "update": one.update,
        "random": random.hex,
        "top": one.top_size,
        "threshold": one.threshold(),
        "weights": [f"{weight:x}" for weight in one.weights().values()],
        "inside": inside,
        "payload": payload.hex(),
    }


def made() -> dict[str, Any]:
    return {"cases": [encoded(one) for one in TRIES]}
