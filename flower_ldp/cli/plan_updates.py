r"""``flower-ldp plan signds`` and ``codeword``: what a run sends, costs and can learn.

**Signal to noise.** Let a coordinate j lie in the top set of all N reporting clients for the sign
+1, and in none for -1 (or the other way round): the best case, since clients that disagree take
away from the sum. A report adds :math:`X = s\,[j \in J]`, and with :math:`p_{in} = E[v]/K`,
:math:`p_{out} = (h-E[v])/(d-K)`, :math:`\delta = p_{in}-p_{out}`

.. math:: E[X] = \delta/2, \qquad E[X^2] = (p_{in}+p_{out})/2

(docs/signds.md, "Unbiased estimate"). The sum T over N independent reports has

.. math:: \frac{|E[T]|}{\sqrt{\mathrm{Var}[T]}}
    = \sqrt N\,\frac{\delta/2}{\sqrt{(p_{in}+p_{out})/2 - \delta^2/4}}.

Over R rounds in which the coordinate keeps its place it grows by :math:`\sqrt R`.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Annotated

import typer

from flower_ldp.accounting.amounts import EPSILON_UNITS, Amount
from flower_ldp.accounting.shuffled import shuffle_bound
from flower_ldp.advice import UtilityForecast
from flower_ldp.cli import plan_costs as costs
from flower_ldp.cli.output import Report, wrong
from flower_ldp.facts import Fact, keyed, note, number
from flower_ldp.mechanisms import Codeword, MagRR, SelectionPlan, SignDS, SmallTopSetWarning
from flower_ldp.parameter_bounds import Bounded
from flower_ldp.privacy import PrivacyEvent, Unit, compose
from flower_ldp.wire.proposal import health_events, health_length

#: Below this many weights a plan of SignDS would be none to compare with.
_LEAST_SIGNDS = 8
_LARGEST_EPSILON = 100.0
_SHUFFLER = "only if a shuffler outside the server's control mixes the reports; Flower has none"


@dataclass(frozen=True)
class SignDSRun:
    """Plan a SignDS run: sizes, bytes, epsilon per round and in total, signal to noise.

    All costs are per client, replace-one, and a client is taken to be asked in every round: the
    server sees who takes part, so asking fewer clients a round amplifies nothing.

    Parameters
    ----------
    params
        Number of trained weights, d; in a subspace, its dimensions.
    epsilon
        Of the selection, per round and client, in (0, 100].
    total_epsilon
        What all rounds may cost a client. Without --epsilon: ask which epsilon a round may have.
        With it: ask whether the rounds fit.
    rounds
        Rounds, each of which asks the client.
    clients
        Clients that are available.
    participation
        Fraction of the clients that a round asks.
    k
        Fraction of weights in the top set, in (0, 0.25]; without it this and the weights in a
        report are chosen by what a report is worth.
    threshold_ratio
        With --k: least expected fraction of true top weights, in [0.5, 1].
    dim_out
        Weights in a report, up to 4096; 0: with --k, as many as the ratio allows.
    magnitude_epsilon
        Of the magnitude bit (MagRR), per round and client; else none.
    health_epsilon
        Of the health bit, per round and client; else none.
    delta
        Of the bound by privacy loss distributions.
    """

    params: costs.PerhapsCount = None
    epsilon: float | None = None
    total_epsilon: Annotated[float | None, Bounded("[0, 9223372]")] = None
    rounds: costs.Rounds = 1
    clients: costs.PerhapsCount = None
    participation: Annotated[float, Bounded("(0, 1]")] = 1.0
    k: float | None = None
    threshold_ratio: float = 0.6
    dim_out: int = 0
    magnitude_epsilon: costs.Epsilon = None
    health_epsilon: Annotated[float | None, Bounded("[0.01, 100]")] = None
    delta: costs.Share = 1e-5

    def answer(self, report: Report) -> None:
        """Answer all that was asked."""
        if self.epsilon is None and self.total_epsilon is None:
            raise typer.BadParameter("give --epsilon, or --total-epsilon with --rounds")
        if self.params is None and self.epsilon is not None:
            raise wrong("--params", "give the number of weights")
        report.facts.update(mechanism="signds", parameters=asdict(self))
        magnitude = () if self.magnitude_epsilon is None else MagRR(self.magnitude_epsilon).events()
        bits = (*magnitude, *health_events(self.health_epsilon))
        total = Amount.allowance(self.total_epsilon or 0.0).epsilon
        epsilon = self._share(total, bits, report) if self.epsilon is None else self.epsilon
        if epsilon is None:
            return
        mechanism = SignDS(epsilon, self.k, self.threshold_ratio, self.dim_out)
        if self.params is not None:
            with report.warnings_of(SmallTopSetWarning):
                plan = mechanism.plan(self.params)
            size = plan.report_bytes + health_length(self.health_epsilon)
            sizes = [*plan.describe("selection"), *costs.bytes_up(size, self.rounds, self.params)]
            report.tell(*sizes, *self._outlook(mechanism, plan))
        costs.warn_of_delta(self.delta, self.clients, report)
        events = (*mechanism.events(), *bits)
        report.tell(*costs.composed(events, self.rounds, self.delta))
        if self.reports is not None:
            report.tell(*self._shuffle(compose(events)[Unit.CLIENT].epsilon, self.reports))
        if self.epsilon is not None and self.total_epsilon is not None:
            most = total // cost_of(events)
            fits, holds = most >= self.rounds, f"holds {most:,} rounds"
            of = f"a total of {self.total_epsilon:g}"
            report.tell(Fact("fit.rounds", most, of, text=holds), Fact("fit.fits", fits))
            if not fits:
                report.problem(f"{self.rounds:,} rounds do not fit {of}: {most:,} do")

    @property
    def reports(self) -> int | None:
        """Return a round's reports, counted as Flower's FedAvg counts the clients that it asks."""
        return None if self.clients is None else max(1, int(self.clients * self.participation))

    def _share(self, total: int, bits: Sequence[PrivacyEvent], report: Report) -> float | None:
        """Return the largest epsilon of a selection with which all rounds fit, if there is one.

        A round's share is rounded down to 1e-12, the ledger's unit: a third of 8 as a float would
        not fit three times.
        """
        units = total // self.rounds
        left = Amount(max(units - cost_of(bits), 0))
        found = left.epsilon / EPSILON_UNITS
        planned = min(found, _LARGEST_EPSILON)
        of, each = f"a total of {self.total_epsilon:g}", units / EPSILON_UNITS
        fits = f"epsilon {Amount(units).epsilon_text} a round, so that all {self.rounds:,} fit"
        selection = "   of the selection" if bits else ""
        report.tell(
            Fact("affordable.epsilon_round", each, of, text=fits),
            Fact("affordable.epsilon_selection", found, selection, text=left.epsilon_text),
            Fact("affordable.epsilon_planned", planned),
        )
        if not planned:
            taken = " and ".join(map(costs.named, bits)) or "nothing"
            report.problem(f"{self.rounds:,} rounds do not fit: beside {taken} nothing is left")
            return None
        if planned < found:
            report.warn(f"a selection takes at most {_LARGEST_EPSILON:g}: what follows is for that")
        return planned

    def _outlook(self, mechanism: SignDS, plan: SelectionPlan) -> list[Fact]:
        reports, clients = self.reports, self.clients
        if reports is None or clients is None:
            return []
        single = _signal_to_noise(plan)
        one, enough = math.sqrt(reports) * single, math.ceil(single**-2) if single else None
        needed = "" if enough is None else f"; 1 takes {enough:,} reports"
        source = f" from {reports:,} reports{needed}"
        all_rounds, agreeing = math.sqrt(self.rounds) * one, f"   of {self.rounds:,} that agree"
        sized = partial(mechanism.plan, quiet=True)
        return [
            *keyed("signal_to_noise", reports_per_round=reports, reports_for_one=enough),
            Fact("signal_to_noise.round", one, "signal to noise of a round", source),
            Fact("signal_to_noise.all_rounds", all_rounds, agreeing),
            *UtilityForecast(sized, plan.dimension, clients, self.rounds, reports).facts(),
        ]

    def _shuffle(self, epsilon: float, reports: int) -> list[Fact]:
        """Say what a shuffler would amplify."""
        bound = shuffle_bound(epsilon, clients=reports, delta=self.delta)
        epsilon_round = None if bound is None else bound.epsilon
        told = str(bound or f"no gain from {reports:,} shuffled reports")
        return [
            note("not part of the above", told),
            Fact("shuffle.condition", _SHUFFLER, "   condition"),
            *keyed("shuffle", epsilon_round=epsilon_round, reports=reports, delta=self.delta),
        ]


def cost_of(events: Sequence[PrivacyEvent]) -> int:
    """Return the cost of all these releases together, in the ledger's units."""
    return sum(Amount.cost(event.epsilon).epsilon for event in events)


