"""The noise of DP-SGD, on a grid, in whole numbers.

A sum of clipped gradients is in multiples of 2^-33 standard deviations, and whole normal numbers
are added as integers, so that low-order bits of a noisy gradient tell nothing about the sum.
docs/dpsgd_release.md counts the roundings.
"""

from __future__ import annotations

import math

import torch

from flower_ldp.mechanisms.random import RandomSource
from flower_ldp.mechanisms.sampling.integer_noise import DEVIATION_BITS, normal

_MARGIN = 1e-5


def grid_unit(noise: float, clip: float, dimension: int) -> float:
    """Return the grid of a noisy sum: 2^-33 of the noise's standard deviation.

    The deviation is larger than ``noise * clip`` by what the roundings may add to a gradient's
    length.

    Parameters
    ----------
    noise : float
        Standard deviation over the clipping length, as it is accounted for.
    clip : float
        Length that gradients are clipped to.
    dimension : int
        Number of entries.
    """
    grid = 2.0 * math.sqrt(dimension) * noise * 2.0**-DEVIATION_BITS
    margin = max(_MARGIN, 2e-9 + grid)
    return math.ldexp(noise * clip * (1 + margin), -DEVIATION_BITS)


def noised_whole(whole: torch.Tensor, unit: float, rng: RandomSource) -> torch.Tensor:
    """Return a sum with noise, in double precision.

    Parameters
    ----------
    whole : Tensor of int64
        **Private**: a sum of clipped gradients, in multiples of the grid.
    unit : float
        The grid.
    rng : RandomSource
        Source of the noise.
    """
    noise = torch.from_numpy(normal(whole.numel(), rng)).reshape(whole.shape)
    return (whole + noise).to(torch.float64) * unit
