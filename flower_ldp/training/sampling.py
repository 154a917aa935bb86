"""Poisson sampling: in each batch, every example takes part by a coin of its own.

That is what DP-SGD's accounting speaks of. Batches of a fixed size from a shuffled list, which
ordinary loaders make, are another mechanism, for which no such theorem is known. The coins are
secret and come from :class:`~flower_ldp.mechanisms.RandomSource`.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from flower_ldp.mechanisms.random import RandomSource


class PoissonBatches:
    """Batches of indices for torch's ``DataLoader(batch_sampler=...)``.

    Parameters
    ----------
    examples : int
        n, at least 1.
    expected : int
        Mean size of a batch, in [1, n]. Each example takes part with probability
        expected / n, rounded down to a multiple of 2^-64.
    batches : int
        Batches in an epoch, at least 1. Some may be empty.
    rng : RandomSource, optional
        A fresh one if left out.

    Raises
    ------
    ValueError
        If a parameter is outside its interval.
    """

    def __init__(
        self, examples: int, expected: int, batches: int, rng: RandomSource | None = None
    ) -> None:
        if examples < 1:
            raise ValueError(f"examples must be at least 1, got {examples}")
        if not 1 <= expected <= examples:
            raise ValueError(f"expected must be in [1, {examples}], got {expected}")
        if batches < 1:
            raise ValueError(f"batches must be at least 1, got {batches}")
        self._examples = examples
        self._batches = batches
        self._last = np.uint64((expected << 64) // examples - 1)
        self._rng = RandomSource.from_os() if rng is None else rng

    def __len__(self) -> int:
        return self._batches

    def __iter__(self) -> Iterator[list[int]]:
        for _ in range(self._batches):
            (chosen,) = np.nonzero(self._rng.words(self._examples) <= self._last)
            yield chosen.tolist()
