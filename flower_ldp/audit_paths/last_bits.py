"""Rows that round one way or another by their place in a batch.

The model's weights are about 1e8 and cancel on such a row. So the last bit of a dot product
decides whether its gradient is zero or clipped, and a kernel's last bits depend on where a row
lies. A training that computes rows together would let one patient, who shifts the others, change
what all of them add. Which rows these are, and of which shape, depends on the processor: they are
searched for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import torch
from torch.nn import functional

#: Shapes that are tried: features, and examples beside the first.
_FEATURES, _OTHERS = (30, 64), (18, 15, 12)
#: How many weights are tried, and how many rows for each.
_WEIGHTS, _ROWS = 6, 100
#: A share of rows that round by their place with which the search ends.
_ENOUGH = 0.5
#: A logit's lead over the other at which its class has all of the probability.
_CERTAIN = 20.0


@dataclass(frozen=True)
class RoundedRows:
    """The weights of a linear layer, and rows of class 0 that it rounds by their place.

    Parameters
    ----------
    weight : Tensor
        Shape (2, features).
    rows : list of Tensor
        Shape (features,) each, one for each example that is not the first. With the first one
        before them they have no gradient, and without it one that is clipped.
    found : float
        What share of them does so, over the sizes that a batch may have; 0 where a processor
        rounds alike in each place.
    certain : Tensor
        A row that has no gradient wherever it is, shape (features,).
    """

    weight: torch.Tensor
    rows: list[torch.Tensor]
    found: float
    certain: torch.Tensor

    @property
    def gradient(self) -> torch.Tensor:
        """The direction of a gradient of these rows, shape (2, features)."""
        mean = torch.stack(self.rows).mean(dim=0)
        return functional.normalize(torch.cat([-mean, mean]), dim=0).reshape(2, -1)


def certain_class(output: torch.Tensor) -> torch.Tensor:
    """Return the loss of outputs whose class is 0, shape (rows, 2)."""
    return functional.cross_entropy(output, torch.zeros(len(output), dtype=torch.int64))


def rounded_rows(rows_each: int, *, by_chance: bool) -> RoundedRows:
    """Search for rows that a first row, before them in a batch, makes round the other way.

    Parameters
    ----------
    rows_each : int
        Rows of each example beside the first, of which the first is the one that is searched for.
    by_chance : bool
        Whether any number of the examples may be in a batch. Else all are, and each place gets a
        row of its own.
    """
    best: RoundedRows | None = None
    for others, features in product(_OTHERS, _FEATURES):
        sizes = range(1, others + 1) if by_chance else [others]
        for seed in range(_WEIGHTS):
            found = _rounded(seed, features, others, rows_each, sizes)
            if best is None or found.found > best.found:
                best = found
        if best is not None and best.found >= _ENOUGH:
            return best
    if best is None:
        raise ValueError("no shapes to try")
    return best


def _rounded(
    seed: int, features: int, others: int, rows_each: int, sizes: Sequence[int]
) -> RoundedRows:
    rng = torch.Generator().manual_seed(seed)
    signs = torch.randint(0, 2, (features,), generator=rng) * 2.0 - 1.0
    weight = torch.zeros(2, features)
    weight[1] = 1e8 * (0.5 + torch.rand(features, generator=rng)) * signs
    # Nearly the same, so that their gradients point the same way.
    near = 1.0 + 1e-2 * torch.randn((_ROWS, features), generator=rng)
    rows = (1.0 + torch.rand(features, generator=rng)) * near
    of_second = weight[1].double()
    rows[:, -1] = -(rows[:, :-1].double() @ of_second[:-1] / of_second[-1]).float()

    moved = torch.zeros(_ROWS, others)
    for size in sizes:
        after = _leads(rows, weight, rows_each * size + 1)[:, 1::rows_each]
        alone = _leads(rows, weight, rows_each * size)[:, ::rows_each]
        moved[:, :size] += (after < -_CERTAIN) & (alone > _CERTAIN)
    if len(sizes) > 1:
        moved = moved.sum(dim=1, keepdim=True).expand(_ROWS, others) / sum(sizes)
    best, places = moved.max(dim=0)
    return RoundedRows(weight, list(rows[places]), float(best.mean()), -signs)


def _leads(rows: torch.Tensor, weight: torch.Tensor, size: int) -> torch.Tensor:
    """Return the lead of class 1 for each row in each place of a batch, shape (rows, size)."""
    logits = [functional.linear(row.repeat(size, 1), weight) for row in rows]
    return torch.stack([one[:, 1] - one[:, 0] for one in logits])
