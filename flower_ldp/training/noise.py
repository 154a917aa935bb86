"""The clipped sum and its noise: what DP-SGD's proof is about, in one place.

A sum of clipped gradients is put on a grid of 2^-33 standard deviations, and whole normal numbers
are added as integers, so that low-order bits of a noisy gradient tell nothing about the sum.
docs/dpsgd.md counts the roundings.
"""

from __future__ import annotations

import math

import torch

from flower_ldp.mechanisms.random import RandomSource
from flower_ldp.mechanisms.sampling.discrete_gaussian import DEVIATION_BITS, normal

_MARGIN = 1e-5


def grid_unit(noise: float, clip: float, expected: float, dimension: int) -> float:
    """Return the grid of a noisy sum: 2^-33 of the noise's standard deviation.

    The deviation is larger than ``noise * clip`` by what the roundings may add to a sum's length.

    Parameters
    ----------
    noise : float
        Standard deviation over the clipping length, as it is accounted for.
    clip : float
        Length that gradients are clipped to.
    expected : float
        Mean number of gradients in a sum.
    dimension : int
        Number of entries.
    """
    grid = 2.0 * math.sqrt(dimension) * noise * 2.0**-DEVIATION_BITS
    # More rows than twice as many as expected and 10,000 do not happen.
    adding = (2.0 * expected + 1e4) ** 2 * 2.0**-52
    margin = max(_MARGIN, 2e-9 + grid + adding)
    return math.ldexp(noise * clip * (1 + margin), -DEVIATION_BITS)


def noised(total: torch.Tensor, unit: float, rng: RandomSource) -> torch.Tensor:
    """Return a sum with noise, in double precision and on the CPU.

    Parameters
    ----------
    total : Tensor of float64
        **Private**: a sum of clipped gradients.
    unit : float
        The grid.
    rng : RandomSource
        Source of the noise.
    """
    return noised_whole(on_grid(total, unit), unit, rng)


def on_grid(values: torch.Tensor, unit: float) -> torch.Tensor:
    """Return numbers as whole multiples of the grid, on the CPU."""
    return (values / unit).round().to("cpu", torch.int64)


def noised_whole(whole: torch.Tensor, unit: float, rng: RandomSource) -> torch.Tensor:
    """Return a sum with noise, in double precision and on the CPU.

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


def clip_factors(norms: torch.Tensor, clip: float) -> torch.Tensor:
    """Return what brings vectors of these lengths to ``clip`` at most; 0 for what is not finite."""
    return (clip / norms.clamp(min=clip)).nan_to_num(nan=0.0)
