"""Rows that round one way or another by their place in a batch.

The model's weights are about 1e8 and cancel on such a row. So the last bit of a dot product
decides whether its gradient is zero or clipped, and a kernel's last bits depend on where a row
lies. A training that computes rows together would let one patient, who shifts the others, change
what all of them add. Which rows these are depends on the processor: they are searched for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional

FEATURES = 30
#: How many weights are tried, and how many rows for each.
_WEIGHTS, _ROWS = 6, 100
#: A logit's lead over the other at which its class has all of the probability.
_CERTAIN = 20.0


@dataclass(frozen=True)
class RoundedRows:
    """The weights of a linear layer, and rows of class 0 that it rounds by their place.

    Parameters
    ----------
    weight : Tensor
        Shape (2, 30).
    rows : list of Tensor
        Shape (30,) each, one for each example that is not the first. With the first one before
        them they have no gradient, and without it one that is clipped.
    found : float
        How many of them do so, summed over the sizes that a batch may have; 0 where a processor
        rounds alike in each place.
    certain : Tensor
        A row that has no gradient wherever it is, shape (30,).
    """

    weight: torch.Tensor
    rows: list[torch.Tensor]
    found: float
    certain: torch.Tensor

    @property
    def gradient(self) -> torch.Tensor:
        """The direction of a gradient of these rows, shape (2, 30)."""
        mean = torch.stack(self.rows).mean(dim=0)
        return functional.normalize(torch.cat([-mean, mean]), dim=0).reshape(2, -1)


def certain_class(output: torch.Tensor) -> torch.Tensor:
    """Return the loss of outputs whose class is 0, shape (rows, 2)."""
    return functional.cross_entropy(output, torch.zeros(len(output), dtype=torch.int64))


def rounded_rows(others: int, rows_each: int, sizes: Sequence[int]) -> RoundedRows:
    """Search for rows that a first row, before them in a batch, makes round the other way.

    Parameters
    ----------
    others : int
        Examples beside the first.
    rows_each : int
        Rows of each of them, of which the first is the one that is searched for.
    sizes : sequence of int
        How many of the others may be in a batch. With one size each place gets a row of its own,
        with several all of them get the same.
    """
    tried = (_rounded(seed, others, rows_each, sizes) for seed in range(_WEIGHTS))
    return max(tried, key=lambda one: one.found)


def _rounded(seed: int, others: int, rows_each: int, sizes: Sequence[int]) -> RoundedRows:
    rng = torch.Generator().manual_seed(seed)
    signs = torch.randint(0, 2, (FEATURES,), generator=rng) * 2.0 - 1.0
    weight = torch.zeros(2, FEATURES)
    weight[1] = 1e8 * (0.5 + torch.rand(FEATURES, generator=rng)) * signs
    # Nearly the same, so that their gradients point the same way.
    near = 1.0 + 1e-2 * torch.randn((_ROWS, FEATURES), generator=rng)
    rows = (1.0 + torch.rand(FEATURES, generator=rng)) * near
    of_second = weight[1].double()
    rows[:, -1] = -(rows[:, :-1].double() @ of_second[:-1] / of_second[-1]).float()

    moved = torch.zeros(_ROWS, others)
    for size in sizes:
        after = _leads(rows, weight, rows_each * size + 1)[:, 1::rows_each]
        alone = _leads(rows, weight, rows_each * size)[:, ::rows_each]
        moved[:, :size] += (after < -_CERTAIN) & (alone > _CERTAIN)
    if len(sizes) > 1:
        moved = moved.sum(dim=1, keepdim=True).expand(_ROWS, others)
    best, places = moved.max(dim=0)
    return RoundedRows(weight, list(rows[places]), float(best.sum()), -signs)


def _leads(rows: torch.Tensor, weight: torch.Tensor, size: int) -> torch.Tensor:
    """Return the lead of class 1 for each row in each place of a batch, shape (rows, size)."""
    logits = [functional.linear(row.expand(size, FEATURES).contiguous(), weight) for row in rows]
    return torch.stack([one[:, 1] - one[:, 0] for one in logits])
