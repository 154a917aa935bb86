r"""The arithmetic behind ``flower-ldp plan`` for SignDS, apart from its printing.

**Signal to noise.** Let a coordinate j lie in the top set of all N reporting clients for the
sign +1, and in none for -1 (or the other way round): the best case, since clients that
disagree take away from the sum. A report adds :math:`X = s\,[j \in J]`, and with
:math:`p_{in} = E[v]/K`, :math:`p_{out} = (h-E[v])/(d-K)`, :math:`\delta = p_{in}-p_{out}`

.. math:: E[X] = \delta/2, \qquad E[X^2] = (p_{in}+p_{out})/2

(docs/signds.md, "Unbiased estimate"). Reports are independent, so the sum T over N of them has

.. math:: \frac{|E[T]|}{\sqrt{\mathrm{Var}[T]}}
    = \sqrt N\,\frac{\delta/2}{\sqrt{(p_{in}+p_{out})/2 - \delta^2/4}}.

Over R rounds in which the coordinate keeps its place it grows by :math:`\sqrt R`.
"""

from __future__ import annotations

import math

from flower_ldp.accounting.amounts import EPSILON_UNITS, Amount
from flower_ldp.mechanisms.signds import SelectionPlan


def signal_to_noise(plan: SelectionPlan, reports: int) -> float:
    """Return mean over standard deviation of the sum at a coordinate on which all agree.

    Parameters
    ----------
    plan : SelectionPlan
        The selection's public numbers.
    reports : int
        N, reports in the sum; at least 1.

    Returns
    -------
    float
        Of one round; 0 for an update of one entry, whose sign alone is reported.
    """
    if reports < 1:
        raise ValueError(f"reports must be at least 1, got {reports}")
    rest = plan.dimension - plan.top_size
    if rest == 0:
        return 0.0
    inside = plan.expected_inside / plan.top_size
    outside = (plan.dim_out - plan.expected_inside) / rest
    mean = plan.contrast / 2.0
    return math.sqrt(reports) * mean / math.sqrt((inside + outside) / 2.0 - mean**2)


def reports_for_one(plan: SelectionPlan) -> int | None:
    """Return the fewest reports whose sum has a signal as large as its noise, if any do."""
    single = signal_to_noise(plan, 1)
    return math.ceil(single**-2) if single > 0 else None


def per_round(total_epsilon: float, rounds: int) -> int:
    """Return what each of ``rounds`` may cost so that all fit, in units of 1e-12.

    Rounded down: the ledger counts in these units and rounds costs up, so a third of 8 as a
    float would not fit three times.

    Parameters
    ----------
    total_epsilon : float
        The limit, pure; not negative.
    rounds : int
        Number of releases; at least 1.

    Raises
    ------
    ValueError
        If the limit is no amount that the ledger can hold.
    """
    return Amount.allowance(total_epsilon).epsilon // rounds


def rounds_that_fit(total_epsilon: float, epsilons: tuple[float, ...]) -> int:
    """Return how many rounds, each a release of every one of ``epsilons``, fit a total."""
    cost = sum(Amount.cost(epsilon).epsilon for epsilon in epsilons)
    return Amount.allowance(total_epsilon).epsilon // cost


def as_float(units: int) -> float:
    """Return units of 1e-12 as the number that names them; exact up to an epsilon of 1,000."""
    return units / EPSILON_UNITS


def shuffle_needs(epsilon: float, delta: float) -> float:
    """Return how many reports a round the theorem of :mod:`..accounting.shuffle` asks for."""
    return float(math.ceil(math.exp(epsilon) * 16.0 * math.log(2.0 / delta)))
