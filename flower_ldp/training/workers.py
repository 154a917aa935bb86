"""Examples in several processes. Sums are of integers, so how they are shared changes nothing.

Workers are forked, as those of torch's ``DataLoader`` are, so model, loss and data may be closures.
A worker that dies fails the training as a whole.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from flower_ldp.isolation import Tensors

#: Computes something of weights and of examples, given by their rows' indices.
Compute = Callable[[Tensors, Sequence[Sequence[int]]], torch.Tensor]
_MOST = 1_024


@contextmanager
def shared(compute: Compute, workers: int) -> Iterator[Compute]:
    """Yield a function that computes shares of the examples in processes, and adds them up.

    Parameters
    ----------
    compute : callable
        Returns a tensor of int64.
    workers : int
        Number of processes, in [1, 1,024]. With 1 it is this process.

    Raises
    ------
    ValueError
        If there cannot be so many.
    """
    if isinstance(workers, bool) or not isinstance(workers, int) or not 1 <= workers <= _MOST:
        raise ValueError(f"workers must be an integer in [1, {_MOST:,}], got {workers!r}")
    if workers == 1:
        yield compute
        return
    if not hasattr(os, "fork"):
        raise ValueError("workers must be 1 here: this system has no fork")
    pool = ProcessPoolExecutor(workers, get_context("fork"), _keep, (compute,))

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


def _keep(compute: Compute) -> None:
    _kept[:] = [compute]


def _compute(
    arrays: dict[str, NDArray[Any]], examples: Sequence[Sequence[int]]
) -> NDArray[np.int64]:
    weights = {name: torch.from_numpy(one) for name, one in arrays.items()}
    return np.asarray(_kept[0](weights, examples).numpy())
