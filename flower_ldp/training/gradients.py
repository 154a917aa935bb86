"""The gradient of each row by itself, zero for a row that has none; and clipped sums of examples.

Rows are computed side by side (``torch.func.vmap``) where model and loss allow it, which is tried
on the public row, and one after the other where they do not. Each example fills the same number of
places, also one with fewer rows or with rows that fail, so that shapes depend on who was drawn and
on nothing of their data.

**A row that makes the model or the loss raise.** Side by side, one row's error is everybody's. So
each row is then tried alone; those that raise alone get the public row in their place and weight
zero, and the others are computed again, side by side in the same places.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.func import functional_call, grad, vmap

from flower_ldp.clients.calling import cause_of
from flower_ldp.own_log import say
from flower_ldp.training.guard import problems
from flower_ldp.training.noise import clip_factors
from flower_ldp.training.rows import Row

_log = logging.getLogger("flower_ldp")

Loss = Callable[..., torch.Tensor]
Tensors = Mapping[str, torch.Tensor]
#: Ends what is said of layers that keep what they see of a batch.
ADVICE = (
    ". Replace BatchNorm by GroupNorm (opacus.validators.ModuleValidator.fix does), or keep it in "
    "evaluation mode, where its averages are constant"
)
#: Entries of rows' gradients that are held at a time.
_MOST_ENTRIES = 1 << 23


@dataclass(frozen=True)
class RowGradients:
    """Gradients of rows, as rows of a matrix.

    Parameters
    ----------
    model : Module
        Its weights are not used.
    loss : callable
        Of the model's output and the target, each of a batch of one.
    fixed : mapping of str to Tensor
        Buffers and frozen weights, as the server sent them.
    stand_in : tuple of Tensor
        The public row.
    """

    model: nn.Module
    loss: Loss
    fixed: Tensors
    stand_in: Row

    def of_row(self, weights: Tensors, *row: torch.Tensor) -> torch.Tensor:
        """Return the loss of one row."""
        kept = {name: value.clone() for name, value in self.fixed.items()}
        features, *targets = (part.unsqueeze(0) for part in row)
        output = functional_call(self.model, {**weights, **kept}, (features,))
        return self.loss(output, *targets).sum()

    def check(self, weights: Tensors) -> None:
        """Try model and loss on the public row, and refuse what no row could be trained with.

        Raises
        ------
        ValueError
            If they fail there, or a buffer changes, as BatchNorm's averages do.
        """
        mixing = [error for error in problems(self.model) if "statistics of a batch" in error]
        if mixing:
            raise ValueError("the model cannot be trained so: " + "; ".join(mixing) + ADVICE)
        kept = {name: value.clone() for name, value in self.fixed.items()}
        features, *targets = (part.unsqueeze(0) for part in self.stand_in)
        try:
            with torch.no_grad():
                output = functional_call(self.model, {**weights, **kept}, (features,))
                self.loss(output, *targets).sum()
        except Exception as error:
            raise ValueError(
                f"model and loss fail on the public row: {type(error).__name__}: {error}"
            ) from error
        changed = [n for n, v in kept.items() if not torch.equal(v, self.fixed[n])]
        if changed:
            raise ValueError(
                f"training changes buffers, which no noise protects: {changed}{ADVICE}"
            )

    def side_by_side(self, weights: Tensors) -> bool:
        """Return whether rows can be computed side by side, by two public ones."""
        try:
            self._batch(weights, [self.stand_in, self.stand_in])
        except Exception as error:
            _log.info("gradients are computed row by row: %s", error)
            return False
        return True

    def matrix(
        self, weights: Tensors, rows: Sequence[Row | None], *, side_by_side: bool
    ) -> torch.Tensor:
        """Return the gradient of each row in double precision; zero for a row that fails.

        Parameters
        ----------
        weights : mapping of str to Tensor
            What learns.
        rows : sequence of Row or None
            **Private**. None where there is no row.
        side_by_side : bool
            Whether they can be computed so.

        Returns
        -------
        Tensor of float64, shape (rows, d)
        """
        there = torch.tensor([row is not None for row in rows], dtype=torch.bool)
        filled = [self.stand_in if row is None else row for row in rows]
        if side_by_side:
            found = self._together(weights, filled, there)
        else:
            found = torch.stack([self._alone(weights, row) for row in filled])
        there &= found.isfinite().all(dim=1)
        return found.where(there[:, None], 0.0)

    def _together(self, weights: Tensors, rows: list[Row], there: torch.Tensor) -> torch.Tensor:
        """Compute rows side by side; note in ``there`` which of them fail."""
        try:
            return self._batch(weights, rows)
        except Exception as error:
            say(_log, logging.WARNING, "a row counts as zero\n%s", cause_of(error))
        # Which it was is asked of each alone, by the same kind of computation.
        for place, row in enumerate(rows):
            if self._fails(weights, row):
                rows[place], there[place] = self.stand_in, False
        return self._batch(weights, rows)

    def _fails(self, weights: Tensors, row: Row) -> bool:
        try:
            self._batch(weights, [row])
        except Exception:
            return True
        return False

    def _batch(self, weights: Tensors, rows: list[Row]) -> torch.Tensor:
        parts = [torch.stack(part) for part in zip(*rows, strict=True)]
        places = (None, *(0 for _ in parts))
        each = vmap(grad(self.of_row), in_dims=places, randomness="different")
        return _flat(each(weights, *parts), len(rows))

    def _alone(self, weights: Tensors, row: Row) -> torch.Tensor:
        """Return one row's gradient, or NaN if it has none."""
        learning = {name: value.detach().requires_grad_() for name, value in weights.items()}
        try:
            loss = self.of_row(learning, *row)
            found = torch.autograd.grad(
                loss, list(learning.values()), allow_unused=True, materialize_grads=True
            )
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            say(_log, logging.WARNING, "a row counts as zero\n%s", cause_of(error))
            size = sum(value.numel() for value in weights.values())
            return torch.full((size,), torch.nan, dtype=torch.float64)
        return _flat({str(n): g[None] for n, g in enumerate(found)}, 1)[0]


