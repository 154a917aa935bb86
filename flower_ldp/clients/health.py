"""The health bit on the client: whether the report is neutral, randomized and put at its end."""

from __future__ import annotations

from flower_ldp.mechanisms.random import RandomSource
from flower_ldp.mechanisms.randomized_response import BinaryResponse
from flower_ldp.wire.proposal import append_health


def with_health(
    report: bytes, response: BinaryResponse | None, *, is_neutral: bool, rng: RandomSource
) -> bytes:
    """Return a report with its health bit, if one was asked for.

    Parameters
    ----------
    report : bytes
        The private report, packed.
    response : BinaryResponse or None
        What the bit goes through; None if the proposal asks for none.
    is_neutral : bool
        **Private**: whether any of the report was drawn by a neutral law.
    rng : RandomSource
        Source of the flip.
    """
    return append_health(report, None if response is None else response.randomize(is_neutral, rng))
