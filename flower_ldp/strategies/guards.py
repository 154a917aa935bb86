"""What strategies refuse or warn of: confused arguments, central wrappers, lost precision.

**Lost steps.** A float16 has eleven binary digits. A step that is spread over many weights is so
little of each that the nearest number is the one that is there already.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
)
from numpy.typing import NDArray

from flower_ldp.errors import quoted
from flower_ldp.wire.layout import ModelLayout

ArgumentT = TypeVar("ArgumentT")
_CENTRAL = (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
)
#: A step of which less than this share of the length arrives is lost.
_SHARE = 0.5


def must_be(
    name: str, value: object, kind: type[ArgumentT] | tuple[type[ArgumentT], ...], write: str
) -> None:
    """Raise TypeError unless an argument is of its type.

    Parameters
    ----------
    name : str
        The argument's.
    value : object
        What was given.
    kind : type or tuple of type
        What it must be an instance of.
    write : str
        An example of what to write.
    """
    if isinstance(value, kind):
        return
    given = f"the class {value.__name__}" if isinstance(value, type) else repr(value)[:100]
    raise TypeError(f"{name} must be {write}, got {given}")


def refuse_central_wrapper(name: str) -> None:
    """Raise TypeError if a central wrapper is among the callers.

    Such a wrapper clips the models in replies. Reports hold none, so it would clip nothing, and add
    noise to a sum that is private already. It tells what it wraps nothing of itself, so only the
    calls that lead here show it.

    Parameters
    ----------
    name : str
        Of the strategy that is wrapped.

    Raises
    ------
    TypeError
        With what to write instead.
    """
    frame = sys._getframe(1)
    while frame is not None:
        owner = frame.f_locals.get("self")
        if isinstance(owner, _CENTRAL):
            raise TypeError(
                f"{type(owner).__name__} around {name} clips nothing, since reports hold no "
                f"models, and its noise adds to a sum that is private already: run {name} "
                "without it"
            )
        frame = frame.f_back  # type: ignore[assignment]


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
