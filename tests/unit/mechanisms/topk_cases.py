"""Definitions and nasty vectors that the tests of the top set share."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flower_ldp.mechanisms import topk as _rank
from flower_ldp.mechanisms.topk import TopSet

Vector = NDArray[np.floating[Any]]
DTYPES: tuple[type[np.floating[Any]], ...] = (np.float16, np.float32, np.float64)


def by_definition(values: Vector, size: int, sign: int) -> set[int]:
    """Return the K largest of ``sign * values``, ties to the lowest positions."""
    order = sorted(range(len(values)), key=lambda i: (-sign * float(values[i]), i))
    return set(order[:size])


def by_stable_sort(values: Vector, size: int, sign: int) -> NDArray[np.bool_]:
    """The same for long vectors, as a mask."""
    scaled = np.where(values == 0, 0.0, -sign * values.astype(np.float64))
    mask = np.zeros(len(values), dtype=np.bool_)
    mask[np.argsort(scaled, kind="stable")[:size]] = True
    return mask


def members(top: TopSet) -> NDArray[np.bool_]:
    return top.contains(np.arange(len(top.values), dtype=np.int64))


def sample_positions(length: int) -> NDArray[np.int64]:
    """Return the positions at which the bracket looks, found by looking at positions."""
    count = min(_rank._LARGEST_SAMPLE, max(_rank._SMALLEST_SAMPLE, length // 64))
    seen: list[NDArray[np.float64]] = []

    class Spy(np.ndarray[Any, np.dtype[np.float64]]):
        def __getitem__(self, key: Any) -> Any:
            seen.append(np.asarray(key))
            return np.asarray(self)[key]

    _rank._bracket(np.zeros(length).view(Spy), length // 2, 1)
    assert len(seen[0]) == count
    return seen[0].astype(np.int64)


NASTY = (
    "all equal",
    "all zero",
    "half zeros",
    "most zeros",
    "two values",
    "two values, sorted",
    "denormals",
    "signed zeros",
    "signed zeros and denormals",
    "ascending",
    "descending",
    "resonant",
    "outliers",
    "sample sees only decoys",
    "sample sees only the worst",
    "sample misses the mass",
    "sample misses a crowd",
    "one spike",
)


@lru_cache(maxsize=2)
def nasty(length: int) -> dict[str, NDArray[np.float64]]:
    """Return vectors by their name; they are made once, and cannot be written to."""
    rng = np.random.default_rng(2)
    normal = rng.standard_normal(length)
    half = np.where(rng.random(length) < 0.5, 0.0, normal)
    signed_zeros = np.where(rng.random(length) < 0.5, 0.0, -0.0)
    seen = sample_positions(length)
    decoy, worst = -np.abs(normal), np.abs(normal)
    decoy[seen], worst[seen] = 9.0, -9.0
    hidden, crowd = np.zeros(length), 5.3 + 1e-3 * normal
    hidden[seen], crowd[seen] = normal[seen], np.linspace(-9, 9, len(seen))
    outliers = normal.copy()
    outliers[:: length // 7] = 6e4
    outliers[3 :: length // 7] = -6e4
    found = {
        "all equal": np.full(length, 0.25),
        "all zero": np.zeros(length),
        "half zeros": half,
        "most zeros": np.where(rng.random(length) < 0.9, 0.0, normal),
        "two values": np.where(rng.random(length) < 0.3, 1.0, -1.0),
        "two values, sorted": np.repeat([1.0, -1.0], [length // 3, length - length // 3]),
        "denormals": rng.integers(-5, 6, length) * 6e-8,
        "signed zeros": signed_zeros,
        "signed zeros and denormals": np.where(rng.random(length) < 0.1, 6e-8, signed_zeros),
        "ascending": np.linspace(-5, 5, length),
        "descending": np.linspace(5, -5, length),
        "resonant": np.tile(np.arange(64.0), length // 64 + 1)[:length],
        "outliers": outliers,
        "sample sees only decoys": decoy,
        "sample sees only the worst": worst,
        "sample misses the mass": hidden,
        "sample misses a crowd": crowd,
        "one spike": np.eye(1, length, length // 2)[0],
    }
    for values in found.values():
        values.flags.writeable = False
    return found


def sizes_of_interest(values: Vector) -> list[int]:
    """Return K at the ends, in the middle, and around the edges of every large tie mass."""
    length = len(values)
    sizes = {1, 2, length // 5, length // 2, length - 1, length}
    levels, counts = np.unique(values, return_counts=True)
    for level in levels[np.argsort(counts)[-3:]]:
        for edge in (int((values > level).sum()), int((values >= level).sum())):
            sizes |= {edge - 1, edge, edge + 1}
    return sorted(size for size in sizes if 1 <= size <= length)
