"""SignDS reports and their sum over clients: h additions per report, d once per round."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# Indices gathered before one scattered addition: 32 MiB of them.
_BATCH_ENTRIES = 1 << 22


@dataclass(frozen=True)
class Selection:
    """One SignDS report.

    Parameters
    ----------
    indices : ndarray of int64, shape (h,)
        Distinct dimensions in ascending order.
    sign : int
        -1 or +1.
    """

    indices: NDArray[np.int64]
    sign: int


def sum_of_signs(reports: Iterable[Selection], dimension: int) -> NDArray[np.int32]:
    """Return the sum over reports of the sign at each reported dimension.

    Costs h per report, and d once for the result. Reports are consumed in batches, so
    that a generator of any number of them needs no more than a batch's memory.

    Parameters
    ----------
    reports : iterable of Selection
        Validated reports: indices in [0, d), distinct within a report.
    dimension : int
        d.

    Returns
    -------
    ndarray of int32, shape (d,)
        Exact for up to 2^31 - 1 reports.
    """
    total = np.zeros(dimension, dtype=np.int32)
    batch: list[Selection] = []
    pending = 0
    for report in reports:
        batch.append(report)
        pending += len(report.indices)
        if pending >= _BATCH_ENTRIES:
            _add_batch(total, batch)
            batch, pending = [], 0
    _add_batch(total, batch)
    return total


def _add_batch(total: NDArray[np.int32], batch: list[Selection]) -> None:
    for sign in (-1, 1):
        chosen = [report.indices for report in batch if report.sign == sign]
        if chosen:
            np.add.at(total, np.concatenate(chosen), np.int32(sign))
