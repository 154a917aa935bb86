"""The gradient of each row by itself, zero for a row that has none; and clipped sums of examples.

Each example fills the same number of places, also one with fewer rows or with rows that fail, so
that shapes depend on who was drawn and on nothing of their data.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import nn
from torch.func import functional_call, grad, vmap

from flower_ldp.training.guard import problems
from flower_ldp.training.noise import clip_factors, on_grid
from flower_ldp.training.rows import Row
from flower_ldp.training.rowwise import RowWise, Tensors

Loss = Callable[..., torch.Tensor]
#: Ends what is said of layers that keep what they see of a batch.
ADVICE = (
    ". Replace BatchNorm by GroupNorm (opacus.validators.ModuleValidator.fix does), or keep it in "
    "evaluation mode, where its averages are constant"
)
#: Entries of rows' gradients that are held at a time.
_MOST_ENTRIES = 1 << 21


@dataclass(frozen=True)
class RowModel:
    """A model that is asked about one row at a time.

    Parameters
    ----------
    model : Module
        Its weights are not used.
    measure : callable
        Of the model's output and the target, each of a batch of one.
    fixed : mapping of str to Tensor
        Buffers and frozen weights, as the server sent them.
    stand_in : tuple of Tensor
        The public row.
    strict : bool
        Raise what a row raises: for public data.
    """

    model: nn.Module
    measure: Loss
    fixed: Tensors
    stand_in: Row
    strict: bool = False

    @cached_property
    def _hidden(self) -> dict[str, torch.Tensor]:
        """Buffers that the model's state does not have, as they are before the first row."""
        known = self.model.state_dict().keys()
        named = self.model.named_buffers()
        return {name: value.detach().clone() for name, value in named if name not in known}

    def _copies(self, weights: Tensors) -> dict[str, torch.Tensor]:
        """Return all that a pass could change, copied: a row must leave nothing for another.

        A pass may change weights too, as ``Embedding(max_norm=...)`` does.
        """
        known = {**self._hidden, **weights, **self.fixed}
        return {name: value.clone() for name, value in known.items()}

    def __call__(self, weights: Tensors, *row: torch.Tensor) -> torch.Tensor:
        """Return what is measured of one row, added up. The model's state comes anew each time."""
        return self._with(self._copies(weights), row)

    def _with(self, state: Tensors, row: Sequence[torch.Tensor]) -> torch.Tensor:
        features, *targets = (part.unsqueeze(0) for part in row)
        output = functional_call(self.model, dict(state), (features,))
        return torch.as_tensor(self.measure(output, *targets)).sum()

    def check(self, weights: Tensors) -> None:
        """Try the model on the public row, and refuse what no row could be asked of.

        Raises
        ------
        ValueError
            If it fails there, or a buffer changes, as BatchNorm's averages do. So do buffers that
            are not in the model's state.
        """
        mixing = [error for error in problems(self.model) if "statistics of a batch" in error]
        if mixing:
            raise ValueError("the model cannot be trained so: " + "; ".join(mixing) + ADVICE)
        before, kept = self._copies(weights), self._copies(weights)
        try:
            with torch.no_grad():
                self._with(kept, self.stand_in)
        except Exception as error:
            raise ValueError(
                f"the model or what is measured fails on the public row: "
                f"{type(error).__name__}: {error}"
            ) from error
        learning = {name for name, _ in self.model.named_parameters()}
        changed = [
            name
            for name, value in kept.items()
            if name not in learning and not _same(value, before[name])
        ]
        if changed:
            raise ValueError(
                f"a pass changes buffers, which no noise protects: {', '.join(changed)}{ADVICE}"
            )

    def check_gradient(self, weights: Tensors) -> None:
        """Refuse a loss that has no gradient on the public row: it would have none on any.

        Raises
        ------
        ValueError
            If it has none there.
        """
        try:
            self._gradient(weights, self.stand_in)
        except Exception as error:
            raise ValueError(
                f"no gradient on the public row: {type(error).__name__}: {error}"
            ) from error

    @cached_property
    def gradients(self) -> RowWise:
        """The gradient of what is measured of each row, shape (rows, d)."""
        return RowWise(self._gradients, self._gradient, self.stand_in, self.strict)

    @cached_property
    def values(self) -> RowWise:
        """What is measured of each row, shape (rows, 1)."""
        return RowWise(self._values, self._value, self.stand_in, self.strict)

    def _gradients(self, weights: Tensors, rows: list[Row]) -> torch.Tensor:
        with torch.enable_grad():
            found = self._over(grad(self.__call__), weights, rows)
        return _flat(found.values(), len(rows))

    def _gradient(self, weights: Tensors, row: Row) -> torch.Tensor:
        # By autograd itself, which takes what torch.func does not.
        learning = {name: value.detach().requires_grad_() for name, value in weights.items()}
        with torch.enable_grad():  # whatever the app has told torch
            found = torch.autograd.grad(
                self(learning, *row),
                list(learning.values()),
                allow_unused=True,
                materialize_grads=True,
            )
        return _flat([one.to_dense()[None] for one in found], 1)[0]  # Embedding(sparse=True)

    def _values(self, weights: Tensors, rows: list[Row]) -> torch.Tensor:
        with torch.no_grad():
            return _flat([self._over(self.__call__, weights, rows)], len(rows))

    def _value(self, weights: Tensors, row: Row) -> torch.Tensor:
        with torch.no_grad():
            return _flat([self(weights, *row)[None]], 1)[0]

    def _over(self, compute: Callable[..., Any], weights: Tensors, rows: list[Row]) -> Any:
        parts = [torch.stack(part) for part in zip(*rows, strict=True)]
        places = (None, *(0 for _ in parts))
        return vmap(compute, in_dims=places, randomness="different")(weights, *parts)


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether two tensors have the same entries, what is not a number among them."""
    return bool(((one == other) | ((one != one) & (other != other))).all())


def _flat(parts: Any, rows: int) -> torch.Tensor:
    flat = torch.cat([part.detach().reshape(rows, -1) for part in parts], dim=1)
    return flat.to("cpu", torch.float64)


@dataclass(frozen=True)
class ClippedSums:
    """Adds up clipped gradients of examples, each the sum of its rows' gradients.

    Each example's is put on the grid of the noise by itself, and the sum is one of integers:
    nothing is rounded in it, so what one example adds changes no bit of what the others do.

    Parameters
    ----------
    gradients : RowWise
        Of single rows.
    clip : float
        Length that an example's sum is clipped to.
    unit : float
        The grid.
    places : int
        Rows of an example.
    """

    gradients: RowWise
    clip: float
    unit: float
    places: int

    def total(
        self,
        weights: Tensors,
        examples: Sequence[Callable[[], list[Row | None]]],
        *,
        side_by_side: bool,
    ) -> torch.Tensor:
        """Return the sum over examples.

        Zero at weights where the public row has none: it stands for rows that fail, and whether
        there are such must not decide for the others. So that is asked in each step.

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
        Tensor of int64, shape (d,)
            In multiples of the grid.
        """
        size = sum(value.numel() for value in weights.values())
        total = torch.zeros(size, dtype=torch.int64)
        if not self.gradients.is_public_one(weights, side_by_side=side_by_side):
            return total
        many = max(1, _MOST_ENTRIES // (size * self.places))
        for start in range(0, len(examples), many):
            some = examples[start : start + many]
            rows = [row for read in some for row in filled(read(), self.places)]
            found = self.gradients.matrix(weights, rows, side_by_side=side_by_side)
            if self.places > 1:
                found = found.reshape(len(some), self.places, size).sum(dim=1)
            norms = torch.linalg.vector_norm(found, dim=1)
            finite = norms.isfinite()
            if not finite.all():
                found = found.where(finite[:, None], 0.0)
            clipped = found * clip_factors(norms, self.clip)[:, None]
            total += on_grid(clipped, self.unit).sum(dim=0)
        return total


def filled(rows: list[Row | None], places: int) -> list[Row | None]:
    """Return an example's rows, and none in the places that it leaves."""
    return [*rows, *[None] * (places - len(rows))]
