"""``flower-ldp plan signds``, ``codeword`` and ``gaussian``: private updates of a model."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Annotated

import typer

from flower_ldp.accounting.amounts import Amount
from flower_ldp.accounting.gaussian import composed_epsilon
from flower_ldp.accounting.shuffle import shuffled
from flower_ldp.advice import Outlook
from flower_ldp.cli import signds_numbers as numbers
from flower_ldp.cli.output import Fact, Report, note, number, real, usage, whole, wrong
from flower_ldp.cli.plan_costs import (
    FINER_UNITS,
    Clients,
    Delta,
    Rounds,
    bytes_up,
    mean_of,
    tell_cost,
    tell_worth,
    warn_of_delta,
)
from flower_ldp.mechanisms.codeword import Codeword
from flower_ldp.mechanisms.gaussian import Gaussian
from flower_ldp.mechanisms.gaussian_law import classical_deviation, gaussian_delta
from flower_ldp.mechanisms.magrr import MagRR
from flower_ldp.mechanisms.signds import SignDS, SmallTopSetWarning
from flower_ldp.mechanisms.signds_plan import SelectionPlan
from flower_ldp.privacy import PrivacyEvent, PrivacySpent, Unit, compose
from flower_ldp.wire.codeword import codeword_length
from flower_ldp.wire.health import health_events, health_length
from flower_ldp.wire.signds import report_length

_WEIGHTS = "Number of weights that are trained, d; in a subspace, its dimensions."
_LARGEST_EPSILON = 100.0
_LEAST_DELTA = 1e-12
#: Below this many weights a plan of SignDS would be none to compare with.
_LEAST_SIGNDS = 8


@dataclass(frozen=True)
class SignDSRun:
    """Plan a SignDS run: sizes, bytes, epsilon per round and in total, signal to noise.

    All costs are per client, replace-one, and a client is taken to be asked in every round:
    the server sees who takes part, so asking fewer clients a round amplifies nothing.
    """

    params: Annotated[int | None, whole(_WEIGHTS, "[1, 4294967295]")] = None
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
        units = numbers.per_round(total, self.rounds)
        taken = sum(Amount.cost(bit.epsilon).epsilon for bit in bits)
        left = Amount(max(units - taken, 0))
        whole_round = Amount(units).epsilon_text
        found = numbers.as_float(left.epsilon)
        facts = [
            Fact(
                "affordable.epsilon_round",
                numbers.as_float(units),
                f"a total of {total:g}",
                f"epsilon {whole_round} a round, rounded down so that all {self.rounds:,} fit",
            ),
            Fact(
                "affordable.epsilon_selection",
                found,
                "   of the selection" if taken else "",
                left.epsilon_text,
            ),
        ]
        if left.epsilon == 0:
            report.tell(*(replace(fact, label="") for fact in facts))
            report.problem(
                f"{self.rounds:,} rounds do not fit: a total of {total:g} leaves {whole_round} a "
                f"round, and {_named(bits)}"
            )
            return None
        planned = min(found, _LARGEST_EPSILON)
        report.tell(*facts, Fact("affordable.epsilon_planned", planned))
        if planned < found:
            report.warn(f"a selection takes at most {_LARGEST_EPSILON:g}: what follows is for that")
        return planned

    def _selection(self, plan: SelectionPlan) -> list[Fact]:
        size = report_length(dimension=plan.dimension, dim_out=plan.dim_out)
        size += health_length(self.health_epsilon)
        expected = plan.expected_inside
        share = f"{expected:.6f} ({expected / plan.dim_out:.0%})"
        of = f"{plan.dim_out:,} of {plan.dimension:,}"
        return [
            Fact("selection.h", plan.dim_out, "h, weights in a report", of),
            Fact("selection.top_size", plan.top_size, "K, weights in the top set"),
            Fact("selection.v_th", plan.threshold, "v_th, favoured from"),
            Fact("selection.expected_inside", expected, "E[v], expected of the top set", share),
            Fact("selection.contrast", plan.contrast),
            Fact("selection.worth", plan.worth, "worth of a report", f"{plan.worth:.3g}"),
            *bytes_up(size, self.rounds, plan.dimension),
        ]

    def _outlook(self, mechanism: SignDS, plan: SelectionPlan) -> list[Fact]:
        """Say what rounds can learn, if the clients are known."""
        reports, clients = self.reports, self.clients
        if reports is None or clients is None:
            return []
        one = numbers.signal_to_noise(plan, reports)
        all_rounds = numbers.signal_to_noise(plan, reports * self.rounds)
        enough = numbers.reports_for_one(plan)
        needed = "" if enough is None else f"; 1 takes {enough:,} reports"
        outlook = Outlook(
            partial(mechanism.plan, quiet=True), plan.dimension, clients, self.rounds, reports
        )
        return [
            Fact("signal_to_noise.reports_per_round", reports),
            Fact(
                "signal_to_noise.round",
                one,
                "signal to noise of a round",
                f"{one:.3g} from {reports:,} reports{needed}",
            ),
            Fact(
                "signal_to_noise.all_rounds",
                all_rounds,
                f"   of {self.rounds:,} rounds that agree",
                f"{all_rounds:.3g}",
            ),
            Fact("signal_to_noise.reports_for_one", enough),
            Fact("outlook", outlook.facts()),
            *(note(*row) for row in outlook.rows()),
        ]

    def _shuffle(self, epsilon: float, reports: int, report: Report) -> None:
        bound = shuffled(epsilon, clients=reports, delta=self.delta)
        needs = numbers.shuffle_needs(epsilon, self.delta)
        told = bound or (
            f"no proven gain from {reports:,} reports a round: the theorem asks for {number(needs)}"
        )
        report.tell(
            note("not part of the above", str(told)),
            Fact("shuffle.epsilon_round", bound and bound.epsilon),
            Fact(
                "shuffle.condition",
                "only if a shuffler outside the server's control mixes the reports; "
                "Flower has none",
                "   condition",
            ),
            Fact("shuffle.reports", reports),
            Fact("shuffle.reports_needed", needs),
            Fact("shuffle.delta", self.delta),
        )

    def _fit(self, total: float, events: tuple[PrivacyEvent, ...], report: Report) -> None:
        most = numbers.rounds_that_fit(total, tuple(event.epsilon for event in events))
        report.tell(
            Fact("fit.rounds", most, f"a total of {total:g}", f"holds {most:,} rounds"),
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


@dataclass(frozen=True)
class CodewordRun:
    """Plan codewords: the code's size, bytes, what a report is worth, and what it costs.

    A report's efficiency is the number of weights whose noise it outweighs: N reports of clients
    that agree have about the cosine sqrt(x / (1 + x)) with their direction, x being N times the
    efficiency over the weights. Beside it stands SignDS's, at the same epsilon.
    """

    epsilon: Annotated[float, typer.Option(help="Per round and client, in (0, 100].")]
    params: Annotated[int, whole(_WEIGHTS, "[2, 16777216]")]
    favoured: Annotated[
        int, typer.Option(help="Codewords that are favoured; 0 chooses what is worth most.")
    ] = 0
    rotations: Annotated[
        int, typer.Option(help="Codes that a round's reports are spread over, in [1, 4096].")
    ] = 64
    blocks: Annotated[
        int, typer.Option(help="Equal parts of the update with rows of their own, in [1, 65536].")
    ] = 1
    rounds: Rounds = 1
    clients: Clients = None
    delta: Delta = 1e-5

    def answer(self, report: Report) -> None:
        """Answer all that was asked."""
        with usage():
            mechanism = Codeword(self.epsilon, self.favoured, self.rotations, blocks=self.blocks)
            plan = mechanism.plan(self.params)
        codes = f"{plan.rotations:,} codes of {plan.codewords:,} codewords"
        cosine = self._cosine(plan.cosine_of_sum)
        of_round = "" if cosine is None else f"{cosine:.3f} from {self.clients:,} reports"
        report.tell(
            Fact("mechanism", "codeword"),
            Fact("parameters", asdict(self)),
            Fact("code.n", plan.order, "n, rows of a code", f"{plan.order:,} in {codes}"),
            Fact("code.codewords", plan.codewords),
            Fact("code.rotations", plan.rotations),
            Fact(
                "code.blocks",
                plan.blocks,
                "   in blocks",
                f"{plan.blocks:,} of {plan.block_size:,} weights",
            ),
            Fact("code.favoured", plan.favoured, "K, codewords favoured"),
            Fact("code.bits", plan.bits, "bits of a report"),
            *bytes_up(codeword_length(plan), self.rounds, plan.dimension),
            Fact(
                "code.efficiency",
                plan.efficiency,
                "efficiency of a report",
                number(plan.efficiency),
            ),
            Fact("code.reports", self.clients),
            Fact("code.cosine", cosine, "cosine of a round's step", of_round),
            *(self._beside_signds(plan.efficiency, cosine) if self.params >= _LEAST_SIGNDS else ()),
        )
        tell_cost(mechanism.events(), self.rounds, self.delta, report)

    def _cosine(self, of: Callable[[int], float]) -> float | None:
        return None if self.clients is None else of(self.clients)

    def _beside_signds(self, efficiency: float, cosine: float | None) -> list[Fact]:
        """Say what SignDS's reports are worth at the same epsilon, its sizes chosen."""
        other = SignDS(self.epsilon).plan(self.params, quiet=True)
        size = report_length(dimension=other.dimension, dim_out=other.dim_out)
        its = self._cosine(other.cosine_of_sum)
        told = f"efficiency {number(other.efficiency)}, {size:,} bytes"
        if cosine is None or its is None:
            is_better, by = efficiency > other.efficiency, "efficiency of a report"
        else:
            is_better, by = cosine > its, f"cosine of {self.clients:,} reports"
            told = f"{told}, cosine {its:.3f}"
        better = "codeword" if is_better else "signds"
        return [
            Fact("signds.efficiency", other.efficiency, "   of SignDS, its sizes chosen", told),
            Fact("signds.cosine", its),
            Fact("signds.bytes_up", size),
            Fact("better", better, "better", f"{better}, by the {by}"),
        ]


