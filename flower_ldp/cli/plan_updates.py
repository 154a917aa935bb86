"""``flower-ldp plan codeword`` and ``gaussian``: private updates of a model."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Annotated

from flower_ldp.accounting.composition import composed_epsilon
from flower_ldp.bounds import Bounded
from flower_ldp.cli.output import Report, usage
from flower_ldp.cli.plan_costs import (
    FINER_UNITS,
    PerhapsCount,
    Rounds,
    Share,
    bytes_up,
    composed,
    mean_of,
    price,
    warn_of_delta,
)
from flower_ldp.facts import Fact, keyed, number
from flower_ldp.mechanisms.codeword import Codeword
from flower_ldp.mechanisms.gaussian import Gaussian, classical_deviation, gaussian_delta
from flower_ldp.mechanisms.signds import SignDS
from flower_ldp.privacy import PrivacySpent, Unit, compose, meaning

_LEAST_DELTA = 1e-12
#: Below this many weights a plan of SignDS would be none to compare with.
_LEAST_SIGNDS = 8


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
        Number of weights that are trained, d; in a subspace, its dimensions.
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
    rounds: Rounds = 1
    clients: PerhapsCount = None
    delta: Share = 1e-5

    def answer(self, report: Report) -> None:
        """Answer all that was asked."""
        with usage():
            mechanism = Codeword(self.epsilon, self.favoured, self.rotations, blocks=self.blocks)
            plan = mechanism.plan(self.params)
        cosine = None if self.clients is None else plan.cosine_of_sum(self.clients)
        of_round = "" if cosine is None else f"{cosine:.3f} from {self.clients:,} reports"
        report.facts.update(mechanism="codeword", parameters=asdict(self))
        report.tell(
            *plan.describe("code"),
            *bytes_up(plan.report_bytes, self.rounds, plan.dimension),
            Fact("code.reports", self.clients),
            Fact("code.cosine", cosine, "cosine of a round's step", text=of_round),
            *(self._beside_signds(plan.efficiency, cosine) if self.params >= _LEAST_SIGNDS else ()),
        )
        report.tell(*composed(mechanism.events(), self.rounds, self.delta, report))

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
        better = "codeword" if is_better else "signds"
        return [
            Fact("signds.efficiency", other.efficiency, "   of SignDS, its sizes chosen", "", told),
            *keyed("signds", cosine=its, bytes_up=other.report_bytes),
            Fact("better", better, "better", f", by the {by}"),
        ]


@dataclass(frozen=True)
class GaussianRun:
    """Plan normal noise on clipped updates: how much, and what rounds come to together.

    The noise is that of the exact curve, for updates up to 2 C apart. Beside it stands the
    textbook's formula, with the delta that it really has.

    Parameters
    ----------
    epsilon
        Per round and client, in [0.001, 100].
    delta
        Per round and client, in [1e-18, 0.5].
    clip_norm
        Length to which longer updates are scaled, C.
    rounds
        Rounds, each of which asks the client.
    total_delta
        Of all rounds together; the sum if left out.
    params
        Weights that are trained, or a subspace's dimensions; for the bytes.
    clients
        Clients of a round.
    """

    epsilon: float
    delta: float
    clip_norm: float = 1.0
    rounds: Rounds = 1
    total_delta: Annotated[float | None, Bounded("[1e-12, 1)")] = None
    params: PerhapsCount = None
    clients: PerhapsCount = None

    def answer(self, report: Report) -> None:
        """Answer all that was asked."""
        with usage():
            mechanism = Gaussian(self.epsilon, self.delta, self.clip_norm)
        warn_of_delta(self.delta, self.clients, report)
        textbook = classical_deviation(self.epsilon, self.delta)
        true = gaussian_delta(self.epsilon, 1.0 / textbook)
        theirs = 2.0 * self.clip_norm * textbook
        told = "more than asked for" if true > self.delta else "less than asked for: needless noise"
        size = () if self.params is None else bytes_up(1 + self.params, self.rounds, self.params)
        report.facts.update(mechanism="gaussian", parameters=asdict(self))
        report.tell(
            mechanism.describe(),
            *mean_of(mechanism.deviation, self.clients, "reports"),
            Fact("noise.textbook_deviation", theirs, "   by the textbook", ", 2C as distance"),
            Fact("noise.textbook_delta", true, "   its true delta", f", {told}"),
            *size,
        )
        (event,) = mechanism.events()
        one = compose([event])[Unit.CLIENT]
        sums = compose([replace(event, count=self.rounds)])[Unit.CLIENT]
        together = self._together(mechanism, sums, report)
        after = f", after {self.rounds:,} rounds, a sum"
        facts = price(sums, "total_sum", "in all", after, meant="total")
        facts += keyed("epsilon", total_composed=None, total_composed_delta=None)
        if together is not None:
            at = f"{number(together.epsilon)}, delta {together.delta:g}"
            text = f"{at} (if rounds and noise are fixed beforehand)"
            facts += [
                Fact("epsilon.total_composed", together.epsilon, "   by the normal law", text=text),
                Fact("epsilon.total_composed_delta", together.delta),
                Fact("meaning.total", meaning(together), "   that is"),
            ]
        total = keyed("epsilon", total_sum_delta=sums.delta)
        report.tell(*facts, *total, FINER_UNITS, *price(one, "round", "epsilon a round"))

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
