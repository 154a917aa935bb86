"""How many predictions are right, example by example, for the gate to release with noise."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from flwr.app import Context, MetricRecord, RecordDict
from torch import nn

from flower_ldp.clients.handover import CountHandover, Data, current
from flower_ldp.errors import ReleaseError
from flower_ldp.isolation import Tensors
from flower_ldp.mechanisms.example_sums import ExampleMean
from flower_ldp.mechanisms.random import RandomSource
from flower_ldp.training.gradients import RowModel
from flower_ldp.training.private import check_groups, sent_tensors
from flower_ldp.training.rows import Examples, Rows
from flower_ldp.training.workers import shared

Right = Callable[..., torch.Tensor]


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
    workers: int = 1,
) -> RecordDict:
    """Count right predictions of the model that the server sent, and return the reply.

    Parameters
    ----------
    context : Context
        The client app's.
    model : torch.nn.Module
        Of the arrays that the server sends, in evaluation mode.
    data : Data
        Rows of features and a target, read by index, one by one. It keeps no state: a generator
        of its own is one. With ``workers`` it opens files in ``__getitem__``.
    like : sequence of array_like
        A **public** row, as for :func:`~flower_ldp.training.private_training`.
    right : callable
        Of the model's output and the target, each of a batch of one: a number in [0, 1].
    groups, max_rows, workers
        As for :func:`~flower_ldp.training.private_training`. A patient counts once, by the mean
        over its rows that are looked at; a row that fails is wrong.

    Returns
    -------
    RecordDict
        For the app's reply, without the count. The gate builds its own.

    Raises
    ------
    ReleaseError
        If no evaluation was charged for this message, or it was counted before; or something was
        kept of a row.
    ValueError
        If the model is not one of the arrays that were sent or is not on the CPU, or ``max_rows``
        or ``workers`` is outside its interval.
    """
    del context  # the evaluation is found by the gate's own means
    handover = current(CountHandover)
    if handover.total is not None:
        raise ReleaseError("this evaluation was counted: one message, one count")
    check_groups(handover.example, groups)
    rows = Rows(data, like, strict=handover.rehearsal)
    state = sent_tensors(handover.sent, model)
    count = _Count(RowModel(model, right, rows, {}), handover.mechanism)
    count.model.check(state)
    examples, rng = Examples(len(data), groups, max_rows), RandomSource.from_os()
    with shared(count, workers) as compute:
        looked_at = [examples.rows(one, rng).tolist() for one in range(len(examples))]
        total = compute(state, looked_at)
    handover.finish(int(total))
    return RecordDict({"metrics": MetricRecord({"num-examples": handover.mechanism.examples})})


@dataclass(frozen=True)
class _Count:
    """Adds up what examples give, on the mechanism's grid."""

    model: RowModel
    mechanism: ExampleMean

    def __call__(self, state: Tensors, examples: Sequence[Sequence[int]]) -> torch.Tensor:
        total = 0
        with self.model.passes() as passes:
            for rows in examples:
                found = [self.model.row(passes, state, index) for index in rows]
                values = [0.0 if one is None else float(one) for one in found]
                # What is not a number counts as 0.
                share = sum(min(max(0.0, value), 1.0) for value in values) / max(1, len(rows))
                total += self.mechanism.rounded(share)
            self.model.check_nothing_kept(passes)
        return torch.tensor([total])
