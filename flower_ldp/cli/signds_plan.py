"""The answer of ``flower-ldp plan signds``: checked options in, lines and facts out."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial

import typer

from flower_ldp.accounting.amounts import Amount
from flower_ldp.accounting.shuffle import shuffled
from flower_ldp.advice import Outlook
from flower_ldp.cli import signds_numbers as numbers
from flower_ldp.cli.costs import Cost, check_count, check_delta, wrong
from flower_ldp.cli.output import Report, number
from flower_ldp.mechanisms.magrr import MagRR
from flower_ldp.mechanisms.randomized_response import BinaryResponse
from flower_ldp.mechanisms.signds import SignDS, SmallTopSetWarning
from flower_ldp.mechanisms.signds_law import MAX_DIMENSION
from flower_ldp.mechanisms.signds_plan import SelectionPlan
from flower_ldp.mechanisms.signds_round import report_length
from flower_ldp.privacy import PrivacyEvent
from flower_ldp.strategies import Health
from flower_ldp.wire.health import health_length

_LARGEST_EPSILON = 100.0


@dataclass(frozen=True)
class PlanOptions:
    """What was asked, as the options of ``flower-ldp plan signds`` say it."""

    params: int | None
    epsilon: float | None
    total_epsilon: float | None
    rounds: int
    clients: int | None
    participation: float
    k: float | None
    threshold_ratio: float
    dim_out: int
    magnitude_epsilon: float | None
    health_epsilon: float | None
    delta: float

    def __post_init__(self) -> None:
        if self.epsilon is None and self.total_epsilon is None:
            raise typer.BadParameter("give --epsilon, or --total-epsilon with --rounds")
        if self.params is None and self.epsilon is not None:
            raise wrong("--params", "give the number of weights")
        check_count("--params", self.params, MAX_DIMENSION)
        check_count("--rounds", self.rounds)
        check_count("--clients", self.clients, MAX_DIMENSION)
        if not 0 < self.participation <= 1:
            raise wrong("--participation", f"must be in (0, 1], got {self.participation}")
        check_delta(self.delta)
        if self.total_epsilon is not None:
            try:
                Amount.allowance(self.total_epsilon)
            except ValueError as error:
                raise wrong("--total-epsilon", str(error)) from error

    @property
    def reports(self) -> int | None:
        """Reports of one round, counted as Flower's FedAvg counts the clients that it asks."""
        return None if self.clients is None else max(1, int(self.clients * self.participation))


def answer(options: PlanOptions, report: Report) -> None:
    """Answer all that was asked."""
    report.facts["mechanism"] = "signds"
    report.facts["parameters"] = asdict(options)
    bits = _bits(options)
    if options.epsilon is None:
        epsilon = _affordable(options, bits, report)
        if epsilon is None:
            return
    else:
        epsilon = options.epsilon
    mechanism = _mechanism(options, epsilon)
    events = (*mechanism.events(), *bits)
    if options.params is not None:
        plan = _plan(mechanism, options.params, report)
        rows = _selection(options, plan, report)
        if options.reports is not None:
            rows += _signal(options, plan, options.reports, report)
            rows += _outlook(options, mechanism, options.reports, report)
        report.pairs(rows)
        report.line()
    _cost(options, events, report)
    if options.epsilon is not None and options.total_epsilon is not None:
        _fit(options, options.total_epsilon, events, report)


def _bits(options: PlanOptions) -> tuple[PrivacyEvent, ...]:
    """Return what the bits cost that are asked for besides the selection."""
    magnitude = _bit("--magnitude-epsilon", options.magnitude_epsilon, MagRR)
    return (
        *magnitude,
        *_bit("--health-epsilon", options.health_epsilon, lambda asked: Health(asked).response),
    )


def _bit(
    option: str, epsilon: float | None, make: Callable[[float], MagRR | BinaryResponse]
) -> tuple[PrivacyEvent, ...]:
    try:
        return () if epsilon is None else make(epsilon).events()
    except ValueError as error:
        raise wrong(option, str(error)) from error


def _mechanism(options: PlanOptions, epsilon: float) -> SignDS:
    try:
        return SignDS(epsilon, options.k, options.threshold_ratio, options.dim_out)
    except ValueError as error:
        option = "--" + str(error).split()[0].replace("_", "-")
        raise wrong(option, str(error)) from error


def _plan(mechanism: SignDS, params: int, report: Report) -> SelectionPlan:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", SmallTopSetWarning)
        try:
            plan = mechanism.plan(params)
        except ValueError as error:
            raise wrong("--dim-out", str(error)) from error
    for warning in caught:
        report.warn(str(warning.message))
    return plan


