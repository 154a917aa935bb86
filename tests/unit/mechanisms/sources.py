"""A source of randomness that hands out what it was given."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from flower_ldp.mechanisms.random import RandomSource


class Scripted(RandomSource):
    """Hands out prepared 64-bit words, numbers of as many bits as are asked for, and bytes."""

    def __init__(
        self, words: Sequence[int] = (), numbers: Sequence[int] = (), drawn: bytes = b""
    ) -> None:
        super().__init__()
        self.left, self.numbers, self.drawn = list(words), list(numbers), drawn
        self.asked: list[int] = []

    def words(self, size: int) -> NDArray[np.uint64]:
        found, self.left = self.left[:size], self.left[size:]
        assert len(found) == size
        return np.array(found, dtype=np.uint64)

    def bits(self, n: int) -> int:
        self.asked.append(n)
        return self.numbers.pop(0)

    def random_bytes(self, n: int) -> bytes:
        found, self.drawn = self.drawn[:n], self.drawn[n:]
        assert len(found) == n
        return found
