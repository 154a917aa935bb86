"""Options and facts that plans and checks share: sizes, noise, and costs."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, TypeAlias

from flower_ldp.accounting.composition import totals
from flower_ldp.accounting.zcdp import life_by_zcdp, zcdp_totals
from flower_ldp.cli.output import Report
from flower_ldp.facts import Fact, keyed, note, number
from flower_ldp.mechanisms.laplace import LaplacePlan
from flower_ldp.parameter_bounds import Bounded
from flower_ldp.privacy import PrivacyEvent, PrivacySpent, Unit, at_least, compose, meaning

Count: TypeAlias = Annotated[int, Bounded("[1, 4294967295]")]
PerhapsCount: TypeAlias = Annotated[int | None, Bounded("[1, 4294967295]")]
Rounds: TypeAlias = Annotated[int, Bounded("[1, 1000000]")]
Share: TypeAlias = Annotated[float, Bounded("(0, 1)")]
Epsilon: TypeAlias = Annotated[float | None, Bounded("(0, 100]")]

#: What is about a client counts towards its examples and labels, and none of it is about these.
FINER_UNITS = Fact(
    "epsilon.units",
    [unit.value for unit in Unit.CLIENT.within],
    "   per example and label",
    text="as much in all, nothing of it directly",
)


def bytes_up(size: int, rounds: int, weights: int | None = None) -> list[Fact]:
    """Return the bytes that a client sends, beside those of plain weights."""
    facts = [Fact("bytes_up.per_round", size, "bytes up a client and round")]
    if weights is not None:
        facts.append(Fact("bytes_up.dense_float32_per_round", 4 * weights, "   as dense float32"))
    return [*facts, Fact("bytes_up.total", size * rounds, "bytes up a client in all")]


def warn_of_delta(delta: float, clients: int | None, report: Report) -> None:
    """Warn of a delta at which one of so many clients may lose all protection."""
    if clients is not None and delta >= 1 / clients:
        report.warn(f"delta {delta:g} is not below 1 / clients: choose it far below")


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
    any_change = " per client, pure, for any change of the row"
    half = " (scale = 1 / epsilon, which names half)"
    return [
        Fact(f"{of}noise.scale", plan.scale, "noise on each probability"),
        Fact(f"{of}noise.below", below, f"   {100 * probability:.6g} % of it below", drowned),
        Fact(f"{of}noise.probability", probability),
        Fact(f"{of}row.epsilon", plan.epsilon, "epsilon a row", any_change),
        Fact(f"{of}row.published_epsilon", plan.published_epsilon, "   as texts publish it", half),
    ]


def price(
    spent: PrivacySpent, key: str, label: str, more: str = "", *, of: str = "", meant: str = ""
) -> list[Fact]:
    """Return an epsilon, whose it is, and its meaning.

    ``key`` is its key in ``epsilon`` and in ``meaning``, unless ``meant`` is the latter; all keys
    begin with ``of``. ``label`` and ``more`` stand before the epsilon and after its unit.
    """
    of_delta = f", delta {spent.delta:g}," if spent.delta else ""
    pure = "" if spent.delta else ", pure"
    text = f"{at_least(spent.epsilon, 7)}{of_delta} per {spent.unit.value}{pure}"
    facts = [
        *keyed(f"{of}epsilon", unit=spent.unit.value, relation=spent.unit.relation),
        Fact(f"{of}epsilon.{key}", spent.epsilon, label, text=text + more),
        Fact(f"{of}meaning.{meant or key}", meaning(spent), "   that is"),
    ]
    if spent.delta:
        told = f"with a probability of up to {spent.delta:g} not even that holds"
        facts += [Fact(f"{of}epsilon.delta", spent.delta), note("   delta", told)]
    return facts


def composed(events: Sequence[PrivacyEvent], rounds: int, delta: float) -> list[Fact]:
    """Return the cost of rounds and its meaning.

    ``events`` are those of one round, all per client and pure. ``delta`` is for the bound by loss
    distributions.
    """
    planned = [replace(event, count=event.count * rounds) for event in events]
    one, pure = compose(events)[Unit.CLIENT], compose(planned)[Unit.CLIENT]
    found, told = totals(planned, delta=delta)[Unit.CLIENT], ""
    by_loss, smaller = found.approximate, found.smaller
    if by_loss is not None:
        gain = "" if by_loss.epsilon < pure.epsilon else "no less: "
        at = f"{gain}{number(by_loss.epsilon)}, delta {delta:g}"
        told = f"{at} (if the rounds and epsilons are fixed beforehand)"
    bound = by_loss and by_loss.epsilon
    return [
        *price(one, "round", "epsilon a round", f" ({' + '.join(map(named, events))})"),
        *price(pure, "total_pure", "in all", f", after {rounds:,} rounds", meant="total"),
        FINER_UNITS,
        Fact("epsilon.total_pld", bound, "   by loss distributions", text=told),
        *by_zcdp(planned, delta),
        *keyed("epsilon", total_smaller=smaller.epsilon, total_smaller_delta=smaller.delta),
    ]


def by_zcdp(events: Sequence[PrivacyEvent], delta: float) -> list[Fact]:
    """Return the epsilon of a life by zCDP that releases fit; nothing if none does by default."""
    cost = zcdp_totals(events)[Unit.CLIENT]
    epsilon = life_by_zcdp(events, Unit.CLIENT, delta)
    if math.isinf(epsilon):
        return []
    told = f"{at_least(epsilon, 7)}, delta {delta:g} (rho {cost.epsilon_text})"
    return [
        Fact("epsilon.life_by_zcdp", epsilon, "   as a life by zCDP", text=told),
        *keyed("epsilon", rho=cost.epsilon_text),
    ]


def named(event: PrivacyEvent) -> str:
    """Return a mechanism's name with its epsilon, and how often."""
    times = "" if event.count == 1 else f"{event.count:,} x "
    return f"{event.mechanism} {times}{event.epsilon:.15g}"
