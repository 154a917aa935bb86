"""Private rows in the form of a public row, their examples, and worker processes.

Workers are forked, so model, loss and data may be closures. A dead worker fails the training.
"""

import logging
import os
import warnings
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from flower_ldp.clients.session import MOST_ROWS, Data, by_group
from flower_ldp.errors import say
from flower_ldp.isolation import Tensors
from flower_ldp.mechanisms.random import RandomSource, uniform_subset
from flower_ldp.parameter_bounds import check_in
from flower_ldp.training.row_form import Row, form_of, in_form

_log = logging.getLogger("flower_ldp")


class Rows:
    """Rows of a **private** data set, in the form of the public row ``like``.

    With ``strict`` the data is public, and errors of a row are raised.
    """

    def __init__(self, data: Data, like: Any, *, strict: bool = False) -> None:
        if isinstance(like, (tuple, list, Mapping)) and not like:
            raise ValueError("like must be a public row, as (features, target) or a dict")
        self._data, self.strict = data, strict
        self.like: Row = form_of(like)

    def read(self, index: int) -> Row:
        """Return a row; raise what the data raises, or ValueError for another form."""
        return in_form(self._data[index], self.like)


class Examples:
    """The rows of each example; without ``groups`` each row is one.

    A row without a group is in no example. ``at_least`` is the policy's number of examples.
    """

    def __init__(
        self,
        rows: int,
        groups: Iterable[Hashable] | None = None,
        max_rows: int = 1,
        at_least: int = 0,
    ) -> None:
        check_in(f"[1, {MOST_ROWS}]", "max_rows", max_rows, int)
        self.max_rows = 1 if groups is None else max_rows
        self._at_least = at_least
        self._rows = by_group(groups, rows)
        # What is not as the policy says is logged: the log is the owner's.
        nobodys = rows - sum(map(len, self._rows))
        if nobodys:
            text = "%d of %d rows have no group that tells whose they are, and count as zero"
            say(_log, logging.WARNING, text, nobodys, rows)
        if 0 < self._at_least < len(self._rows):
            text = "there are %d examples or patients, and the policy says %d: correct one of them"
            say(_log, logging.WARNING, text, len(self._rows), self._at_least)

    def __len__(self) -> int:
        return max(len(self._rows), self._at_least)

    def rows(self, example: int, rng: RandomSource) -> NDArray[np.int64]:
        """Return at most ``max_rows`` rows of an example, drawn anew."""
        if example >= len(self._rows):
            return np.zeros(0, dtype=np.int64)
        rows = self._rows[example]
        if len(rows) <= self.max_rows:
            return rows
        return rows[uniform_subset(rng, len(rows), self.max_rows)]

    def drawn(self, rate: float, rng: RandomSource) -> list[list[int]]:
        """Return the rows of each example in a step, drawn anew."""
        return [self.rows(int(one), rng).tolist() for one in taking_part(len(self), rate, rng)]


def taking_part(examples: int, rate: float, rng: RandomSource) -> NDArray[np.int64]:
    """Return the examples in a step, each with a probability rounded down to multiples of 2^-64."""
    weight = int(np.ldexp(rate, 64)) if rate < 1 else 1 << 64
    if not weight:
        return np.zeros(0, dtype=np.int64)
    (chosen,) = np.nonzero(rng.words(examples) <= np.uint64(weight - 1))
    return chosen.astype(np.int64)


#: Computes something of weights and of examples, given by their rows' indices.
Compute = Callable[[Tensors, Sequence[Sequence[int]]], torch.Tensor]


@contextmanager
def shared(compute: Compute, workers: int) -> Iterator[Compute]:
    """Yield a function that divides the examples among processes."""
    check_in("[1, 1024]", "workers", workers, int)
    if workers == 1:
        yield compute
        return
    if not hasattr(os, "fork"):
        raise ValueError("workers must be 1 here: this system has no fork")
    pool = ProcessPoolExecutor(workers, get_context("fork"), _kept.append, (compute,))

    def computed(weights: Tensors, examples: Sequence[Sequence[int]]) -> torch.Tensor:
        arrays = {name: one.numpy() for name, one in weights.items()}
        with warnings.catch_warnings():  # that this process has threads
            warnings.simplefilter("ignore", DeprecationWarning)
            shares = [
                pool.submit(_compute, arrays, examples[start::workers]) for start in range(workers)
            ]
        return torch.from_numpy(sum(share.result() for share in shares))

    with pool:
        yield computed


#: Of a worker.
_kept: list[Compute] = []


def _compute(
    arrays: dict[str, NDArray[Any]], examples: Sequence[Sequence[int]]
) -> NDArray[np.int64]:
    weights = {name: torch.from_numpy(one) for name, one in arrays.items()}
    return np.asarray(_kept[-1](weights, examples).numpy())
