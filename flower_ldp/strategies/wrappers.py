"""Flower's central wrappers around a strategy of this package: refused before anybody is asked."""

from __future__ import annotations

import sys

from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
)

_CENTRAL = (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
)


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
