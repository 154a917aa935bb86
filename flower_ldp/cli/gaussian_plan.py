"""The answer of ``flower-ldp plan gaussian``: noise, textbook's delta, rounds together."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace

from flower_ldp.accounting.gaussian import composed_epsilon
from flower_ldp.cli.costs import FINER_UNITS, check_count, wrong
from flower_ldp.cli.output import Report, number
from flower_ldp.mechanisms.gaussian import LARGEST_DIMENSION, Gaussian
from flower_ldp.mechanisms.gaussian_law import classical_deviation, gaussian_delta
from flower_ldp.privacy import PrivacySpent, Unit, compose, meaning

_LEAST_DELTA = 1e-12


@dataclass(frozen=True)
class PlanOptions:
    """What was asked, as the options of ``flower-ldp plan gaussian`` say it."""

    epsilon: float
    delta: float
    clip_norm: float
    rounds: int
    total_delta: float | None
    params: int | None
    clients: int | None

    def __post_init__(self) -> None:
        check_count("--rounds", self.rounds)
        check_count("--params", self.params, LARGEST_DIMENSION)
        check_count("--clients", self.clients, 2**32 - 1)
        if self.total_delta is not None and not _LEAST_DELTA <= self.total_delta < 1:
            raise wrong("--total-delta", f"must be in [1e-12, 1), got {self.total_delta}")

    def mechanism(self) -> Gaussian:
        """Return the mechanism that keeps epsilon and delta."""
        try:
            return Gaussian(self.epsilon, self.delta, self.clip_norm)
        except ValueError as error:
            option = "--" + str(error).split()[0].replace("_", "-")
            raise wrong(option, str(error)) from error


def answer(options: PlanOptions, report: Report) -> None:
    """Answer all that was asked."""
    mechanism = options.mechanism()
    report.facts.update(mechanism="gaussian", parameters=asdict(options))
    if options.clients is not None and options.delta >= 1 / options.clients:
        report.warn(f"delta {options.delta:g} is not below 1 / clients: choose it far below")
    rows = _noise(options, mechanism, report)
    if options.params is not None:
        size = 1 + options.params
        report.facts["bytes_up"] = {
            "per_round": size,
            "total": size * options.rounds,
            "dense_float32_per_round": 4 * options.params,
        }
        rows += [
            ("bytes up a client and round", f"{size:,} (dense float32: {4 * options.params:,})"),
            ("bytes up a client in all", f"{size * options.rounds:,}"),
        ]
    report.pairs(rows)
    report.line()
    _cost(options, mechanism, report)


def _noise(options: PlanOptions, mechanism: Gaussian, report: Report) -> list[tuple[str, str]]:
    deviation, clip = mechanism.deviation, f"{options.clip_norm:g}"
    textbook = classical_deviation(options.epsilon, options.delta)
    true = gaussian_delta(options.epsilon, 1.0 / textbook)
    of_mean = None if options.clients is None else deviation / math.sqrt(options.clients)
    report.facts["noise"] = {
        "deviation": deviation,
        "mean_deviation": of_mean,
        "reports": options.clients,
        "textbook_deviation": 2.0 * options.clip_norm * textbook,
        "textbook_delta": true,
    }
    rows = [("noise of each entry", f"deviation {number(deviation)}, for updates of length {clip}")]
    if of_mean is not None:
        rows.append(("   of a mean", f"{number(of_mean)} over {options.clients:,} reports"))
    worse = "more than asked for" if true > options.delta else "less than asked for: needless noise"
    rows += [
        ("   by the textbook", f"{number(2.0 * options.clip_norm * textbook)}, 2C as distance"),
        ("   its true delta", f"{number(true)}, {worse}"),
    ]
    return rows


def _cost(options: PlanOptions, mechanism: Gaussian, report: Report) -> None:
    (event,) = mechanism.events()
    one = compose([event])[Unit.CLIENT]
    pure = compose([replace(event, count=options.rounds)])[Unit.CLIENT]
    together = _together(options, mechanism, pure, report)
    rows = [
        ("epsilon a round", f"{one.epsilon:.15g}, delta {one.delta:g}, per client"),
        (
            "in all, sums",
            f"{pure.epsilon:.15g}, delta {pure.delta:g}, "
            f"per client after {options.rounds:,} rounds",
        ),
        FINER_UNITS,
    ]
    if together is not None:
        found = f"{number(together.epsilon)}, delta {together.delta:g} (if rounds and noise are "
        rows.append(("   by the normal law", f"{found}fixed beforehand)"))
    report.pairs(rows)
    last = pure if together is None else together
    report.facts["epsilon"] = {
        "unit": "client",
        "units": [unit.value for unit in Unit.CLIENT.within],
        "relation": Unit.CLIENT.relation,
        "round": one.epsilon,
        "delta": one.delta,
        "total_sum": pure.epsilon,
        "total_sum_delta": pure.delta,
        "total_composed": None if together is None else together.epsilon,
        "total_composed_delta": None if together is None else together.delta,
    }
    report.facts["meaning"] = {"round": meaning(one), "total": meaning(last)}
    report.line()
    report.line(f"One round: {meaning(one)}")
    report.line(f"In all:    {meaning(last)}")
    report.line(f"Delta:     with a probability of up to {last.delta:g} not even that holds.")


def _together(
    options: PlanOptions, mechanism: Gaussian, pure: PrivacySpent, report: Report
) -> PrivacySpent | None:
    """Return the epsilon of all rounds on one curve, at the delta of the sum if none is asked."""
    delta = pure.delta if options.total_delta is None else options.total_delta
    if pure.delta >= 1:
        report.warn(f"the rounds' deltas add up to {pure.delta:g}: their sum says nothing")
    if not _LEAST_DELTA <= delta < 1:
        return None
    epsilon = composed_epsilon([mechanism.shift] * options.rounds, delta=delta)
    if math.isinf(epsilon):
        report.warn("on the normal law's curve the epsilon of all rounds is above 100")
        return None
    return PrivacySpent(Unit.CLIENT, epsilon, delta)