def _affordable(
    options: PlanOptions, bits: tuple[PrivacyEvent, ...], report: Report
) -> float | None:
    """Return the epsilon that a selection may have so that all rounds fit, if there is one."""
    total = options.total_epsilon or 0.0
    units = numbers.per_round(total, options.rounds)
    taken = sum(Amount.cost(bit.epsilon).epsilon for bit in bits)
    left = Amount(max(units - taken, 0))
    report.facts["affordable"] = {
        "epsilon_round": numbers.as_float(units),
        "epsilon_selection": numbers.as_float(left.epsilon),
    }
    whole = Amount(units).epsilon_text
    if left.epsilon == 0:
        report.problem(
            f"{options.rounds:,} rounds do not fit: a total of {total:g} leaves {whole} a round, "
            f"and {_named(bits)}"
        )
        return None
    of_which = f", of which the selection gets {left.epsilon_text}" if taken else ""
    report.line(f"A total of {total:g} in {options.rounds:,} rounds: epsilon {whole} a round")
    report.line(f"(rounded down to 12 decimals, so that all rounds fit){of_which}.")
    epsilon = numbers.as_float(left.epsilon)
    if epsilon > _LARGEST_EPSILON:
        report.warn(f"a selection takes at most {_LARGEST_EPSILON:g}: what follows is for that")
        epsilon = _LARGEST_EPSILON
    report.facts["affordable"]["epsilon_planned"] = epsilon
    report.line()
    return epsilon


def _named(bits: tuple[PrivacyEvent, ...]) -> str:
    """Return what each bit takes of a round, as part of a sentence."""
    names = {"magrr": "magnitude"}
    takes = [
        f"the {names.get(bit.mechanism, bit.mechanism)} bit takes {bit.epsilon:g}" for bit in bits
    ]
    return " and ".join(takes) or "no bit takes any of it"


def _selection(options: PlanOptions, plan: SelectionPlan, report: Report) -> list[tuple[str, str]]:
    size = report_length(dimension=plan.dimension, dim_out=plan.dim_out)
    size += health_length(options.health_epsilon)
    expected = plan.expected_inside
    report.facts["selection"] = {
        "top_size": plan.top_size,
        "h": plan.dim_out,
        "v_th": plan.threshold,
        "expected_inside": expected,
        "contrast": plan.contrast,
        "worth": plan.worth,
    }
    report.facts["bytes_up"] = {
        "per_round": size,
        "total": size * options.rounds,
        "dense_float32_per_round": 4 * plan.dimension,
    }
    return [
        ("h, weights in a report", f"{plan.dim_out:,} of {plan.dimension:,}"),
        ("K, weights in the top set", f"{plan.top_size:,}"),
        ("v_th, favoured from", f"{plan.threshold:,}"),
        ("E[v], expected of the top set", f"{expected:.6f} ({expected / plan.dim_out:.0%})"),
        ("worth of a report", f"{plan.worth:.3g}"),
        ("bytes up a client and round", f"{size:,} (dense float32: {4 * plan.dimension:,})"),
        ("bytes up a client in all", f"{size * options.rounds:,}"),
    ]


def _signal(
    options: PlanOptions, plan: SelectionPlan, reports: int, report: Report
) -> list[tuple[str, str]]:
    one = numbers.signal_to_noise(plan, reports)
    whole = numbers.signal_to_noise(plan, reports * options.rounds)
    enough = numbers.reports_for_one(plan)
    report.facts["signal_to_noise"] = {
        "reports_per_round": reports,
        "round": one,
        "all_rounds": whole,
        "reports_for_one": enough,
    }
    needed = "" if enough is None else f"; 1 takes {enough:,} reports"
    return [
        ("signal to noise of a round", f"{one:.3g} from {reports:,} reports{needed}"),
        (f"   of {options.rounds:,} rounds that agree", f"{whole:.3g}"),
    ]


def _outlook(
    options: PlanOptions, mechanism: SignDS, reports: int, report: Report
) -> list[tuple[str, str]]:
    found = Outlook(
        partial(mechanism.plan, quiet=True),
        options.params or 0,
        options.clients or reports,
        options.rounds,
        reports,
    )
    report.facts["outlook"] = found.facts()
    return found.rows()


def _cost(options: PlanOptions, events: tuple[PrivacyEvent, ...], report: Report) -> None:
    if options.clients is not None and options.delta >= 1 / options.clients:
        report.warn(f"delta {options.delta:g} is not below 1 / clients: choose it far below")
    cost = Cost.of(events, options.rounds, options.delta, report)
    report.pairs(cost.lines())
    if options.reports is not None:
        _shuffle(options, cost.one.epsilon, options.reports, report)
    cost.tell_meaning(report)


def _shuffle(options: PlanOptions, epsilon: float, reports: int, report: Report) -> None:
    bound = shuffled(epsilon, clients=reports, delta=options.delta)
    needs = numbers.shuffle_needs(epsilon, options.delta)
    report.facts["shuffle"] = {
        "condition": "only if a shuffler outside the server's control mixes the reports; "
        "Flower has none",
        "reports": reports,
        "reports_needed": needs,
        "epsilon_round": None if bound is None else bound.epsilon,
        "delta": options.delta,
    }
    report.line()
    if bound is None:
        report.line(
            "Not part of the above: a shuffler outside the server's control would give no proven "
            f"gain\nwith {reports:,} reports a round (the theorem asks for {number(needs)}); "
            "Flower has none."
        )
    else:
        report.line(f"Not part of the above: {bound}.")


def _fit(
    options: PlanOptions, total: float, events: tuple[PrivacyEvent, ...], report: Report
) -> None:
    most = numbers.rounds_that_fit(total, tuple(event.epsilon for event in events))
    report.facts["fit"] = {"rounds": most, "fits": most >= options.rounds}
    if most < options.rounds:
        report.problem(f"{options.rounds:,} rounds do not fit a total of {total:g}: {most:,} do")
    else:
        report.line(f"A total of {total:g} holds {most:,} rounds: {options.rounds:,} fit.")
