"""Steps that half precision cannot tell: they are lost when the model is moved, round after round.

A float16 has eleven binary digits. A step that is spread over many weights is so little of each
that the nearest number is the one that is there already.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flower_ldp.errors import quoted
from flower_ldp.wire.layout import ModelLayout

#: A step of which less than this share of the length arrives is lost.
_SHARE = 0.5


def lost_step(
    layout: ModelLayout,
    before: Mapping[str, NDArray[Any]],
    after: Mapping[str, NDArray[Any]],
    step: NDArray[np.floating[Any]],
) -> str | None:
    """Return words for the log if most of a step was lost in arrays of half precision.

    Parameters
    ----------
    layout : ModelLayout
        Of the model.
    before, after : mapping of str to ndarray
        The model, and what ``layout.add`` made of it.
    step : ndarray of floats, shape (d,)
        That was added.
    """
    meant = moved = 0.0
    names, start = [], 0
    for spec in layout.updated:
        if spec.size and spec.dtype.itemsize == 2:
            piece = step[start : start + spec.size].astype(np.float64)
            found = after[spec.name].astype(np.float64) - before[spec.name].astype(np.float64)
            meant += float(piece @ piece)
            moved += float(np.square(found).sum())
            names.append(spec.name)
        start += spec.size
    if moved >= _SHARE**2 * meant:
        return None
    more = ", ..." if len(names) > 1 else ""
    return (
        f"most of the step is lost: of the float16 arrays ({quoted(names[0])}{more}) it is less "
        "than half of the last digit. Keep the model in float32 on the server"
    )
