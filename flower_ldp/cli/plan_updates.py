"""``flower-ldp plan codeword`` and ``gaussian``: private updates of a model."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Annotated

import typer

from flower_ldp.accounting.gaussian import composed_epsilon
from flower_ldp.cli.output import Report, real, usage, whole
from flower_ldp.cli.plan_costs import (
    FINER_UNITS,
    WEIGHTS,
    Clients,
    Delta,
    Rounds,
    bytes_up,
    mean_of,
    tell_cost,
    tell_worth,
    warn_of_delta,
)
from flower_ldp.facts import Fact, number
from flower_ldp.mechanisms.codeword import Codeword
from flower_ldp.mechanisms.gaussian import Gaussian, classical_deviation, gaussian_delta
from flower_ldp.mechanisms.signds import SignDS
from flower_ldp.mechanisms.signds_round import report_length
from flower_ldp.privacy import PrivacySpent, Unit, compose

_LEAST_DELTA = 1e-12
#: Below this many weights a plan of SignDS would be none to compare with.
_LEAST_SIGNDS = 8


@dataclass(frozen=True)
class CodewordRun:
    """Plan codewords: the code's size, bytes, what a report is worth, and what it costs.

    A report's efficiency is the number of weights whose noise it outweighs: N reports of clients
    that agree have about the cosine sqrt(x / (1 + x)) with their direction, x being N times the
    efficiency over the weights. Beside it stands SignDS's, at the same epsilon.
    """

    epsilon: Annotated[float, typer.Option(help="Per round and client, in (0, 100].")]
    params: Annotated[int, whole(WEIGHTS, "[2, 16777216]")]
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
            Fact("code.n", plan.order, "n, rows of a code", f" in {codes}"),
            Fact("code.codewords", plan.codewords),
            Fact("code.rotations", plan.rotations),
            Fact("code.blocks", plan.blocks, "   in blocks", f" of {plan.block_size:,} weights"),
            Fact("code.favoured", plan.favoured, "K, codewords favoured"),
            Fact("code.bits", plan.bits, "bits of a report"),
            *bytes_up(plan.report_bytes, self.rounds, plan.dimension),
            Fact("code.efficiency", plan.efficiency, "efficiency of a report"),
            Fact("code.reports", self.clients),
            Fact("code.cosine", cosine, "cosine of a round's step", text=of_round),
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
            Fact("signds.efficiency", other.efficiency, "   of SignDS, its sizes chosen", "", told),
            Fact("signds.cosine", its),
            Fact("signds.bytes_up", size),
            Fact("better", better, "better", f", by the {by}"),
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
        of_length = f", for updates of length {self.clip_norm:g}"
        theirs = 2.0 * self.clip_norm * textbook
        told = "more than asked for" if true > self.delta else "less than asked for: needless noise"
        report.tell(
            Fact("mechanism", "gaussian"),
            Fact("parameters", asdict(self)),
            Fact("noise.deviation", deviation, "deviation of the noise", of_length),
            *mean_of(deviation, self.clients, "reports"),
            Fact("noise.textbook_deviation", theirs, "   by the textbook", ", 2C as distance"),
            Fact("noise.textbook_delta", true, "   its true delta", f", {told}"),
            *(() if self.params is None else bytes_up(1 + self.params, self.rounds, self.params)),
        )
        self._cost(mechanism, report)

    def _cost(self, mechanism: Gaussian, report: Report) -> None:
        (event,) = mechanism.events()
        one = compose([event])[Unit.CLIENT]
        pure = compose([replace(event, count=self.rounds)])[Unit.CLIENT]
        together = self._together(mechanism, pure, report)
        once = f"{one.epsilon:.15g}, delta {one.delta:g}, per client"
        sums = f"{pure.epsilon:.15g}, delta {pure.delta:g}"
        in_all = f"{sums}, per client after {self.rounds:,} rounds"
        composed, bound = "", together and together.epsilon
        if together is not None:
            law = f"{number(together.epsilon)}, delta {together.delta:g}"
            composed = f"{law} (if rounds and noise are fixed beforehand)"
        report.tell(
            Fact("epsilon.unit", "client"),
            Fact("epsilon.relation", Unit.CLIENT.relation),
            Fact("epsilon.round", one.epsilon, "epsilon a round", text=once),
            Fact("epsilon.delta", one.delta),
            Fact("epsilon.total_sum", pure.epsilon, "in all, sums", text=in_all),
            Fact("epsilon.total_sum_delta", pure.delta),
            FINER_UNITS,
            Fact("epsilon.total_composed", bound, "   by the normal law", text=composed),
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
