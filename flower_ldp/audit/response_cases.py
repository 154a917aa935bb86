"""Cases of randomized response: on bits, categories, sets, categories with a prior, and codes.

The worst pair is any two values, and the report itself tells them apart: it is the one value,
the other, or neither.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flower_ldp.audit.cases import Case, Contrast, claim
from flower_ldp.mechanisms import (
    BinaryResponse,
    CodebookResponse,
    KaryResponse,
    MagRR,
    RRWithPrior,
    SubsetSelection,
)
from flower_ldp.mechanisms.random import RandomSource

Integers = NDArray[np.int64]


def binary_response(mechanism: BinaryResponse) -> Case:
    """Return the case of randomized response: the two bits, and the report itself."""

    def draw_many(value: int, count: int, rng: RandomSource) -> NDArray[np.uint8]:
        return mechanism.randomize_array(np.full(count, value), rng)

    return Case(
        f"binary-response (epsilon {mechanism.epsilon:g})",
        claim(mechanism.events())[0],
        mechanism.randomize,
        (Contrast("one release", (0, 1), np.asarray, "report"),),
        ((0, 1), (1, 0)),
        draws=1_000_000,
        draw_many=draw_many,
    )


def magrr(mechanism: MagRR) -> Case:
    """Return the case of the magnitude bit: its two answers."""
    return Case(
        f"magrr (epsilon {mechanism.epsilon:g})",
        claim(mechanism.events())[0],
        mechanism.randomize,
        (Contrast("one release", (False, True), np.asarray, "report"),),
        ((False, True), (True, False)),
        draws=200_000,
    )


def kary_response(mechanism: KaryResponse) -> Case:
    """Return the case of k-ary response: two of the categories."""

    def draw_many(value: int, count: int, rng: RandomSource) -> Integers:
        return mechanism.randomize_array(np.full(count, value), rng)

    return Case(
        f"kary-response (epsilon {mechanism.epsilon:g}, k {mechanism.categories})",
        claim(mechanism.events())[0],
        mechanism.randomize,
        (_contrast("two categories", (0, 1)),),
        _neighbours(mechanism.categories),
        draws=1_000_000,
        draw_many=draw_many,
        differing=_telling(mechanism),
    )


def subset_selection(mechanism: SubsetSelection) -> Case:
    """Return the case of subset selection: two categories, and which of them the set holds."""

    def draw_many(value: int, count: int, rng: RandomSource) -> Integers:
        return mechanism.randomize_array(np.full(count, value), rng)

    def score(reports: Sequence[Any]) -> Integers:
        held = mechanism.members(np.asarray(reports)).astype(np.int64)
        return np.asarray(held[..., 0] - held[..., 1])

    k, size = mechanism.categories, mechanism.size
    return Case(
        f"subset-selection (epsilon {mechanism.epsilon:g}, {size} of {k})",
        claim(mechanism.events())[0],
        mechanism.randomize,
        (Contrast("two categories", (0, 1), score, "first alone held (1) or second (-1)"),),
        _neighbours(k),
        draws=500_000,
        draw_many=draw_many,
        # Two categories in a row whose sets have the same others are in both, or in neither.
        differing=_telling(mechanism) * (k - size) / (k - 1),
    )


def rr_with_prior(mechanism: RRWithPrior, prior: Sequence[float]) -> Case:
    """Return the case of RRWithPrior under one public prior.

    Two contrasts: the two likeliest categories, and the likeliest against the unlikeliest, which
    may be one that is never reported.
    """

    def draw(value: int, rng: RandomSource) -> int:
        return mechanism.randomize(value, rng, prior)

    def draw_many(value: int, count: int, rng: RandomSource) -> Integers:
        return mechanism.randomize_array(np.full(count, value), rng, prior)

    order = np.argsort(-np.asarray(prior), kind="stable").tolist()
    likely, far = (order[0], order[1]), (order[0], order[-1])
    return Case(
        f"rr-with-prior (epsilon {mechanism.epsilon:g}, k {mechanism.categories}, "
        f"{mechanism.sizes(prior)} reported)",
        claim(mechanism.events())[0],
        draw,
        (_contrast("two likely", likely), _contrast("likely, unlikely", far)),
        (likely, likely[::-1], far, far[::-1]),
        draws=200_000,
        draw_many=draw_many,
    )


def codebook_response(mechanism: CodebookResponse) -> Case:
    """Return the case of codebook response on one row: two rows with different codes."""
    codes = mechanism.codebook

    @lru_cache(maxsize=2)
    def batch(count: int) -> CodebookResponse:
        return CodebookResponse(codes, mechanism.epsilon, rows=count)

    def draw_many(value: NDArray[np.float64], count: int, rng: RandomSource) -> Integers:
        return batch(count).randomize(np.repeat(value, count, axis=0), rng)

    def score(reports: Sequence[Any]) -> Integers:
        return _which(reports, (0, 1)).reshape(len(reports))

    pair = (codes[:1], codes[1:2])
    return Case(
        f"codebook-response (epsilon {mechanism.epsilon:g}, {mechanism.codes} codes)",
        claim(mechanism.events())[0],
        mechanism.randomize,
        (Contrast("two codes", pair, score, "first code (1) or second (-1)"),),
        [(codes[i][None], codes[j][None]) for i, j in _neighbours(mechanism.codes)],
        draws=200_000,
        draw_many=draw_many,
        differing=_telling(mechanism.response),
    )


def _contrast(check: str, pair: tuple[int, int]) -> Contrast:
    return Contrast(
        check, pair, lambda reports: _which(reports, pair), "first value (1) or second (-1)"
    )


def _which(reports: Sequence[Any], pair: tuple[int, int]) -> Integers:
    """Return 1 for reports of the first value of a pair, -1 for the second, else 0."""
    found = np.asarray(reports)
    return np.asarray((found == pair[0]).astype(np.int64) - (found == pair[1]))


def _telling(response: KaryResponse | SubsetSelection) -> float:
    """Return the chance of noise under which the report names the value, whichever it is."""
    return response.keep_probability * -math.expm1(-response.epsilon)


def _neighbours(values: int) -> list[tuple[int, int]]:
    return [(value, (value + 1) % values) for value in range(min(values, 16))]
