"""Cases of embeddings: randomized bits of a record, and a randomized code.

The worst pair of arbitrary records differs in every bit, of one-hot ones in two bits, of codes in
the code. What tells them apart is the exact logarithm of the reports' ratio.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flower_ldp.audit.cases import Case, Contrast, claim
from flower_ldp.mechanisms import CodebookEmbedding, UnaryEncoding
from flower_ldp.mechanisms.random import RandomSource

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]
# Records that the check for repeated noise chooses from.
_RECORDS = 16


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


def codebook_embedding(mechanism: CodebookEmbedding) -> Case:
    """Return the case of an embedding's code: two records whose best codes differ."""
    records = list(np.eye(mechanism.codes)[:_RECORDS])
    pairs = list(zip(records, records[1:] + records[:1], strict=True))

    def which(reports: Sequence[Any]) -> Integers:
        found = np.asarray(reports, dtype=np.int64)
        return np.asarray((found == 0).astype(np.int64) - (found == 1))

    return Case(
        f"codebook-embedding (epsilon {mechanism.epsilon:g}, {mechanism.codes} codes)",
        claim(mechanism.events())[0],
        mechanism.randomize,
        (Contrast("two codes", pairs[0], which, "first code (1) or second (-1)"),),
        pairs,
        draws=200_000,
        draw_many=_rows(mechanism),
    )


def _rows(mechanism: UnaryEncoding | CodebookEmbedding) -> Any:
    def draw_many(record: Floats, count: int, rng: RandomSource) -> NDArray[Any]:
        return mechanism.randomize(np.tile(record, (count, 1)), rng)

    return draw_many
