"""A codeword's draw by the text of docs/other_languages.md, in exact numbers.

Nothing of the package is imported here, and nothing is rounded: inner products are sums of whole
numbers, by the definition of Hadamard's matrix.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from tests.vectors import layouts


class Stream:
    """Public random bytes, and how many of them were taken; some may be chosen to come first."""

    def __init__(self, name: str, first: bytes = b"") -> None:
        self._bytes = first + hashlib.shake_128(name.encode()).digest(4096)
        self.taken = 0

    def bits(self, width: int) -> int:
        size = -(-width // 8)
        part = self._bytes[self.taken : self.taken + size]
        self.taken += size
        return int.from_bytes(part, "little") >> (8 * size - width)

    def below(self, n: int) -> int:
        width = len(f"{n - 1:b}") if n > 1 else 0
        while True:
            found = self.bits(width)
            if found < n:
                return found

    @property
    def hex(self) -> str:
        return self._bytes[: self.taken].hex()


def exp_floor(epsilon: str) -> int:
    """Return e^epsilon * 2^128, rounded down, by its series with 500 bits more."""
    power, term, n = 0, 1 << 628, 0
    exponent = Fraction(epsilon)
    while term:
        power += term
        n += 1
        term = term * exponent.numerator // (exponent.denominator * n)
    return power >> 500


def signs(seed: int, number: int, n: int) -> list[int]:
    name = b"flower-ldp rotation" + seed.to_bytes(8, "big") + number.to_bytes(4, "big")
    stream = hashlib.shake_256(name).digest(-(-n // 8))
    text = "".join(f"{byte:08b}" for byte in stream)
    return [-1 if bit == "1" else 1 for bit in text[:n]]


def hadamard(vector: Sequence[int]) -> list[int]:
    """Return Hadamard's matrix times a vector, by its definition."""
    there = [(place, value) for place, value in enumerate(vector) if value]
    return [
        sum(-value if (row & place).bit_count() & 1 else value for place, value in there)
        for row in range(len(vector))
    ]


@dataclass(frozen=True)
class Question:
    """What a codeword is asked for: the proposal's numbers and d."""

    d: int
    epsilon: str
    favoured: int
    rotations: int
    seed: int
    blocks: int = 1

    @property
    def n(self) -> int:
        return layouts.rows(self.d, self.blocks)

    @property
    def weight(self) -> int:
        """P(the report is favoured) in units of 2^-256."""
        power = self.favoured * exp_floor(self.epsilon)
        return (power << 256) // (power + ((2 * self.n - self.favoured) << 128))

    def products(self, update: Sequence[int], code: int) -> list[int]:
        size, found = -(-self.d // self.blocks), []
        order, flips = self.n // self.blocks, signs(self.seed, code, self.n)
        for block in range(self.blocks):
            part = list(update[block * size : (block + 1) * size])
            part += [0] * (order - len(part))
            signed = zip(part, flips[block * order : (block + 1) * order], strict=True)
            found += hadamard([value * flip for value, flip in signed])
        return found

    def favoured_of(self, products: Sequence[int], offset: int) -> list[int]:
        """Return the positions of the K favoured codewords, in ascending order."""
        both = [value for product in products for value in (product, -product)]
        least = sorted(both, reverse=True)[self.favoured - 1]
        above = [place for place, value in enumerate(both) if value > least]
        ties = [place for place, value in enumerate(both) if value == least]
        ties.sort(key=lambda place: (place - offset) % len(both))
        return sorted(above + ties[: self.favoured - len(above)])

    def margin(self, products: Sequence[int]) -> int:
        """Return how far the codewords nearest to the edge of the favoured ones are apart."""
        ranked = sorted((v for product in products for v in (product, -product)), reverse=True)
        return ranked[self.favoured - 1] - ranked[self.favoured]


def draw(question: Question, update: Sequence[int], random: Stream) -> Iterator[object]:
    """Yield the code, the inner products, the favoured positions and the one that is reported."""
    code = random.below(question.rotations)
    products = question.products(update, code)
    favoured = question.favoured_of(products, random.below(2 * question.n))
    inside = random.bits(256) < question.weight
    within = favoured[random.below(question.favoured)]
    others = sorted(set(range(2 * question.n)) - set(favoured))
    beside = others[random.below(len(others))]
    yield from (code, products, favoured, within if inside else beside)


def flip_weight(epsilon: str) -> int:
    """Return P(a bit is flipped) in units of 2^-256, rounded up."""
    return -(-(1 << 384) // ((1 << 128) + exp_floor(epsilon)))


def flipped(bit: int, epsilon: str, random: Stream) -> int:
    """Return a bit after binary randomized response."""
    return bit ^ (random.bits(256) < flip_weight(epsilon))
