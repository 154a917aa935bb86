"""Area under the ROC curve by torch, within the charge of the message."""

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from flwr.app import Context, MetricRecord, RecordDict
from torch import nn

from flower_ldp.clients.session import Data, RankingSession, current_session
from flower_ldp.mechanisms.random import Ints
from flower_ldp.training.private import example_total


def private_auc(
    context: Context,
    model: nn.Module,
    rows: Data,
    *,
    like: Any,
    score: Callable[[Any, Any], tuple[Any, Any]],
    groups: Iterable[Hashable] | None = None,
    max_rows: int = 1,
    workers: int = 1,
    public_base: bool = False,
) -> RecordDict:
    """Count both classes by the score of the model that the server sent; return the app's reply.

    Parameters
    ----------
    context, model, rows, like, groups, max_rows, workers, public_base
        As for :func:`~flower_ldp.training.private_accuracy`. A patient's drawn rows share one
        weight; a row that fails, or has the score NaN, counts nowhere.
    score : callable
        ``score(model, row)`` of a batch of one row: a score, clipped to [0, 1], and the class 0
        or 1. For example ``lambda model, row: (torch.sigmoid(model(row[0])), row[1])``.

    Returns
    -------
    RecordDict
        For the app's reply, without the area. The gate builds its own.

    Raises
    ------
    ReleaseError
        As for :func:`~flower_ldp.training.private_accuracy`; the gate must have
        :class:`~flower_ldp.clients.AUCRelease`.
    ValueError
        As for :func:`~flower_ldp.training.private_training`.
    """
    del context  # the evaluation is found by the gate's own means
    session = current_session(RankingSession)
    bins = session.mechanism.cells[0] // 2

    def place(model: Any, row: Any) -> torch.Tensor:
        given, target = map(float, score(model, row))
        if target not in (0, 1):
            raise ValueError(f"a class must be 0 or 1, got {target} with the score {given}")
        # Of one number for both classes, so that equal scores have one bin; NaN stays NaN.
        inside = bins + bins * torch.tensor(given, dtype=torch.float64).clamp(0, 1)
        return inside.clamp(max=math.nextafter(2 * bins, 0)) - bins * (1 - target)

    def weigh(places: Sequence[float | None]) -> Ints:
        found = np.array([math.nan if one is None else one for one in places])
        cells = found[~np.isnan(found)].astype(np.int64)[:, None]
        return session.mechanism.total((cells, np.zeros(len(cells), dtype=np.int64)))

    data = model, rows, like, groups, max_rows, workers, public_base
    session.finish(example_total(session, place, weigh, *data))
    return RecordDict({"metrics": MetricRecord()})
