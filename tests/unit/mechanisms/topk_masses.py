"""Vectors of production size whose equal values lie exactly where the sampled selection looks.

Every vector is made from small integers, its *levels*, by a map that keeps their order. So its
top sets are known from sorting integers, with no floating-point number compared.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from flower_ldp.mechanisms.topk import TopSet
from tests.unit.mechanisms.topk_cases import DTYPES, Vector, sample_positions

Levels = NDArray[np.int16]

#: Shortest vector that is long, and lengths up to 2^20, the short ones more often.
LENGTHS = (*[131_073] * 7, 150_001, 196_608, 300_000)
LONGEST = (1 << 20, 524_289, 1_000_000)
#: Levels are bit patterns of half precision: of every float16 there is.
MOST = 0x7BFF
LAYOUTS = ("plain", "plain", "plain", "strided", "reversed", "swapped", "frozen")
MASSES = (
    "all",
    "one more",
    "one fewer",
    "twice",
    "all but a few",
    "two values",
    "three values",
    "everywhere alike",
    "nowhere else",
)
BACKGROUNDS = ("below", "above", "around", "two sides", "ascending", "one value")
_CENTERS = (0, 1, -1, 5, 1024, -1024, 20_000, -20_000, MOST - 2, 2 - MOST)


@dataclass(frozen=True)
class Masses:
    """A vector, the integers it was made from, and the K and signs to ask for."""

    name: str
    values: Vector
    levels: Levels
    asked: tuple[tuple[int, int], ...]

    @cached_property
    def _orders(self) -> dict[int, NDArray[np.int64]]:
        return {}

    def best(self, size: int, sign: int) -> NDArray[np.bool_]:
        """Return the top set by its definition, a stable sort of the levels."""
        if sign not in self._orders:
            self._orders[sign] = np.argsort(-sign * self.levels, kind="stable")
        inside = np.zeros(len(self.levels), dtype=np.bool_)
        inside[self._orders[sign][:size]] = True
        return inside

    def wrong(self, top: TopSet) -> str | None:
        """Say what is wrong with a top set of this vector, by both of its rules."""
        expected = self.best(top.size, top.sign)
        by_index = top.contains(_positions(len(expected)))
        by_block = np.concatenate([mask.copy() for _, _, mask in top._masks()])
        for rule, found in (("index", by_index), ("block", by_block)):
            if not np.array_equal(found, expected):
                return (
                    f"{self.name}, K {top.size}, sign {top.sign}: by {rule} {found.sum()} "
                    f"members, {(found != expected).sum()} of them or of the others wrong"
                )
        return None


def masses(count: int, seed: int, long_every: int = 40) -> Iterator[Masses]:
    """Yield ``count`` vectors; one in ``long_every`` is among the longest."""
    rng = np.random.default_rng(seed)
    for i in range(count):
        if i % long_every == long_every - 1:
            length = LONGEST[(i // long_every) % len(LONGEST)]
        else:
            length = int(rng.choice(LENGTHS))
        yield _masses(length, rng)


def to_floats(levels: Levels, dtype: type[np.floating], rng: np.random.Generator) -> Vector:
    """Return floats in the order of the levels: 0 is a zero of either sign, 1 a subnormal."""
    bits = 8 * np.dtype(dtype).itemsize
    unsigned = np.dtype(f"u{bits // 8}").type
    # All of the exponents, or consecutive numbers: subnormal ones in float32 and float64.
    shift = unsigned(rng.choice([0, bits - 16]))
    pattern = np.abs(levels).astype(unsigned) << shift
    negative = levels < 0
    zeros = np.flatnonzero(levels == 0)
    negative[zeros] = rng.random(len(zeros)) < 0.5
    pattern |= negative.astype(unsigned) << unsigned(bits - 1)
    return pattern.view(dtype)


@lru_cache(maxsize=16)
def probes(length: int) -> NDArray[np.int64]:
    return sample_positions(length)


@lru_cache(maxsize=4)
def _positions(length: int) -> NDArray[np.int64]:
    return np.arange(length)


def _masses(length: int, rng: np.random.Generator) -> Masses:
    mass, background = str(rng.choice(MASSES)), str(rng.choice(BACKGROUNDS))
    center, dtype = int(rng.choice(_CENTERS)), DTYPES[rng.integers(len(DTYPES))]
    levels = _background(background, length, center, rng)
    usual = int(rng.choice(_sizes(length)))
    _put(levels, mass, center, usual, rng)
    layout = str(rng.choice(LAYOUTS))
    values = _laid_out(to_floats(levels, dtype, rng), layout)
    edges = [int((levels > center).sum()), int((levels >= center).sum())]
    edge = int(np.clip(rng.choice(edges) + rng.integers(-1, 2), 1, length))
    # One sign for both: the definition is sorted once.
    sign = int(rng.choice([-1, 1]))
    name = f"d {length}, {values.dtype} {layout}, {mass} at {center}, {background}"
    return Masses(name, values, levels, ((usual, sign), (edge, sign)))


def _background(kind: str, length: int, center: int, rng: np.random.Generator) -> Levels:
    low, high = max(-MOST, center - 30_000), min(MOST, center + 30_000)
    if kind == "below":
        return rng.integers(low, center, length, dtype=np.int16)
    if kind == "above":
        return rng.integers(center + 1, high, length, dtype=np.int16, endpoint=True)
    if kind == "around":
        return rng.integers(low, high, length, dtype=np.int16, endpoint=True)
    if kind == "two sides":
        coins = rng.integers(0, 256, length, dtype=np.uint8) < rng.integers(1, 256)
        return (center - 1 + 2 * coins.astype(np.int16)).astype(np.int16)
    if kind == "ascending":
        return np.linspace(low, high, length).astype(np.int16)
    return np.full(length, center + rng.choice([-1, 1]), dtype=np.int16)


def _put(levels: Levels, mass: str, center: int, size: int, rng: np.random.Generator) -> None:
    """Put the mass where the selection looks, or so that what it sees is typical."""
    if mass == "everywhere alike":
        levels[rng.random(len(levels)) < rng.choice([0.01, 0.1, 0.5])] = center
        return
    seen = probes(len(levels))
    n, kept = len(seen), levels[seen].copy()
    levels[seen] = center
    if mass in ("one more", "twice"):
        levels[rng.integers(len(levels), size=1 if mass == "one more" else n)] = center
    elif mass in ("one fewer", "all but a few"):
        few = rng.permutation(n)[: 1 if mass == "one fewer" else rng.integers(2, 200)]
        levels[seen[few]] = kept[few]
    elif mass == "nowhere else":
        levels[levels == center] = center + 1
        levels[seen[: rng.integers(1, n)]] = center
    elif mass in ("two values", "three values"):
        # Borders between the values near the ranks that the bracket's ends may have.
        order, rank = rng.permutation(n), n * size / len(levels)
        slack = 3.5 * np.sqrt(rank * (1 - size / len(levels))) + 8
        first = int(rank - rng.choice([-1, 0, 1]) * slack) + int(rng.integers(-2, 3))
        levels[seen[order[: max(first, 0)]]] = center + 1
        if mass == "three values":
            levels[seen[order[max(first, 0) + int(2 * slack) :]]] = center - 1


def _sizes(length: int) -> list[int]:
    n = len(probes(length))
    around = [1, 2, n // 2, n - 1, n, n + 1, 2 * n, 3 * n]
    return around + [round(share * length) for share in (0.01, 0.1, 0.2, 0.25)]


def _laid_out(values: Vector, layout: str) -> Vector:
    if layout == "strided":
        wide = np.empty((len(values), 2), dtype=values.dtype)
        wide[:, 1] = values
        return wide[:, 1]
    if layout == "reversed":
        return values[::-1].copy()[::-1]
    if layout == "swapped":
        return values.astype(values.dtype.newbyteorder())
    values.flags.writeable = layout != "frozen"
    return values
