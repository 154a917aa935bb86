"""Which batch may be learned from: the one drawn last, and once.

The accounting is of steps that each draw their own batch. A second step on one batch is another
mechanism: at the noise of epsilon 1, two steps a batch cost more than twice as much. So a batch
opens one turn, the model's forward pass uses it, and the optimizer's step ends it.
"""

from __future__ import annotations

from typing import Any

from flower_ldp.errors import ReleaseError


class Draws:
    """Shared by a training's loader, model and optimizer. A copy has no turn open."""

    def __init__(self) -> None:
        self._rows: int | None = None
        self._passed = False

    def __reduce__(self) -> tuple[Any, ...]:
        return Draws, ()

    def drawn(self, rows: int) -> None:
        """Open a turn for a batch of so many rows, and end any other."""
        self._rows, self._passed = rows, False

    def passed(self) -> None:
        """Note the batch's one pass through the model.

        Raises
        ------
        ReleaseError
            If no batch was drawn since the last step, or it has passed already.
        """
        if self._rows is None:
            raise ReleaseError("draw a new batch from the training's loader for each step")
        if self._passed:
            raise ReleaseError("this batch has passed through the model: draw a new one")
        self._passed = True

    def taken(self, rows: int) -> None:
        """End the turn, for gradients of so many rows.

        Raises
        ------
        ReleaseError
            If the batch has not passed through the model, or had another number of rows.
        """
        if self._rows is None or not self._passed:
            raise ReleaseError("a step needs a newly drawn batch, passed through the model once")
        if rows != self._rows:
            raise ReleaseError(
                f"gradients of {rows:,} rows for a batch of {self._rows:,} items: an item must be "
                "one row of the batch as drawn"
            )
        self._rows = None
