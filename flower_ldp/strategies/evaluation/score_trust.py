r"""Whether a score of codebook reports follows the clients, and how closely.

A score that is made with the help of proxy rows can be right for the wrong reason: it may repeat
what the proxy scores by itself. The test is an experiment that needs no client and costs no
privacy. Let pretended clients differ from the proxy in a known way (the less confident half of
its rows three times as frequent as the other), send their codes through the mechanism, and look
what the whole estimate makes of them:

* **recovery** :math:`(\bar s - s_0)/(s_1 - s_0)`: what part of the way the mean estimated score
  goes from the proxy's score :math:`s_0` to the pretended clients' own :math:`s_1`. 1 follows the
  clients, 0 echoes the proxy.
* **error**: the root mean square of :math:`s/s_1 - 1`, noise and bias together.

Not seen is a difference *within* cells between the clients' rows and the proxy's, for which no
report says anything; docs/codebook.md gives what it cost in experiments.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flower_ldp.mechanisms.codebook import CodebookResponse
from flower_ldp.mechanisms.random import RandomSource
from flower_ldp.strategies.evaluation.codebooks import ProxySupport
from flower_ldp.strategies.evaluation.scores import ClusterScore

Shares = NDArray[np.float64]
#: Least part of a known difference that a score must show.
LEAST_RECOVERY = 0.8
#: Largest relative error of a score that is worth reading.
LARGEST_ERROR = 0.05
#: Least confidence of a model, from 0 (uniform rows) to 1, whose clusters mean anything.
LEAST_CONFIDENCE = 0.2
_WEIGHT_OF_UNSURE_HALF = 3.0


class UntrustedScoreWarning(UserWarning):
    """A score says more about noise or about the proxy than about the clients."""


@dataclass(frozen=True)
class ScoreTrust:
    """What became of pretended clients that differ from the proxy in a known way.

    Parameters
    ----------
    proxy_score, true_score : float
        Of the proxy, and of the pretended clients.
    recovery : float
        Part of the difference that the estimate shows, on average.
    error : float
        Root mean square relative error of the estimate.
    """

    proxy_score: float
    true_score: float
    recovery: float
    error: float

    @property
    def echoes_proxy(self) -> bool:
        """Whether the score stays with the proxy instead of following the clients."""
        return not self.recovery >= LEAST_RECOVERY

    @property
    def is_noise(self) -> bool:
        """Whether the score misses by more than 5 %."""
        return not self.error <= LARGEST_ERROR

    def warn(self) -> None:
        """Warn with :class:`UntrustedScoreWarning` where the score is not to be believed."""
        if self.echoes_proxy or self.is_noise:
            warnings.warn(
                f"the score shows {self.recovery:.0%} of a known difference from the proxy, with "
                f"an error of {self.error:.1%}: more clients or a larger epsilon are needed",
                UntrustedScoreWarning,
                stacklevel=2,
            )


def score_trust(
    mechanism: CodebookResponse,
    support: ProxySupport,
    score: ClusterScore,
    total: int,
    rng: RandomSource,
    *,
    repeats: int = 20,
    estimate: Callable[[NDArray[np.int64]], Shares] | None = None,
) -> ScoreTrust:
    """Return how far a score of ``total`` reported rows follows clients, and how closely.

    Parameters
    ----------
    mechanism, support, score
        As they are used on real reports.
    total : int
        Reported rows, N, at least 2.
    rng : RandomSource
        Of the pretended clients and their noise.
    repeats : int
        Experiments, at least 2. Each costs one scoring.
    estimate : callable, optional
        From reports to shares of codes; the mechanism's own by default.

    Returns
    -------
    ScoreTrust
        With NaN where a score is not defined; then it is not trusted.

    Raises
    ------
    ValueError
        If a number is outside its interval.
    """
    if total < 2 or repeats < 2:
        raise ValueError(f"total and repeats must be at least 2, got {total} and {repeats}")
    turned = np.ones(len(support.rows))
    tops = support.rows.max(axis=1)
    turned[tops < np.median(tops)] = _WEIGHT_OF_UNSURE_HALF
    shares: Shares = np.bincount(support.cells, turned, minlength=support.codes) / turned.sum()
    even = np.bincount(support.cells, minlength=support.codes) / len(support.cells)

    def scored(codes: Shares) -> float:
        return score.of_law(support.rows, support.spread(codes), total)

    proxy_score, true_score = scored(even), scored(shares)
    found = []
    for _ in range(repeats):
        codes = _draw(shares, total, rng)
        reports = mechanism.response.randomize_array(codes, rng)
        found.append(scored((estimate or mechanism.estimate)(reports)))
    way = true_score - proxy_score
    recovery = (float(np.mean(found)) - proxy_score) / way if way else math.nan
    error = math.sqrt(float(np.mean((np.array(found) / true_score - 1.0) ** 2)))
    return ScoreTrust(proxy_score, true_score, recovery, error)


def confidence(rows: NDArray[np.float64], shares: Shares | None = None) -> float:
    """Return how far rows are from uniform: mean largest entry, 1/k scaled to 0 and 1 to 1.

    Parameters
    ----------
    rows : ndarray of float, shape (n, k)
        On the simplex; noisy ones after projection.
    shares : array_like of float, shape (n,), optional
        How often each row occurs; once each by default.
    """
    classes = int(rows.shape[1])
    top = float(np.average(rows.max(axis=1), weights=shares))
    return (top - 1.0 / classes) / (1.0 - 1.0 / classes)


def warn_if_near_uniform(rows: NDArray[np.float64], shares: Shares | None = None) -> None:
    """Warn if a model is too unsure for its clusters to mean anything.

    For ten classes that is a mean largest probability below 0.28. Parameters are those of
    :func:`confidence`.
    """
    found = confidence(rows, shares)
    if found < LEAST_CONFIDENCE:
        warnings.warn(
            f"the model is near uniform (confidence {found:.2f} of 1): its clusters are hardly "
            "there, and a score of them has a large relative error",
            UntrustedScoreWarning,
            stacklevel=2,
        )


def _draw(shares: Shares, total: int, rng: RandomSource) -> NDArray[np.int64]:
    """Return independent codes by their shares, to a double's precision."""
    # Pretended clients only: nothing private is drawn here.
    uniform = rng.words(total) / 2.0**64
    ends = np.cumsum(shares)
    return np.minimum(np.searchsorted(ends / ends[-1], uniform, side="right"), len(shares) - 1)
