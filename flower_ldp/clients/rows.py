"""Rows of private data as an app gives them, and whose they are: which belong to which example."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from itertools import islice
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

#: The most rows of an example that count in a step: every example fills as many places.
MOST_ROWS = 1_000


class Data(Protocol):
    """Rows read by index: what torch calls a map-style data set."""

    def __len__(self) -> int:
        """Return the number of rows."""

    def __getitem__(self, index: int, /) -> Any:
        """Return a row: numbers, or a tuple or list that may end with its target or label."""


def by_group(groups: Iterable[Hashable], rows: int) -> list[NDArray[np.int64]]:
    """Return the rows of each group.

    Parameters
    ----------
    groups : iterable of hashable
        **Private**: of each row, whose it is. Fewer than there are rows leave rows without a group.
        A sequence is read by index: a place that raises is a row without a group. Arrays and
        tensors are read as the numbers that are in them.
    rows : int
        Number of rows.

    Returns
    -------
    list of ndarray of int64
        A row that belongs to nobody is in none.

    Raises
    ------
    ValueError
        If the groups are no list of places, as a dictionary or a set.
    """
    if isinstance(groups, (Mapping, Set)):
        raise ValueError("groups must say of each row, in the order of rows, whose it is")
    found: dict[Hashable, list[int]] = {}
    for row, group in enumerate(islice(_each(groups), rows)):
        with suppress(Exception):  # comparing keys is their own code
            if (key := _key(group)) is not None:
                found.setdefault(key, []).append(row)
    return [np.array(members, dtype=np.int64) for members in found.values()]


def _each(groups: Iterable[Hashable]) -> Iterator[Hashable]:
    if not isinstance(groups, Sequence):
        yield from groups
        return
    for place in range(len(groups)):
        try:
            group = groups[place]
        except KeyboardInterrupt:
            raise
        except BaseException:  # as of a row: it is this place's alone
            group = None
        yield group


def _key(group: Hashable) -> Hashable:
    """Return what tells a group from others by its value, or None if nothing does.

    None, an empty text and NaN are nobody's. Of numbers in arrays it is the number. What is told
    apart by where it lies in memory, as tensors are and objects without a hash of their own, would
    make each row somebody else's.
    """
    if getattr(group, "ndim", None) == 0 and hasattr(group, "item"):
        group = group.item()
    if type(group) is tuple:
        parts = tuple(map(_key, group))
        return None if None in parts else parts
    if group is None or group == "" or type(group).__hash__ is object.__hash__:
        return None
    hash(group)
    return group if (group == group) is True else None  # NaN is not itself, a tensor not one truth
