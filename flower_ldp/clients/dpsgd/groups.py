"""Whose each row is: which rows belong to which example."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice

import numpy as np
from numpy.typing import NDArray

#: The most rows of an example that count in a step: every example fills as many places.
MOST_ROWS = 1_000


def by_group(groups: Iterable[Hashable], rows: int) -> list[NDArray[np.int64]]:
    """Return the rows of each group.

    Parameters
    ----------
    groups : iterable of hashable
        **Private**: of each row, whose it is. Fewer than there are rows leave rows without a group.
        A sequence is read by index: a place that raises is a row without a group.
    rows : int
        Number of rows.

    Returns
    -------
    list of ndarray of int64
        A row that belongs to nobody is in none.
    """
    found: dict[Hashable, list[int]] = {}
    for row, group in enumerate(islice(_each(groups), rows)):
        if named(group):
            with suppress(Exception):  # comparing keys is their own code
                found.setdefault(group, []).append(row)
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


def named(group: object) -> bool:
    """Return whether this says whose a row is: not None, an empty text, NaN, or no key at all."""
    try:
        hash(group)
        return group is not None and group != "" and bool(group == group)  # NaN is not itself
    except Exception:  # by no type of its own: keys are private data
        return False
