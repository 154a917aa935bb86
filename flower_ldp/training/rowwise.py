"""Something that is computed of each row by itself, and is zero for a row that fails.

Rows are computed side by side (``torch.func.vmap``) where the model allows it, which is tried on
the public row, and one after the other where it does not. A row that is none has the public row in
its place, so that shapes do not depend on it.

**A row that makes the computation raise.** Side by side, one row's error is everybody's. So each
row is then tried alone; those that raise alone get the public row in their place and count as
zero, and the others are computed again, side by side in the same places: what comes of them is the
same to the last bit. Rows that fail together and not alone, as none should, are computed each by
itself.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from flower_ldp.clients.calling import cause_of
from flower_ldp.own_log import say
from flower_ldp.training.rows import Row

_log = logging.getLogger("flower_ldp")

Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class RowWise:
    """A computation of rows.

    Parameters
    ----------
    batch : callable
        Of weights and rows of one form: a matrix of float64 on the CPU, one row for each.
    alone : callable
        Of weights and one row: a vector.
    stand_in : tuple of Tensor
        The public row.
    strict : bool
        Raise what a row raises: for public data.
    """

    batch: Callable[[Tensors, list[Row]], torch.Tensor]
    alone: Callable[[Tensors, Row], torch.Tensor]
    stand_in: Row
    strict: bool = False

    def side_by_side(self, weights: Tensors) -> bool:
        """Return whether rows can be computed side by side, by two public ones."""
        try:
            self.batch(weights, [self.stand_in, self.stand_in])
        except Exception as error:
            _log.info("rows are computed one by one: %s", error)
            return False
        return True

    def matrix(
        self, weights: Tensors, rows: Sequence[Row | None], *, side_by_side: bool
    ) -> torch.Tensor:
        """Return what comes of each row; zero for one that fails.

        Parameters
        ----------
        weights : mapping of str to Tensor
            The model's.
        rows : sequence of Row or None
            **Private**. None where there is no row. At least one.
        side_by_side : bool
            Whether they can be computed so.

        Returns
        -------
        Tensor of float64, shape (rows, d)
        """
        there = torch.tensor([row is not None for row in rows], dtype=torch.bool)
        filled = [self.stand_in if row is None else row for row in rows]
        compute = self._together if side_by_side else self._one_by_one
        found = compute(weights, filled, there)
        finite = found.sum(dim=1).isfinite()  # a row's sum is not if one of its entries is not
        if self.strict and not finite.all():
            raise ValueError("what comes of a row is not finite")
        there &= finite
        return found if there.all() else found.where(there[:, None], 0.0)

    def _together(self, weights: Tensors, rows: list[Row], there: torch.Tensor) -> torch.Tensor:
        """Compute rows side by side; note in ``there`` which of them fail."""
        found = self._batched(weights, rows)
        if found is not None:
            return found
        # Which it was is asked of each alone, by the same kind of computation.
        for place, row in enumerate(rows):
            if self._batched(weights, [row]) is None:
                rows[place], there[place] = self.stand_in, False
        again = self._batched(weights, rows)
        return torch.cat([self.batch(weights, [row]) for row in rows]) if again is None else again

    def is_public_one(self, weights: Tensors, *, side_by_side: bool) -> bool:
        """Return whether the public row can be computed at these weights: by public facts."""
        if side_by_side:
            return self._batched(weights, [self.stand_in]) is not None
        return self._value(weights, self.stand_in) is not None

    def _batched(self, weights: Tensors, rows: list[Row]) -> torch.Tensor | None:
        try:
            return self.batch(weights, rows)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # a row that exits is a row that fails
            if self.strict:
                raise
            say(_log, logging.WARNING, "a row counts as zero\n%s", cause_of(error))
            return None

    def _one_by_one(self, weights: Tensors, rows: list[Row], there: torch.Tensor) -> torch.Tensor:
        none = self.alone(weights, self.stand_in)
        found = none.repeat(len(rows), 1)
        for place, row in enumerate(rows):
            value = self._value(weights, row) if there[place] else none
            if value is None:
                there[place] = False
            else:
                found[place] = value
        return found

    def _value(self, weights: Tensors, row: Row) -> torch.Tensor | None:
        try:
            return self.alone(weights, row)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # a row that exits is a row that fails
            if self.strict:
                raise
            say(_log, logging.WARNING, "a row counts as zero\n%s", cause_of(error))
            return None