@dataclass(frozen=True)
class GaussianRun:
    """Plan normal noise on clipped updates: how much, and what rounds come to together.

    The noise is that of the exact curve, for updates up to 2 C apart. Beside it stands the
    textbook's formula, with the delta that it really has.
    """

    epsilon: Annotated[float, typer.Option(help="Per round and client, in [0.001, 100].")]
    delta: Annotated[float, typer.Option(help="Per round and client, in [1e-18, 0.5].")]
    clip_norm: Annotated[
        float, typer.Option(help="Length to which longer updates are scaled, C.")
    ] = 1.0
    rounds: Rounds = 1
    total_delta: Annotated[
        float | None, real("Of all rounds together; the sum if left out.", "[1e-12, 1)")
    ] = None
    params: Annotated[
        int | None,
        whole(
            "Weights that are trained, or a subspace's dimensions; for the bytes.",
            "[1, 4294967295]",
        ),
    ] = None
    clients: Clients = None

    def answer(self, report: Report) -> None:
        """Answer all that was asked."""
        with usage():
            mechanism = Gaussian(self.epsilon, self.delta, self.clip_norm)
        warn_of_delta(self.delta, self.clients, "clients", report)
        deviation = mechanism.deviation
        textbook = classical_deviation(self.epsilon, self.delta)
        true = gaussian_delta(self.epsilon, 1.0 / textbook)
        theirs = 2.0 * self.clip_norm * textbook
        told = "more than asked for" if true > self.delta else "less than asked for: needless noise"
        report.tell(
            Fact("mechanism", "gaussian"),
            Fact("parameters", asdict(self)),
            Fact(
                "noise.deviation",
                deviation,
                "noise of each entry",
                f"deviation {number(deviation)}, for updates of length {self.clip_norm:g}",
            ),
            *mean_of(deviation, self.clients, "reports"),
            Fact(
                "noise.textbook_deviation",
                theirs,
                "   by the textbook",
                f"{number(theirs)}, 2C as distance",
            ),
            Fact("noise.textbook_delta", true, "   its true delta", f"{number(true)}, {told}"),
            *(() if self.params is None else bytes_up(1 + self.params, self.rounds, self.params)),
        )
        self._cost(mechanism, report)

    def _cost(self, mechanism: Gaussian, report: Report) -> None:
        (event,) = mechanism.events()
        one = compose([event])[Unit.CLIENT]
        pure = compose([replace(event, count=self.rounds)])[Unit.CLIENT]
        together = self._together(mechanism, pure, report)
        in_all = (
            f"{pure.epsilon:.15g}, delta {pure.delta:g}, per client after {self.rounds:,} rounds"
        )
        composed = ""
        if together is not None:
            composed = f"{number(together.epsilon)}, delta {together.delta:g} (if rounds and noise "
            composed += "are fixed beforehand)"
        report.tell(
            Fact("epsilon.unit", "client"),
            Fact("epsilon.relation", Unit.CLIENT.relation),
            Fact(
                "epsilon.round",
                one.epsilon,
                "epsilon a round",
                f"{one.epsilon:.15g}, delta {one.delta:g}, per client",
            ),
            Fact("epsilon.delta", one.delta),
            Fact("epsilon.total_sum", pure.epsilon, "in all, sums", in_all),
            Fact("epsilon.total_sum_delta", pure.delta),
            FINER_UNITS,
            Fact(
                "epsilon.total_composed",
                together and together.epsilon,
                "   by the normal law",
                composed,
            ),
            Fact("epsilon.total_composed_delta", together and together.delta),
        )
        tell_worth(together or pure, one, report)

    def _together(
        self, mechanism: Gaussian, pure: PrivacySpent, report: Report
    ) -> PrivacySpent | None:
        """Return the epsilon of all rounds on one curve, at the sum's delta if none is asked."""
        delta = pure.delta if self.total_delta is None else self.total_delta
        if pure.delta >= 1:
            report.warn(f"the rounds' deltas add up to {pure.delta:g}: their sum says nothing")
        if not _LEAST_DELTA <= delta < 1:
            return None
        epsilon = composed_epsilon([mechanism.shift] * self.rounds, delta=delta)
        if math.isinf(epsilon):
            report.warn("on the normal law's curve the epsilon of all rounds is above 100")
            return None
        return PrivacySpent(Unit.CLIENT, epsilon, delta)
