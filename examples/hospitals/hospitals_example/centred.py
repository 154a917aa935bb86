"""A linear layer over columns whose centre is learned too, under the same epsilon.

Where the columns' middle lies is most of what a scaling says. Public constants do not know it, and
91 patients cannot pay for ten means beside the training. So the centre is one more parameter:
the loss pulls it to each patient's columns, both gradients are clipped as one vector, and the
training's noise covers both.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

from hospitals_example.data import COLUMNS

PULL = 0.2
_CONSTANT = 0.5


class Centred(nn.Module):
    """Of columns (n, 10): a logit, and how far each column is from the centre; (n, 11)."""

    def __init__(self) -> None:
        super().__init__()
        self.centre = nn.Parameter(torch.zeros(COLUMNS))
        self.weight = nn.Parameter(torch.zeros(COLUMNS))
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, columns: torch.Tensor) -> torch.Tensor:
        """Return the logit beside the columns that it is made of."""
        away = columns - self.centre
        logit = away.detach() @ self.weight + _CONSTANT * self.bias
        return torch.cat([logit[:, None], away], dim=1)


def loss(output: torch.Tensor, malignant: torch.Tensor) -> torch.Tensor:
    """Return the cross-entropy, and the pull of the columns on the centre."""
    pull = PULL / 2 * output[:, 1:].square().sum(dim=1).mean()
    return binary_cross_entropy_with_logits(output[:, 0], malignant) + pull


def is_right(output: torch.Tensor, malignant: torch.Tensor) -> torch.Tensor:
    """Return 1 where the more likely finding is the true one, else 0."""
    return ((output[:, 0] > 0) == (malignant > 0.5)).to(torch.float64)


class Descent(torch.optim.SGD):
    """Plain gradient descent; the centre becomes the mean over all steps, of all rounds.

    Parameters
    ----------
    parameters : list of Parameter
        The layer's, in its own order.
    rate : float
        Step size of weights and bias.
    taken : int
        Steps that were taken in earlier rounds: an optimizer begins anew in each.
    """

    def __init__(self, parameters: list[nn.Parameter], rate: float, taken: int) -> None:
        centre, *others = parameters
        super().__init__([{"params": [centre]}, {"params": others}], lr=rate)
        self._taken = taken

    def step(self, closure: Any = None) -> Any:
        """Take a step."""
        self._taken += 1
        self.param_groups[0]["lr"] = 1 / (PULL * self._taken)
        return super().step(closure)
