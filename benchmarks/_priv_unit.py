"""PrivUnit: a unit vector, mostly of the cap around the client's own.

Bhowmick, Duchi, Freudiger, Kapoor, Rogers, "Protection against reconstruction and its applications
in private federated learning", 2018, algorithm 1. With probability p the report is uniform among
the unit vectors whose cosine with the client's is at least gamma, else among the others. If the cap
has the share q of the sphere, densities differ by p / (1 - p) * (1 - q) / q, and by no more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Doubles = NDArray[np.float64]


def to_units(rows: Doubles) -> Doubles:
    """Return rows over their lengths; rows of zeros stay."""
    found: Doubles = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-300)
    return found


@dataclass(frozen=True)
class CapLaw:
    """The law of PrivUnit's cosine with the client's direction.

    Parameters
    ----------
    dimension : int
        d, at least 2.
    threshold : float
        Gamma: the cap is of unit vectors whose cosine is at least that.
    share : float
        q, the cap's share of the sphere.
    probability : float
        p, that a report lies in the cap.
    cosine : float
        Its mean.
    """

    dimension: int
    threshold: float
    share: float
    probability: float
    cosine: float


@lru_cache(maxsize=8)
def cap_law(dimension: int, epsilon: float) -> CapLaw:
    """Return the law whose mean cosine is largest among those of this epsilon.

    With s the integral of the cosine over the cap, the mean is p s / q - (1 - p) s / (1 - q). The
    largest p has p / (1 - p) * (1 - q) / q = e^epsilon, which makes it s / (q + 1 / (e^epsilon -
    1)). Its derivative is 0 where gamma is the mean itself, once: gamma (q + 1 / (e^epsilon - 1))
    - s grows with gamma.
    """
    from scipy.optimize import brentq
    from scipy.special import betainc, betaln

    half, odds = (dimension - 1) / 2, 1 / math.expm1(epsilon)
    log_scale = math.log(2 * half) + betaln(0.5, half)

    def share(threshold: float) -> float:
        return float(betainc(half, half, (1 - threshold) / 2))

    def integral(threshold: float) -> float:
        return math.exp(half * math.log1p(-(threshold**2)) - log_scale)

    def excess(threshold: float) -> float:
        return threshold * (odds + share(threshold)) - integral(threshold)

    threshold = float(brentq(excess, 0.0, 1 - 1e-12, xtol=1e-15))
    q = share(threshold)
    favour = math.exp(epsilon) * q
    return CapLaw(
        dimension, threshold, q, favour / (favour + 1 - q), integral(threshold) / (odds + q)
    )


def priv_unit(units: Doubles, epsilon: float, rng: np.random.Generator) -> Doubles:
    """Return PrivUnit's report of each row: a unit vector, which over the mean cosine is unbiased.

    Parameters
    ----------
    units : ndarray of float64, shape (n, d)
        Unit vectors.
    epsilon : float
        Of each report, pure.
    rng : Generator
        Source of the reports.
    """
    from scipy.special import betaincinv

    count, dimension = units.shape
    law, half = cap_law(dimension, epsilon), (dimension - 1) / 2
    inside, place = rng.random(count) < law.probability, rng.random(count)
    # Of a uniform unit vector (1 - cosine) / 2 has this Beta law, and the cap is its lower tail.
    mass = np.where(inside, place * law.share, law.share + place * (1 - law.share))
    cosines = (1 - 2 * betaincinv(half, half, mass))[:, None]
    around = rng.standard_normal(units.shape)
    around -= np.einsum("nd,nd->n", around, units)[:, None] * units
    found: Doubles = cosines * units + np.sqrt(1 - cosines**2) * to_units(around)
    return found
