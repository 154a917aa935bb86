"""Losses of a model and one row, for the forms in which libraries have models and rows.

No library is imported: adapters use names of their classes' methods and attributes. A row is a
batch of one here (:mod:`~flower_ldp.training.row_form`).
"""

from collections.abc import Callable
from typing import Any

import torch

from flower_ldp.training.gradients import RowLoss


def supervised(loss: Callable[..., Any]) -> RowLoss:
    """Return the loss of rows ``(features, target)``: ``loss(model(features), target)``.

    A row may have several targets or none; the loss takes as many.
    """

    def of_row(model: Any, row: Any) -> Any:
        if not isinstance(row, (tuple, list)):
            raise ValueError(
                f"rows must be (features, target), found {type(row).__name__}: for others give "
                "loss= or right= as lambda model, row: ..."
            )
        return loss(model(row[0]), *row[1:])

    return of_row


def _right_class(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    if output.shape[-1] < 2 or target.is_floating_point():
        raise ValueError(
            "the default of right= needs an output per class and whole numbers as targets: give "
            "right=lambda model, row: ..., a number in [0, 1]"
        )
    return (output.argmax(dim=-1) == target).to(torch.float64)


#: 1 where the largest output is the target, else 0.
is_right: RowLoss = supervised(_right_class)
