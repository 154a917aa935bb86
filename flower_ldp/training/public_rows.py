"""How much the gradients of public rows agree, for the outlook of a private training."""

import torch
from torch import nn

from flower_ldp.clients.session import Data
from flower_ldp.training.gradients import RowLoss, RowModel, clipping_factor, length
from flower_ldp.training.rows import Rows

#: Of fewer rows the estimate is chance.
_LEAST_ROWS = 20


def public_agreement(
    model: nn.Module, rows: Data, loss: RowLoss, *, clip: float | None = None
) -> float:
    """Return the mean product of two public rows' clipped gradients, over the clip squared.

    It is the agreement of :class:`~flower_ldp.mechanisms.TrainingOutlook`, unbiased for rows drawn
    as the private ones are. A hundred rows are enough for most models.

    Parameters
    ----------
    model : torch.nn.Module
        With the weights that a training starts from.
    rows : Data
        **Public**, at least 20, all in the form of the first.
    loss : callable
        As for :func:`~flower_ldp.training.private_training`.
    clip : float, optional
        The plan's.

    Raises
    ------
    ValueError
        If there are fewer rows, or the model does not fit private training.
    """
    if len(rows) < _LEAST_ROWS:
        raise ValueError(f"rows must be at least {_LEAST_ROWS}, got {len(rows)}: add public rows")
    weights = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}
    asked = RowModel(model, loss, Rows(rows, rows[0], strict=True), {}, list(weights))
    asked.check(weights)
    total = torch.zeros(sum(one.numel() for one in weights.values()), dtype=torch.float64)
    squares = 0.0
    with asked.passes() as passes:
        for index in range(len(rows)):
            gradient = asked.row(passes, weights, index)
            if gradient is not None and (norm := length(gradient)):
                factor = clipping_factor(norm, clip) / (clip or 1.0)
                total.add_(gradient, alpha=factor)
                squares += (factor * norm) ** 2
    return (length(total) ** 2 - squares) / (len(rows) * (len(rows) - 1))
