r"""A lower confidence bound on epsilon from the counts of an event under two inputs.

**Definition.** M is :math:`(\epsilon, \delta)`-private if for all neighbours x, x' and every event
E, :math:`P(M(x) \in E) \le e^\epsilon P(M(x') \in E) + \delta`. One event therefore gives

.. math:: \epsilon \ge \ln\frac{p - \delta}{q}, \qquad p = P(M(x) \in E),\; q = P(M(x') \in E).

**Theorem.** Let E, its direction and the numbers of draws be chosen without the draws counted here,
which are independent. E occurs a times in n draws under x and b times in m under x'. With error
:math:`\alpha = 1 -` confidence, let :math:`p_-` be the Clopper-Pearson lower bound on p at error
:math:`\alpha/2` and :math:`q_+` the upper bound on q at :math:`\alpha/2`. Then

.. math:: \hat\epsilon = \ln\frac{p_- - \delta}{q_+}

is at most the true epsilon with probability at least the confidence. *Proof*: each of :math:`p_-
\le p`, :math:`q_+ \ge q` fails with probability at most :math:`\alpha/2`, exactly and for every p,
q and n (Clopper and Pearson 1934); where neither fails, :math:`\hat\epsilon \le \ln((p-\delta)/q)
\le \epsilon`. Of k bounds that hold together, each takes :math:`\alpha/k`. A small bound says
nothing about events that were not tried.
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flower_ldp.errors import needed
from flower_ldp.parameter_bounds import check_in


def _beta() -> Any:
    # Imported here: it takes a second, and who only asks for help does without it.
    with needed("an audit needs scipy", "accounting"):
        from scipy.stats import beta
    return beta


def probability_lower(count: ArrayLike, draws: int, error: float) -> NDArray[np.float64]:
    """Return the Clopper-Pearson lower bound on a probability.

    Parameters
    ----------
    count : array_like of int
        Occurrences of the event, each in [0, draws].
    draws : int
        Independent draws, at least 1.
    error : float
        Probability that the bound exceeds the truth, one-sided; in (0, 1).

    Raises
    ------
    ValueError
        If a count is impossible or ``error`` is outside its interval.
    """
    counts = _checked(count, draws, error)
    bound = _beta().ppf(error, np.maximum(counts, 1), draws - counts + 1)
    return np.where(counts > 0, bound, 0.0)


def probability_upper(count: ArrayLike, draws: int, error: float) -> NDArray[np.float64]:
    """Return the Clopper-Pearson upper bound; parameters as for the lower one."""
    counts = _checked(count, draws, error)
    bound = _beta().isf(error, counts + 1, np.maximum(draws - counts, 1))
    return np.where(counts < draws, bound, 1.0)


def epsilon_lower_bound(
    count: ArrayLike,
    count_other: ArrayLike,
    draws: int,
    *,
    confidence: float,
    delta: float = 0.0,
) -> NDArray[np.float64]:
    """Return the lower bound on epsilon of the module's head, for each pair of counts.

    Parameters
    ----------
    count, count_other : array_like of int
        Occurrences under the input where the event is likelier, and under the other.
    draws : int
        Independent draws under each input.
    confidence : float
        Of each bound by itself, in (0, 1).
    delta : float
        In [0, 1).

    Returns
    -------
    ndarray of float64
        Epsilon per release; at most 0, down to minus infinity, where nothing was shown.

    Raises
    ------
    ValueError
        If an argument is outside its interval.
    """
    check_in("(0, 1)", "confidence", confidence)
    check_in("[0, 1)", "delta", delta)
    error = (1.0 - confidence) / 2.0
    above = probability_lower(count, draws, error) - delta
    below = probability_upper(count_other, draws, error)
    with np.errstate(divide="ignore"):
        bound: NDArray[np.float64] = np.log(np.maximum(above, 0.0)) - np.log(below)
    return bound


def largest_bound(draws: int, *, confidence: float, delta: float = 0.0) -> float:
    """Return the bound of an event that always occurs under one input and never under the other.

    So many draws can refute no claim above it.
    """
    return float(epsilon_lower_bound(draws, 0, draws, confidence=confidence, delta=delta))


def _checked(count: ArrayLike, draws: int, error: float) -> NDArray[np.int64]:
    counts = np.asarray(count, dtype=np.int64)
    check_in("[1, inf)", "draws", draws)
    check_in("(0, 1)", "error", error)
    if counts.size and not (counts.min() >= 0 and counts.max() <= draws):
        raise ValueError(f"count must be in [0, {draws}], got {counts.tolist()}")
    return counts