def _signal_to_noise(plan: SelectionPlan) -> float:
    """Return mean over standard deviation of one report at a coordinate on which all agree.

    It is 0 for an update of one entry, whose sign alone is reported.
    """
    rest = plan.dimension - plan.top_size
    if rest == 0:
        return 0.0
    inside = plan.expected_inside / plan.top_size
    outside = (plan.dim_out - plan.expected_inside) / rest
    mean = plan.contrast / 2.0
    return mean / math.sqrt((inside + outside) / 2.0 - mean**2)


@dataclass(frozen=True)
class CodewordRun:
    """Plan codewords: the code's size, bytes, what a report is worth, and what it costs.

    A report's efficiency is the number of weights whose noise it outweighs: N reports of clients
    that agree have about the cosine sqrt(x / (1 + x)) with their direction, x being N times the
    efficiency over the weights. Beside it stands SignDS's, at the same epsilon.

    Parameters
    ----------
    epsilon
        Per round and client, in (0, 100].
    params
        Number of trained weights, d; in a subspace, its dimensions.
    favoured
        Codewords that are favoured; 0 chooses what is worth most.
    rotations
        Codes that a round's reports are spread over, in [1, 4096].
    blocks
        Equal parts of the update with rows of their own, in [1, 65536].
    rounds
        Rounds, each of which asks the client.
    clients
        Clients of a round.
    delta
        Of the bound by privacy loss distributions.
    """

    epsilon: float
    params: Annotated[int, Bounded("[2, 16777216]")]
    favoured: int = 0
    rotations: int = 64
    blocks: int = 1
    rounds: costs.Rounds = 1
    clients: costs.PerhapsCount = None
    delta: costs.Share = 1e-5

    def answer(self, report: Report) -> None:
        """Answer all that was asked."""
        mechanism = Codeword(self.epsilon, self.favoured, self.rotations, blocks=self.blocks)
        plan = mechanism.plan(self.params)
        cosine = None if self.clients is None else plan.cosine_of_sum(self.clients)
        of_round = "" if cosine is None else f"{cosine:.3f} from {self.clients:,} reports"
        report.facts.update(mechanism="codeword", parameters=asdict(self))
        report.tell(
            *plan.describe("code"),
            *costs.bytes_up(plan.report_bytes, self.rounds, plan.dimension),
            Fact("code.reports", self.clients),
            Fact("code.cosine", cosine, "cosine of a round's step", text=of_round),
            *(self._beside_signds(plan.efficiency, cosine) if self.params >= _LEAST_SIGNDS else ()),
        )
        report.tell(*costs.composed(mechanism.events(), self.rounds, self.delta))

    def _beside_signds(self, efficiency: float, cosine: float | None) -> list[Fact]:
        """Say what SignDS's reports are worth at the same epsilon, its sizes chosen."""
        other = SignDS(self.epsilon).plan(self.params, quiet=True)
        its = None if self.clients is None else other.cosine_of_sum(self.clients)
        told = f"efficiency {number(other.efficiency)}, {other.report_bytes:,} bytes"
        if cosine is None or its is None:
            is_better, by = efficiency > other.efficiency, "efficiency of a report"
        else:
            is_better, by = cosine > its, f"cosine of {self.clients:,} reports"
            told = f"{told}, cosine {its:.3f}"
        return [
            Fact("signds.efficiency", other.efficiency, "   of SignDS, its sizes chosen", "", told),
            *keyed("signds", cosine=its, bytes_up=other.report_bytes),
            Fact("better", "codeword" if is_better else "signds", "better", f", by the {by}"),
        ]