def _flat(gradients: Mapping[str, Any], rows: int) -> torch.Tensor:
    parts = [
        part.detach().reshape(rows, -1).to("cpu", torch.float64) for part in gradients.values()
    ]
    return torch.cat(parts, dim=1)


@dataclass(frozen=True)
class ClippedSums:
    """Adds up clipped gradients of examples, each the sum of its rows' gradients.

    Parameters
    ----------
    gradients : RowGradients
        Of single rows.
    clip : float
        Length that an example's sum is clipped to.
    places : int
        Rows of an example.
    """

    gradients: RowGradients
    clip: float
    places: int

    def total(
        self,
        weights: Tensors,
        examples: Sequence[Callable[[], list[Row | None]]],
        *,
        side_by_side: bool,
    ) -> torch.Tensor:
        """Return the sum over examples.

        Parameters
        ----------
        weights : mapping of str to Tensor
            What learns.
        examples : sequence of callable
            Each reads the rows of one that takes part; at most as many as there are places.
        side_by_side : bool
            Whether rows can be computed so.

        Returns
        -------
        Tensor of float64, shape (d,)
        """
        size = sum(value.numel() for value in weights.values())
        total = torch.zeros(size, dtype=torch.float64)
        many = max(1, _MOST_ENTRIES // (size * self.places))
        for start in range(0, len(examples), many):
            some = examples[start : start + many]
            rows = [row for read in some for row in self._filled(read())]
            found = self.gradients.matrix(weights, rows, side_by_side=side_by_side)
            sums = found.reshape(len(some), self.places, size).sum(dim=1)
            norms = torch.linalg.vector_norm(sums, dim=1)
            factors = clip_factors(norms, self.clip)
            total += factors @ sums.where(norms.isfinite()[:, None], 0.0)
        return total

    def _filled(self, rows: list[Row | None]) -> list[Row | None]:
        return [*rows, *[None] * (self.places - len(rows))]
