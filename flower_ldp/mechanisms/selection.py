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


class SignSum:
    """The sum over reports of the sign at each reported dimension.

    Costs h per report, and d once for the result. Reports are added up in batches, so that any
    number of them needs no more than a batch's memory.

    Parameters
    ----------
    dimension : int
        d.
    """

    def __init__(self, dimension: int) -> None:
        self._total = np.zeros(dimension, dtype=np.int32)
        self._batch: list[Selection] = []
        self._pending = 0

    def add(self, report: Selection) -> None:
        """Take in a validated report: indices in [0, d), distinct within it."""
        self._batch.append(report)
        self._pending += len(report.indices)
        if self._pending >= _BATCH_ENTRIES:
            self._add_up()

    def total(self) -> NDArray[np.int32]:
        """Return the sum so far, shape (d,): the array that further reports are added to.

        Exact for up to 2^31 - 1 reports.
        """
        self._add_up()
        return self._total

    def _add_up(self) -> None:
        _add_batch(self._total, self._batch)
        self._batch, self._pending = [], 0


def sum_of_signs(reports: Iterable[Selection], dimension: int) -> NDArray[np.int32]:
    """Return the sum over reports of the sign at each reported dimension (:class:`SignSum`).

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
    found = SignSum(dimension)
    for report in reports:
        found.add(report)
    return found.total()


def _add_batch(total: NDArray[np.int32], batch: list[Selection]) -> None:
    for sign in (-1, 1):
        chosen = [report.indices for report in batch if report.sign == sign]
        if chosen:
            np.add.at(total, np.concatenate(chosen), np.int32(sign))
