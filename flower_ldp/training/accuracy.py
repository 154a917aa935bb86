"""How many predictions are right, example by example, for the gate to release with noise."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import torch
from flwr.app import Context, MetricRecord, RecordDict
from torch import nn

from flower_ldp.clients.dpsgd.handover import CountHandover, current
from flower_ldp.errors import ReleaseError
from flower_ldp.mechanisms.random import RandomSource
from flower_ldp.training.generators import unknown_seed
from flower_ldp.training.gradients import RowModel, filled
from flower_ldp.training.private import check_groups, sent_tensors
from flower_ldp.training.rows import Data, Examples, Rows

Right = Callable[..., torch.Tensor]
#: Rows that are held at a time.
_MANY = 1_024


def is_right(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return 1 where the largest entry of an output of classes is the target, else 0.

    Parameters
    ----------
    output : Tensor, shape (1, classes)
    target : Tensor of integers, shape (1,)
    """
    return (output.argmax(dim=-1) == target).to(torch.float64)


def private_accuracy(
    context: Context,
    model: nn.Module,
    data: Data,
    *,
    like: Sequence[Any],
    right: Right = is_right,
    groups: Iterable[Hashable] | None = None,
    max_rows: int = 1,
) -> RecordDict:
    """Count right predictions of the model that the server sent, and return the reply.

    Parameters
    ----------
    context : Context
        The client app's.
    model : torch.nn.Module
        Of the arrays that the server sends, in evaluation mode.
    data : Data
        Rows of features and a target, read by index, one by one.
    like : sequence of array_like
        A **public** row, as for :func:`~flower_ldp.training.private_training`.
    right : callable
        Of the model's output and the target, each of a batch of one: a number in [0, 1].
    groups, max_rows
        As for :func:`~flower_ldp.training.private_training`. A patient counts once, by the mean
        over its rows that are looked at; a row that fails is wrong.

    Returns
    -------
    RecordDict
        For the app's reply, without the count. The gate builds its own.

    Raises
    ------
    ReleaseError
        If no evaluation was charged for this message, or it was counted before.
    ValueError
        If the model is not one of the arrays that were sent, or ``max_rows`` is outside its
        interval.
    """
    del context  # the evaluation is found by the gate's own means
    handover = current(CountHandover)
    if handover.total is not None:
        raise ReleaseError("this evaluation was counted: one message, one count")
    check_groups(handover.example, groups)
    rows = Rows(data, like, strict=handover.rehearsal)
    state = sent_tensors(handover.sent, model)
    asked = RowModel(model, right, {}, rows.stand_in, handover.rehearsal)
    asked.check(state)
    side_by_side = asked.values.side_by_side(state)
    examples, rng = Examples(len(data), groups, max_rows), RandomSource.from_os()
    total = 0
    many = max(1, min(_MANY // examples.max_rows, handover.mechanism.examples))
    with unknown_seed():
        for start in range(0, len(examples), many):
            drawn = [
                [rows.read(int(row)) for row in examples.rows(example, rng)]
                for example in range(start, min(start + many, len(examples)))
            ]
            places = [row for one in drawn for row in filled(one, examples.max_rows)]
            # Of one shape, also where an example has no row.
            places = filled(places, many * examples.max_rows)
            found = asked.values.matrix(state, places, side_by_side=side_by_side)
            sums = found.clamp(0.0, 1.0).reshape(many, examples.max_rows).sum(dim=1).tolist()
            for value, one in zip(sums, drawn, strict=False):
                total += handover.mechanism.rounded(value / max(1, len(one)))
    handover.finish(total)
    return RecordDict({"metrics": MetricRecord({"num-examples": handover.mechanism.examples})})
