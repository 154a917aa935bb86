r"""How far the mean report of a code with blocks lies along the update: what blocks cost.

The K favoured codewords come mostly from the blocks in which the update is longest, whatever the
codes are. So the mean report has, of a block of length :math:`r` times its fair share, not r but
the expected part :math:`h(r)` of its direction, and over all blocks the square cosine

.. math:: a = \frac{E[r\,h(r)]^2}{E[r^2]\,E[h(r)^2]}, \qquad
    h(r) \propto (1 - c^2)^{(s-1)/2}, \quad c = \tau / (r \sqrt s),

for blocks of s entries, :math:`r^2` chi-square with s degrees over s, as an update has that is
spread over all blocks: a direction of s entries has with a row an inner product of at least c
times its length by the Beta law, and :math:`\tau` is where K of n rows are that near. It averages
out over neither codes nor rounds. An update that lies in few blocks loses less, and gains more.
"""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

_QUANTILES = 256
_ANGLES = 4096
_HALVINGS = 60
# Longer blocks have normal inner products, and lengths that differ little.
_NORMAL = 512


@lru_cache(maxsize=256)
def alignment(size: int, share: float) -> float:
    """Return the square cosine of a mean report with an update that is spread over all blocks.

    Parameters
    ----------
    size : int
        Entries of a block, at least 1.
    share : float
        K over n, in (0, 1].
    """
    lengths, spread = _lengths(size), math.sqrt(min(size, _NORMAL))
    low, high = 0.0, 64.0
    for _ in range(_HALVINGS):
        threshold = (low + high) / 2
        above = _nearer(min(size, _NORMAL), threshold / (spread * lengths)).mean()
        low, high = (threshold, high) if above > share else (low, threshold)
    cosines = np.minimum(low / (spread * lengths), 1.0)
    if size == 1:
        part = (cosines < 1.0).astype(np.float64)
    else:
        part = (1.0 - cosines**2) ** ((min(size, _NORMAL) - 1) / 2)
    square = float((part * part).mean())
    return float((lengths * part).mean()) ** 2 / square if square > 0 else 1.0


def _lengths(size: int) -> NDArray[np.float64]:
    """Return quantiles of a block's length over the root mean square of all."""
    places = (np.arange(_QUANTILES) + 0.5) / _QUANTILES
    normal = NormalDist()
    if size == 1:
        found = np.array([normal.inv_cdf(0.5 + place / 2) for place in places])
    elif size == 2:  # an exponential law
        found = np.sqrt(-np.log1p(-places))
    else:  # Wilson and Hilferty's cube root of a chi-square
        scores = np.array([normal.inv_cdf(place) for place in places])
        cube = 1.0 - 2.0 / (9.0 * size) + scores * math.sqrt(2.0 / (9.0 * size))
        found = np.sqrt(np.maximum(cube, 0.0) ** 3)
    return np.maximum(found / math.sqrt(float((found * found).mean())), 1e-9)


def _nearer(size: int, cosines: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return how many of random rows have at least these cosines with a direction, or minus it."""
    if size == 1:
        return (cosines < 1.0).astype(np.float64)
    angles = (np.arange(_ANGLES) + 0.5) / _ANGLES * (math.pi / 2)
    density = np.sin(angles) ** (size - 2)
    below = np.cumsum(density) / density.sum()
    found: NDArray[np.float64] = np.interp(
        np.arccos(np.clip(cosines, 0.0, 1.0)), angles, below, left=0.0
    )
    return found
