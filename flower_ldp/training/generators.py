"""Torch's own random numbers, as masks of dropout are made of, while private rows are computed.

How many of them are drawn depends on the rows: one that fails draws fewer. So a seed of the app's,
which the server may know, would have one example move the masks of all after it. Under a seed that
nobody knows their law is the same, whatever was drawn before.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from flower_ldp.mechanisms.random import RandomSource


@contextmanager
def unknown_seed() -> Iterator[None]:
    """Give torch's generators a fresh seed meanwhile, and the CPU's its state back afterwards."""
    kept = torch.get_rng_state()
    torch.manual_seed(int(RandomSource.from_os().words(1)[0]) >> 1)
    try:
        yield
    finally:
        torch.set_rng_state(kept)
