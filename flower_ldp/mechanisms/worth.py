r"""What sums of private reports are worth: how far they point along what clients have in common.

**Efficiency.** The sum of N reports of clients that agree has with their direction about the cosine

.. math:: \cos = \sqrt{\frac{x}{1 + x}}, \qquad x = \frac{N e}{d},

e being the *efficiency* of a report, the number of weights whose noise it outweighs, and d the
number of weights. It holds for a round and for a run, whose steps all together are the sum of all
its reports. Clients that differ have less, by the share that they have in common.

**Verdict.** :data:`GOOD_COSINE` and :data:`POOR_COSINE` are drawn from runs on MNIST, 1,000 clients
that are asked once each, a linear head of 2,010 weights, which has 96.3 % without privacy: cosines
of .89, .73, .48 and .27 gave 93, 88, 72 and 40 %; .66 with 10,000 clients at an epsilon of 1 gave
64 %; and LeNet-5 with 100 clients at 8, whose cosine is .11, learns nothing.

**Noise.** Reports that say nothing of an update are uniform, and the square length of their sum has
a known mean and variance (:class:`PureNoise`). So the sum itself tells whether it is more than
noise, at no cost in privacy: it is post-processing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

#: From this cosine of a run on most of the accuracy is there: 88 % of 96 at .73.
GOOD_COSINE = 0.7
#: Below this cosine most of it is lost: 72 % at .48, 40 % at .27, nothing at .11.
POOR_COSINE = 0.35


class Verdict(Enum):
    """What a run can be expected to learn."""

    GOOD = "good"
    POOR = "poor"
    HOPELESS = "hopeless"

    @classmethod
    def of(cls, cosine: float) -> Verdict:
        """Return the verdict on a run whose steps together have that cosine."""
        if cosine >= GOOD_COSINE:
            return cls.GOOD
        return cls.POOR if cosine >= POOR_COSINE else cls.HOPELESS


@dataclass(frozen=True)
class PureNoise:
    r"""The square length of a sum of uniform reports, whose products are uncorrelated.

    With N reports :math:`e_i` of square length l the sum S has
    :math:`|S|^2 = N l + \sum_{i \ne j} \langle e_i, e_j \rangle`. The products have mean 0,
    since signs are fair, and mean square q. Pairs are uncorrelated, so

    .. math:: E|S|^2 = N l, \qquad Var |S|^2 = 2 N (N - 1) q + N\,Var |e|^2.

    Parameters
    ----------
    square_length : float
        l, of one report.
    square_product : float
        q, mean square of the inner product of two.
    along : float
        Share of the square of a mean report that lies along the update; the rest leans away.
    square_spread : float
        Variance of a report's square length; 0 where all are as long.
    """

    square_length: float
    square_product: float
    along: float = 1.0
    square_spread: float = 0.0

    def deviation(self, reports: int) -> float:
        """Return the standard deviation of :meth:`signal` if there is none."""
        products = 2.0 * self.square_product * (1.0 - 1.0 / reports)
        spread = math.sqrt(products + self.square_spread / reports)
        return self.along * spread / self.square_length

    def signal(self, square_of_sum: float, reports: int) -> float:
        """Return an estimate of x: what the sum has beyond noise, along the update, over the noise.

        Unbiased, so it may be negative; of clients that differ it is that of what they share.

        Parameters
        ----------
        square_of_sum : float
            Square length of the sum, in the units of a report.
        reports : int
            N, at least 1.
        """
        return self.along * self.beyond(square_of_sum, reports)

    def beyond(self, square_of_sum: float, reports: int) -> float:
        """Return what the square of a sum has beyond noise, over the noise, along or not."""
        return square_of_sum / (reports * self.square_length) - 1.0


class Worth(Protocol):
    """What a mechanism's plan for one dimension says of sums of its reports."""

    @property
    def dimension(self) -> int:
        """d, entries of the update."""

    @property
    def efficiency(self) -> float:
        """How many weights' worth a report is."""

    def cosine_of_sum(self, reports: int) -> float:
        """Return the expected cosine of a round's sum with its clients' direction."""

    @property
    def lean(self) -> float:
        """What reports of a whole run lean away, in square length over what lies along."""

    @property
    def pure_noise(self) -> PureNoise:
        """The law of a sum of reports that say nothing."""


def signal_of(cosine: float) -> float:
    """Return x, the signal over the noise in square length, of a cosine below 1."""
    return cosine**2 / (1.0 - cosine**2)


def cosine_of(signal: float) -> float:
    """Return the cosine that a signal x has, sqrt(x / (1 + x)); 0 for none."""
    signal = max(signal, 0.0)
    return math.sqrt(signal / (1.0 + signal))


def run_cosine(worth: Worth, reports: int) -> float:
    """Return the expected cosine of a run's steps together with its clients' direction.

    Parameters
    ----------
    worth : Worth
        The plan of a report.
    reports : int
        Of all rounds together; at least 0.
    """
    signal = max(reports * worth.efficiency / worth.dimension, 0.0)
    return math.sqrt(signal / (1.0 + signal * (1.0 + worth.lean)))
