r"""``flower-ldp plan signds``: what a run with SignDS sends, costs and can learn.

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
from dataclasses import asdict, dataclass
from functools import partial
from typing import Annotated

import typer

from flower_ldp.accounting.amounts import EPSILON_UNITS, Amount
from flower_ldp.accounting.shuffle import shuffled
from flower_ldp.advice import Outlook
from flower_ldp.cli.output import Report, real, usage, whole, wrong
from flower_ldp.cli.plan_costs import WEIGHTS, Delta, Rounds, bytes_up, tell_cost, warn_of_delta
from flower_ldp.facts import Fact, note, number
from flower_ldp.mechanisms.magrr import MagRR
from flower_ldp.mechanisms.signds import SelectionPlan, SignDS, SmallTopSetWarning
from flower_ldp.mechanisms.signds_round import report_length
from flower_ldp.privacy import PrivacyEvent, Unit, compose
from flower_ldp.wire.proposal import health_events, health_length

_LARGEST_EPSILON = 100.0
_SHUFFLER = "only if a shuffler outside the server's control mixes the reports; Flower has none"


@dataclass(frozen=True)
class SignDSRun:
    """Plan a SignDS run: sizes, bytes, epsilon per round and in total, signal to noise.

    All costs are per client, replace-one, and a client is taken to be asked in every round:
    the server sees who takes part, so asking fewer clients a round amplifies nothing.
    """

    params: Annotated[int | None, whole(WEIGHTS, "[1, 4294967295]")] = None
    epsilon: Annotated[
        float | None, typer.Option(help="Of the selection, per round and client, in (0, 100].")
    ] = None
    total_epsilon: Annotated[
        float | None,
        typer.Option(
            help="What all rounds may cost a client. Without --epsilon: ask which epsilon a "
            "round may have. With it: ask whether the rounds fit."
        ),
    ] = None
    rounds: Rounds = 1
    clients: Annotated[int | None, whole("Clients that are available.", "[1, 4294967295]")] = None
    participation: Annotated[
        float, real("Fraction of the clients that a round asks.", "(0, 1]")
    ] = 1.0
    k: Annotated[
        float | None,
        typer.Option(
            help="Fraction of weights in the top set, in (0, 0.25]; without it this and the "
            "weights in a report are chosen by what a report is worth."
        ),
    ] = None
    threshold_ratio: Annotated[
        float,
        typer.Option(help="With --k: least expected fraction of true top weights, in [0.5, 1]."),
    ] = 0.6
    dim_out: Annotated[
        int,
        typer.Option(
            help="Weights in a report, up to 4096; 0: with --k, as many as the ratio allows."
        ),
    ] = 0
    magnitude_epsilon: Annotated[
        float | None,
        real("Of the magnitude bit (MagRR), per round and client; else none.", "(0, 100]"),
    ] = None
    health_epsilon: Annotated[
        float | None, real("Of the health bit, per round and client; else none.", "[0.01, 100]")
    ] = None
    delta: Delta = 1e-5

    def answer(self, report: Report) -> None:
        """Answer all that was asked."""
        if self.epsilon is None and self.total_epsilon is None:
            raise typer.BadParameter("give --epsilon, or --total-epsilon with --rounds")
        if self.params is None and self.epsilon is not None:
            raise wrong("--params", "give the number of weights")
        report.tell(Fact("mechanism", "signds"), Fact("parameters", asdict(self)))
        magnitude = self.magnitude_epsilon
        bits = (
            *(() if magnitude is None else MagRR(magnitude).events()),
            *health_events(self.health_epsilon),
        )
        with usage("--total-epsilon"):
            Amount.allowance(self.total_epsilon or 0.0)
        epsilon = self._affordable(bits, report) if self.epsilon is None else self.epsilon
        if epsilon is None:
            return
        with usage():
            mechanism = SignDS(epsilon, self.k, self.threshold_ratio, self.dim_out)
        if self.params is not None:
            with usage("--dim-out"), report.warnings_of(SmallTopSetWarning):
                plan = mechanism.plan(self.params)
            report.tell(*self._selection(plan), *self._outlook(mechanism, plan))
        warn_of_delta(self.delta, self.clients, "clients", report)
        events = (*mechanism.events(), *bits)
        tell_cost(events, self.rounds, self.delta, report)
        if self.reports is not None:
            self._shuffle(compose(events)[Unit.CLIENT].epsilon, self.reports, report)
        if self.epsilon is not None and self.total_epsilon is not None:
            self._fit(self.total_epsilon, events, report)

    @property
    def reports(self) -> int | None:
        """Reports of one round, counted as Flower's FedAvg counts the clients that it asks."""
        return None if self.clients is None else max(1, int(self.clients * self.participation))

    def _affordable(self, bits: tuple[PrivacyEvent, ...], report: Report) -> float | None:
        """Return the epsilon that a selection may have so that all rounds fit, if there is one."""
        total = self.total_epsilon or 0.0
        units = per_round(total, self.rounds)
        taken = sum(Amount.cost(bit.epsilon).epsilon for bit in bits)
        left = Amount(max(units - taken, 0))
        whole_round = Amount(units).epsilon_text
        found = as_float(left.epsilon)
        each = as_float(units)
        if left.epsilon == 0:
            report.facts["affordable"] = {"epsilon_round": each, "epsilon_selection": found}
            report.problem(
                f"{self.rounds:,} rounds do not fit: a total of {total:g} leaves {whole_round} a "
                f"round, and {_named(bits)}"
            )
            return None
        planned = min(found, _LARGEST_EPSILON)
        fits = f"epsilon {whole_round} a round, rounded down so that all {self.rounds:,} fit"
        own = "   of the selection" if taken else ""
        report.tell(
            Fact("affordable.epsilon_round", each, f"a total of {total:g}", text=fits),
            Fact("affordable.epsilon_selection", found, own, text=left.epsilon_text),
            Fact("affordable.epsilon_planned", planned),
        )
        if planned < found:
            report.warn(f"a selection takes at most {_LARGEST_EPSILON:g}: what follows is for that")
        return planned

    def _selection(self, plan: SelectionPlan) -> list[Fact]:
        size = report_length(dimension=plan.dimension, dim_out=plan.dim_out)
        size += health_length(self.health_epsilon)
        expected = plan.expected_inside
        share = f"{expected:.6f} ({expected / plan.dim_out:.0%})"
        return [
            Fact("selection.h", plan.dim_out, "h, weights in a report", f" of {plan.dimension:,}"),
            Fact("selection.top_size", plan.top_size, "K, weights in the top set"),
            Fact("selection.v_th", plan.threshold, "v_th, favoured from"),
            Fact("selection.expected_inside", expected, "E[v], expected of the top set", "", share),
            Fact("selection.contrast", plan.contrast),
            Fact("selection.worth", plan.worth, "worth of a report"),
            *bytes_up(size, self.rounds, plan.dimension),
        ]

    def _outlook(self, mechanism: SignDS, plan: SelectionPlan) -> list[Fact]:
        """Say what rounds can learn, if the clients are known."""
        reports, clients = self.reports, self.clients
        if reports is None or clients is None:
            return []
        one = signal_to_noise(plan, reports)
        all_rounds = signal_to_noise(plan, reports * self.rounds)
        enough = reports_for_one(plan)
        needed = "" if enough is None else f"; 1 takes {enough:,} reports"
        source = f" from {reports:,} reports{needed}"
        agreeing = f"   of {self.rounds:,} rounds that agree"
        outlook = Outlook(
            partial(mechanism.plan, quiet=True), plan.dimension, clients, self.rounds, reports
        )
        return [
            Fact("signal_to_noise.reports_per_round", reports),
            Fact("signal_to_noise.round", one, "signal to noise of a round", source),
            Fact("signal_to_noise.all_rounds", all_rounds, agreeing),
            Fact("signal_to_noise.reports_for_one", enough),
            *outlook.facts(),
        ]

    def _shuffle(self, epsilon: float, reports: int, report: Report) -> None:
        bound = shuffled(epsilon, clients=reports, delta=self.delta)
        needs = shuffle_needs(epsilon, self.delta)
        told = bound or (
            f"no proven gain from {reports:,} reports a round: the theorem asks for {number(needs)}"
        )
        report.tell(
            note("not part of the above", str(told)),
            Fact("shuffle.epsilon_round", bound and bound.epsilon),
            Fact("shuffle.condition", _SHUFFLER, "   condition"),
            Fact("shuffle.reports", reports),
            Fact("shuffle.reports_needed", needs),
            Fact("shuffle.delta", self.delta),
        )

    def _fit(self, total: float, events: tuple[PrivacyEvent, ...], report: Report) -> None:
        most = rounds_that_fit(total, tuple(event.epsilon for event in events))
        report.tell(
            Fact("fit.rounds", most, f"a total of {total:g}", text=f"holds {most:,} rounds"),
            Fact("fit.fits", most >= self.rounds),
        )
        if most < self.rounds:
            report.problem(f"{self.rounds:,} rounds do not fit a total of {total:g}: {most:,} do")


def _named(bits: tuple[PrivacyEvent, ...]) -> str:
    """Return what each bit takes of a round, as part of a sentence."""
    names = {"magrr": "magnitude"}
    takes = [
        f"the {names.get(bit.mechanism, bit.mechanism)} bit takes {bit.epsilon:g}" for bit in bits
    ]
    return " and ".join(takes) or "no bit takes any of it"


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
