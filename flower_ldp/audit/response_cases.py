"""Cases of randomized response: on bits, categories, sets, a prior, codes and embeddings.

The worst pair is any two values, and the report itself tells them apart: it is the one value,
the other, or neither. Arbitrary embeddings differ in every bit, one-hot ones in two bits. What
tells these apart is the exact logarithm of the reports' ratio.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flower_ldp.audit.auditing import Draw
from flower_ldp.audit.cases import CLASSES, Case, Contrast, claim, shipped
from flower_ldp.mechanisms import (
    BinaryResponse,
    CodebookEmbedding,
    CodebookResponse,
    KaryResponse,
    RRWithPrior,
    SubsetSelection,
    UnaryEncoding,
)
from flower_ldp.mechanisms.random import RandomSource

Integers = NDArray[np.int64]
#: Bits of an embedding: few, so that the rarest report is not too rare.
_BITS = 4
_FIRST_CODE = "first code (1) or second (-1)"
#: Certain rows, and hesitant ones, of three classes.
CODES = np.concatenate([np.eye(3), 0.5 * np.eye(3) + 0.5 / 3])
#: Half of the classes are likely: RRWithPrior never reports the others below an epsilon of 4.5.
PRIOR = (0.19,) * 5 + (0.01,) * 5


@shipped("binary-response", lambda s: (BinaryResponse(s.epsilon),))
def binary_response(mechanism: BinaryResponse) -> Case:
    """Return the case of randomized response: the two bits, and the report itself."""
    return Case(
        f"binary-response (epsilon {mechanism.epsilon:g})",
        claim(mechanism.events())[0],
        mechanism.randomize,
        (Contrast("one release", (0, 1), np.asarray, "report"),),
        ((0, 1), (1, 0)),
        draws=1_000_000,
        draw_many=_array(mechanism),
    )


@shipped("kary-response", lambda s: (KaryResponse(s.epsilon, CLASSES),))
def kary_response(mechanism: KaryResponse) -> Case:
    """Return the case of k-ary response: two of the categories."""
    return Case(
        f"kary-response (epsilon {mechanism.epsilon:g}, k {mechanism.categories})",
        claim(mechanism.events())[0],
        mechanism.randomize,
        (_contrast("two categories", (0, 1)),),
        _neighbours(mechanism.categories),
        draws=1_000_000,
        draw_many=_array(mechanism),
        differing=_telling(mechanism),
    )


@shipped("subset-selection", lambda s: (SubsetSelection(s.epsilon, CLASSES),))
def subset_selection(mechanism: SubsetSelection) -> Case:
    """Return the case of subset selection: two categories, and which of them the set holds."""

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
        draw_many=_array(mechanism),
        # Two categories in a row whose sets have the same others are in both, or in neither.
        differing=_telling(mechanism) * (k - size) / (k - 1),
    )


@shipped("rr-with-prior", lambda s: (RRWithPrior(s.epsilon, len(PRIOR)), PRIOR))
def rr_with_prior(mechanism: RRWithPrior, prior: Sequence[float]) -> Case:
    """Return the case of RRWithPrior under one public prior.

    Two contrasts: the two likeliest categories, and the likeliest against the unlikeliest, which
    may be one that is never reported.
    """

    def draw(value: int, rng: RandomSource) -> int:
        return mechanism.randomize(value, rng, prior)

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
        draw_many=_array(mechanism, prior),
    )


@shipped("codebook-response", lambda s: (CodebookResponse(CODES, s.epsilon),))
def codebook_response(mechanism: CodebookResponse) -> Case:
    """Return the case of codebook response on one row: two rows with different codes."""
    codes = mechanism.codebook

    def score(reports: Sequence[Any]) -> Integers:
        return _which(reports, (0, 1)).reshape(len(reports))

    pair = (codes[:1], codes[1:2])
    return Case(
        f"codebook-response (epsilon {mechanism.epsilon:g}, {mechanism.codes} codes)",
        claim(mechanism.events())[0],
        mechanism.randomize,
        (Contrast("two codes", pair, score, _FIRST_CODE),),
        [(codes[i][None], codes[j][None]) for i, j in _neighbours(mechanism.codes)],
        draws=200_000,
        draw_many=rows_at_once(mechanism),
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


Floats = NDArray[np.float64]
# Records that the check for repeated noise chooses from.
_RECORDS = 16


@shipped("unary-one-hot", lambda s: (UnaryEncoding(s.epsilon, _BITS, one_hot=True),))
@shipped("unary-encoding", lambda s: (UnaryEncoding(2 * s.epsilon / _BITS, _BITS),))
def unary(mechanism: UnaryEncoding) -> Case:
    """Return the case of unary encoding: two records that differ in as many bits as they can.

    The score is how many bits of the report agree with the first record where the second
    differs, less those that agree with the second: in units of half the published label, the
    log-ratio.
    """
    if mechanism.epsilon is None:
        raise ValueError("quantization alone (epsilon None) makes no claim to audit")
    width = mechanism.bits
    if mechanism.one_hot:
        records = list(2.0 * np.eye(width)[:_RECORDS] - 1.0)
        pairs = list(zip(records, records[1:] + records[:1], strict=True))
        check = "two one-hot records"
    else:
        places = np.arange(width)
        ones, stripes = (np.where(places // step % 2 == 0, 1.0, -1.0) for step in (width, 1))
        pairs = [(record, -record) for record in (ones, -ones, stripes, -stripes)]
        check = "opposite records"
    first, second = (np.asarray(record > 0, dtype=np.int64) for record in pairs[0])

    def agreement(reports: Sequence[Any]) -> Integers:
        found = 2 * np.asarray(reports, dtype=np.int64) - 1
        return np.asarray(found @ (first - second))

    return Case(
        f"unary-encoding (label {mechanism.epsilon:g}, {width} "
        f"{'one-hot ' if mechanism.one_hot else ''}bits)",
        claim(mechanism.events())[0],
        mechanism.randomize,
        (Contrast(check, pairs[0], agreement, "bits told of the first, less of the second"),),
        pairs,
        draws=200_000,
        draw_many=_rows(mechanism),
    )


@shipped("codebook-embedding", lambda s: (CodebookEmbedding(s.epsilon, CLASSES),))
def codebook_embedding(mechanism: CodebookEmbedding) -> Case:
    """Return the case of an embedding's code: two records whose best codes differ."""
    records = list(np.eye(mechanism.codes)[:_RECORDS])
    pairs = list(zip(records, records[1:] + records[:1], strict=True))

    return Case(
        f"codebook-embedding (epsilon {mechanism.epsilon:g}, {mechanism.codes} codes)",
        claim(mechanism.events())[0],
        mechanism.randomize,
        (Contrast("two codes", pairs[0], lambda found: _which(found, (0, 1)), _FIRST_CODE),),
        pairs,
        draws=200_000,
        draw_many=_rows(mechanism),
    )


def _rows(mechanism: UnaryEncoding | CodebookEmbedding) -> Any:
    def draw_many(record: Floats, count: int, rng: RandomSource) -> NDArray[Any]:
        return mechanism.randomize(np.tile(record, (count, 1)), rng)

    return draw_many


def _array(mechanism: Any, *more: Any) -> Draw:
    def draw_many(value: int, count: int, rng: RandomSource) -> NDArray[Any]:
        found: NDArray[Any] = mechanism.randomize_array(np.full(count, value), rng, *more)
        return found

    return draw_many


def rows_at_once(mechanism: Any) -> Draw:
    """Return what draws reports of as many rows as are wanted, in one call."""

    @lru_cache(maxsize=2)
    def batch(count: int) -> Any:
        return replace(mechanism, rows=count)

    def draw_many(value: NDArray[np.float64], count: int, rng: RandomSource) -> NDArray[Any]:
        found: NDArray[Any] = batch(count).randomize(np.repeat(value, count, axis=0), rng)
        return found

    return draw_many
