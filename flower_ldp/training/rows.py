"""Rows of private data, read one by one; what cannot be read is no row, and stops nothing.

Under a claim about one example a row that raises, is malformed or has another shape must not change
what is computed of the others. So each row is read by itself and put into the form of a public
example row (``like``); where that fails there is ``None``, and the public row stands in its place
wherever shapes have to be filled.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from flower_ldp.clients.calling import cause_of
from flower_ldp.clients.dpsgd.groups import MOST_ROWS, by_group
from flower_ldp.errors import quoted
from flower_ldp.mechanisms.random import RandomSource
from flower_ldp.mechanisms.sampling.subset import uniform_subset
from flower_ldp.own_log import say

_log = logging.getLogger("flower_ldp")

Row = tuple[torch.Tensor, ...]


class Data(Protocol):
    """What torch calls a map-style data set."""

    def __len__(self) -> int:
        """Return the number of rows."""

    def __getitem__(self, index: int, /) -> Any:
        """Return a row: features and a target, or whatever the public row has."""


class Rows:
    """A data set whose rows come in the form of a public one, or not at all.

    Parameters
    ----------
    data : Data
        **Private**. It is asked for one row at a time.
    like : sequence of array_like
        A public row: what features and target look like.
    strict : bool
        Raise what a row raises: for public data.

    Raises
    ------
    ValueError
        If the public row is none.
    """

    def __init__(self, data: Data, like: Sequence[Any], *, strict: bool = False) -> None:
        if not isinstance(like, (tuple, list)) or len(like) < 1:
            raise ValueError("like must be a public row, as (features, target)")
        self._data, self._strict = data, strict
        self._said = False
        self.stand_in: Row = tuple(torch.as_tensor(part).detach().clone() for part in like)

    def read(self, index: int) -> Row | None:
        """Return a row, or None if it cannot be read in the form of the public one."""
        try:
            return self._formed(self._data[index])
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # a row that exits is a row that fails
            if self._strict:
                raise
            self._tell(index, error)
            return None

    def _formed(self, row: Any) -> Row:
        if not isinstance(row, (tuple, list)) or len(row) != len(self.stand_in):
            raise ValueError(f"a row must have {len(self.stand_in)} parts")
        return tuple(_like(part, like) for part, like in zip(row, self.stand_in, strict=True))

    def _tell(self, index: int, error: BaseException) -> None:
        """Log the first row that fails: the log is the owner's."""
        if not self._said:
            self._said = True
            text = "row %d cannot be read and counts as zero, as others like it do\n%s"
            say(_log, logging.WARNING, text, index, cause_of(error))


def _like(part: Any, like: torch.Tensor) -> torch.Tensor:
    found = torch.as_tensor(part).detach().as_subclass(torch.Tensor)
    if found.shape != like.shape:
        raise ValueError(f"expected shape {tuple(like.shape)}, found {tuple(found.shape)}")
    if found.layout != like.layout:  # as a sparse one: it would not lie beside the others
        raise ValueError(f"expected {like.layout}, found {found.layout}")
    if found.is_complex() or (found.is_floating_point() and not like.is_floating_point()):
        raise ValueError(f"expected {like.dtype}, found {found.dtype}")
    return found.to(like.device, like.dtype, copy=True)


class Examples:
    """Which rows belong to which example.

    Parameters
    ----------
    rows : int
        Number of rows.
    groups : iterable of hashable, optional
        Of each row, whose it is; without it each row is an example. A row without a group (None,
        an empty text, NaN, or none given) belongs to nobody.
    max_rows : int
        Rows of an example that count in a step; in [1, 1,000].
    at_least : int
        n, by the owner's policy. Where fewer are found, the others are examples without a row, so
        that how many there are to draw from does not tell that one has lost its rows.

    Raises
    ------
    ValueError
        If ``max_rows`` is no integer in [1, 1,000].
    """

    def __init__(
        self,
        rows: int,
        groups: Iterable[Hashable] | None = None,
        max_rows: int = 1,
        at_least: int = 0,
    ) -> None:
        whole = isinstance(max_rows, int) and not isinstance(max_rows, bool)
        if not (whole and 1 <= max_rows <= MOST_ROWS):
            raise ValueError(
                f"max_rows must be an integer in [1, {MOST_ROWS:,}], got {quoted(max_rows)}"
            )
        self.max_rows = 1 if groups is None else max_rows
        self._at_least = at_least
        self._rows = (
            [np.array([row]) for row in range(rows)] if groups is None else by_group(groups, rows)
        )
        self._tell(rows)

    def __len__(self) -> int:
        return max(len(self._rows), self._at_least)

    def _tell(self, rows: int) -> None:
        """Log what is not as the policy says: the log is the owner's."""
        nobodys = rows - sum(map(len, self._rows))
        if nobodys:
            text = "%d of %d rows have no group that tells whose they are, and count as zero"
            say(_log, logging.WARNING, text, nobodys, rows)
        if 0 < self._at_least < len(self._rows):
            text = "there are %d examples or patients, and the policy says %d: correct one of them"
            say(_log, logging.WARNING, text, len(self._rows), self._at_least)

    def rows(self, example: int, rng: RandomSource) -> NDArray[np.int64]:
        """Return at most ``max_rows`` rows of an example, drawn anew."""
        if example >= len(self._rows):
            return np.zeros(0, dtype=np.int64)
        rows = self._rows[example]
        if len(rows) <= self.max_rows:
            return rows
        return rows[uniform_subset(rng, len(rows), self.max_rows)]


def taking_part(examples: int, rate: float, rng: RandomSource) -> NDArray[np.int64]:
    """Return who takes part in a step: each by a coin of its own, with probability ``rate``.

    The probability is rounded down to a multiple of 2^-64.
    """
    weight = int(np.ldexp(rate, 64)) if rate < 1 else 1 << 64
    if not weight:
        return np.zeros(0, dtype=np.int64)
    (chosen,) = np.nonzero(rng.words(examples) <= np.uint64(weight - 1))
    return chosen.astype(np.int64)
