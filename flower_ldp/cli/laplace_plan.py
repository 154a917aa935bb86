"""The answer of ``flower-ldp plan laplace``: from noise to epsilon, and back."""

from __future__ import annotations

import math
import warnings
from dataclasses import asdict, dataclass

from flower_ldp.cli.costs import Cost, check_count, check_delta, wrong
from flower_ldp.cli.output import Report, number
from flower_ldp.mechanisms.laplace import Laplace, NoProtectionWarning
from flower_ldp.mechanisms.laplace_plan import LaplacePlan
from flower_ldp.wire.evaluation import EvalProposal, eval_report_length

#: What one entry of a row can be at most: larger noise drowns it.
_LARGEST_ENTRY = 1.0


@dataclass(frozen=True)
class PlanOptions:
    """What was asked, as the options of ``flower-ldp plan laplace`` say it."""

    epsilon: float | None
    published_epsilon: float | None
    noise_below: float | None
    probability: float
    classes: int | None
    rows: int
    rounds: int
    clients: int | None
    delta: float

    def __post_init__(self) -> None:
        given = (self.epsilon, self.published_epsilon, self.noise_below)
        if sum(value is not None for value in given) != 1:
            raise wrong("--epsilon", "give one of --epsilon, --noise-below and --published-epsilon")
        if not 0 < self.probability < 1:
            raise wrong("--probability", f"must be in (0, 1), got {self.probability}")
        check_count("--rows", self.rows, 1 << 20)
        check_count("--rounds", self.rounds)
        check_count("--clients", self.clients, 2**32 - 1)
        check_delta(self.delta)

    def plan(self) -> LaplacePlan:
        """Return the setting that was named in one of three ways."""
        option = "--epsilon"
        try:
            if self.noise_below is not None:
                option = "--noise-below"
                return LaplacePlan.from_noise(self.noise_below, self.probability)
            if self.published_epsilon is not None:
                option = "--published-epsilon"
                return LaplacePlan.from_published(self.published_epsilon)
            return LaplacePlan(math.nan if self.epsilon is None else self.epsilon)
        except ValueError as error:
            raise wrong(option, str(error)) from error

    def mechanism(self, plan: LaplacePlan, report: Report) -> Laplace:
        """Return the mechanism; an epsilon that protects nothing is a warning."""
        if self.classes is not None and not 2 <= self.classes <= 1 << 20:
            raise wrong("--classes", f"must be in [2, 2^20], got {self.classes}")
        option = "--epsilon" if self.noise_below is None else "--noise-below"
        if self.published_epsilon is not None:
            option = "--published-epsilon"
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", NoProtectionWarning)
            try:
                mechanism = Laplace(plan.epsilon, self.classes or 2, self.rows)
            except ValueError as error:
                raise wrong(option, f"the true {error}") from error
        for warning in caught:
            report.warn(str(warning.message))
        return mechanism


def answer(options: PlanOptions, report: Report) -> None:
    """Answer all that was asked."""
    plan = options.plan()
    mechanism = options.mechanism(plan, report)
    report.facts.update(mechanism="laplace", parameters=asdict(options))
    rows = _noise(options, plan, report)
    if options.classes is not None:
        size = eval_report_length(EvalProposal(mechanism, {}))
        report.facts["bytes_up"] = {"per_round": size, "total": size * options.rounds}
        rows += [
            ("bytes up a client and round", f"{size:,}"),
            ("bytes up a client in all", f"{size * options.rounds:,}"),
        ]
    report.pairs(rows)
    report.line()
    cost = Cost.of(mechanism.events(), options.rounds, options.delta, report)
    report.pairs([*_names(plan, report), *cost.lines()])
    cost.tell_meaning(report)


def _noise(options: PlanOptions, plan: LaplacePlan, report: Report) -> list[tuple[str, str]]:
    below = plan.noise_below(options.probability)
    share = f"{100 * options.probability:.6g} %"
    drowned = "; no probability is larger than 1" if below >= _LARGEST_ENTRY else ""
    noise = report.facts["noise"] = {
        "scale": plan.scale,
        "below": below,
        "probability": options.probability,
        "reports": None,
        "mean_deviation": None,
    }
    found = [
        ("noise on each probability", f"scale {number(plan.scale)}"),
        (f"   {share} of it below", f"{number(below)}{drowned}"),
    ]
    if options.clients is not None:
        reports = options.clients * options.rows
        deviation = math.sqrt(2.0 / reports) * plan.scale
        noise.update(reports=reports, mean_deviation=deviation)
        found.append(
            ("   deviation of a mean", f"{number(deviation)} over {reports:,} rows of a round")
        )
    return found


def _names(plan: LaplacePlan, report: Report) -> list[tuple[str, str]]:
    report.facts["row"] = {
        "epsilon": plan.epsilon,
        "published_epsilon": plan.published_epsilon,
    }
    half = f"{plan.published_epsilon:,.10g} (scale = 1 / epsilon, which names half)"
    return [
        ("epsilon a row", f"{plan.epsilon:,.10g} per client, pure, for any change of the row"),
        ("   as texts publish it", half),
    ]
