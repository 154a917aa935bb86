"""Options and facts that every mechanism's plan has: rounds, clients, bytes, and what it costs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

from flower_ldp.accounting.composition import totals
from flower_ldp.cli.output import Report, real, whole
from flower_ldp.facts import Fact, note, number
from flower_ldp.mechanisms.laplace import LaplacePlan
from flower_ldp.privacy import PrivacyEvent, PrivacySpent, Unit, compose, meaning

WEIGHTS = "Number of weights that are trained, d; in a subspace, its dimensions."
Rounds = Annotated[int, whole("Rounds, each of which asks the client.", "[1, 1000000]")]
Clients = Annotated[int | None, whole("Clients of a round.", "[1, 4294967295]")]
Delta = Annotated[float, real("Of the bound by privacy loss distributions.", "(0, 1)")]

#: What is about a client counts towards its examples and labels, and none of it is about these.
FINER_UNITS = Fact(
    "epsilon.units",
    [unit.value for unit in Unit.CLIENT.within],
    "   per example and label",
    text="as much in all, nothing of it directly",
)


def bytes_up(size: int, rounds: int, weights: int | None = None) -> list[Fact]:
    """Return what a client sends, beside what so many weights are as they are."""
    dense = []
    if weights is not None:
        dense = [Fact("bytes_up.dense_float32_per_round", 4 * weights, "   as dense float32")]
    return [
        Fact("bytes_up.per_round", size, "bytes up a client and round"),
        *dense,
        Fact("bytes_up.total", size * rounds, "bytes up a client in all"),
    ]


def warn_of_delta(delta: float, count: int | None, what: str, report: Report) -> None:
    """Warn of a delta at which one of so many may lose all protection."""
    if count is not None and delta >= 1 / count:
        report.warn(f"delta {delta:g} is not below 1 / {what}: choose it far below")


def tell_worth(total: PrivacySpent, one: PrivacySpent, report: Report) -> None:
    """Say in words what the sums are worth."""
    report.tell(
        Fact("meaning.total", meaning(total), "in all"),
        Fact("meaning.round", meaning(one), "one round"),
        *caveat_of(total),
    )


def caveat_of(total: PrivacySpent) -> list[Fact]:
    """Return what has to be known of a delta."""
    told = f"with a probability of up to {total.delta:g} not even that holds"
    return [note("delta", told)] if total.delta else []


def mean_of(deviation: float, reports: int | None, what: str) -> list[Fact]:
    """Return the noise of a mean over a round's reports, if there are so many."""
    mean = None if reports is None else deviation / math.sqrt(reports)
    over = "" if reports is None else f" over {reports:,} {what}"
    return [
        Fact("noise.mean_deviation", mean, "   deviation of a mean", over),
        Fact("noise.reports", reports),
    ]


def laplace_noise(plan: LaplacePlan, probability: float, of: str = "") -> list[Fact]:
    """Return the noise on a row of probabilities, in all its names; ``of`` begins the keys."""
    below = plan.noise_below(probability)
    drowned = "; no probability is larger than 1" if below >= 1.0 else ""
    bound = f"   {100 * probability:.6g} % of it below"
    any_change = " per client, pure, for any change of the row"
    half = " (scale = 1 / epsilon, which names half)"
    return [
        Fact(f"{of}noise.scale", plan.scale, "noise on each probability"),
        Fact(f"{of}noise.below", below, bound, drowned),
        Fact(f"{of}noise.probability", probability),
        Fact(f"{of}row.epsilon", plan.epsilon, "epsilon a row", any_change),
        Fact(f"{of}row.published_epsilon", plan.published_epsilon, "   as texts publish it", half),
    ]


def tell_cost(events: Sequence[PrivacyEvent], rounds: int, delta: float, report: Report) -> None:
    """Say what rounds cost, and what that is worth.

    Parameters
    ----------
    events : sequence of PrivacyEvent
        Of one round; all per client and pure.
    rounds : int
        Rounds in which the client takes part.
    delta : float
        Of the bound by loss distributions; where it cannot be computed, that is a warning.
    report : Report
        Gets the keys ``epsilon`` and ``meaning``.
    """
    planned = [replace(event, count=event.count * rounds) for event in events]
    one, pure = compose(events)[Unit.CLIENT], compose(planned)[Unit.CLIENT]
    by_loss, smaller = None, pure
    try:
        found = totals(planned, delta=delta)[Unit.CLIENT]
        by_loss, smaller = found.approximate, found.smaller
    except ModuleNotFoundError as error:
        report.warn(str(error))
    told = ""
    if by_loss is not None:
        gain = "" if by_loss.epsilon < pure.epsilon else "no less: "
        told = f"{gain}{number(by_loss.epsilon)}, {_at(by_loss)}"
    chosen = f"{smaller.epsilon:.15g}, the pure sum"
    if smaller.delta > 0:
        chosen = f"{number(smaller.epsilon)}, {_at(smaller)}"
    once = f"{one.epsilon:.15g} per client, pure ({' + '.join(map(named, events))})"
    in_all = f"{pure.epsilon:.15g} per client after {rounds:,} rounds"
    bound = by_loss and by_loss.epsilon
    report.tell(
        Fact("epsilon.unit", "client"),
        Fact("epsilon.relation", Unit.CLIENT.relation),
        Fact("epsilon.total_pure", pure.epsilon, "epsilon in all, pure", text=in_all),
        FINER_UNITS,
        Fact("epsilon.total_pld", bound, "   by loss distributions", text=told),
        Fact("epsilon.total_smaller", smaller.epsilon, "   the smaller valid bound", text=chosen),
        Fact("epsilon.total_smaller_delta", smaller.delta),
        Fact("epsilon.round", one.epsilon, "epsilon a round", text=once),
    )
    tell_worth(pure, one, report)


def named(event: PrivacyEvent) -> str:
    """Return a mechanism's name with its epsilon, and how often."""
    times = "" if event.count == 1 else f"{event.count:,} x "
    return f"{event.mechanism} {times}{event.epsilon:.15g}"


def _at(spent: PrivacySpent) -> str:
    return f"delta {spent.delta:g} (if the rounds and epsilons are fixed beforehand)"
