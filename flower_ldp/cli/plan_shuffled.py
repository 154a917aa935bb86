"""``flower-ldp plan shuffled``: the central epsilon of codewords that somebody shuffles."""

from dataclasses import asdict, dataclass
from typing import Annotated

import typer

from flower_ldp.accounting.shuffled import FavouredPart, ShuffledReports
from flower_ldp.accounting.shuffled_rounds import codeword_for, rounds_epsilon
from flower_ldp.cli import plan_costs as costs
from flower_ldp.cli.output import Report, working, wrong
from flower_ldp.facts import Fact
from flower_ldp.mechanisms import Codeword
from flower_ldp.parameter_bounds import Bounded
from flower_ldp.privacy import PrivacySpent, Unit, at_least, meaning

_CONDITION = "only if an analyzer apart from the server opens mixed reports (docs/analyzer.md)"


@dataclass(frozen=True)
class ShuffledRun:
    """Say which central epsilon codewords have if a shuffler mixes the reports of a round.

    Give --epsilon and get the central one, or --central and get the codewords. It needs an analyzer
    (docs/analyzer.md) that does not collude with the server. Everything together, at any later
    time, has the local one.

    Parameters
    ----------
    epsilon
        Local, of a codeword, in [1e-12, 100].
    central
        Wanted central epsilon of one round, in (0, 30].
    favoured
        Codewords that are favoured; 0 chooses what is worth most.
    codewords
        Of a code, M: twice a power of two.
    reports
        Of honest clients that are mixed in a round; with several rounds, in the smallest.
    delta
        Of all rounds together.
    rounds
        In which one client reports. Rounds of other clients cost it nothing.
    bit_epsilon
        Local, of a bit that is shuffled as a part of the report; else none.
    identified
        Epsilon of whatever else leaves a client with its identity, in all rounds: it is added.
    """

    reports: costs.Count
    epsilon: float | None = None
    central: float | None = None
    favoured: Annotated[int, Bounded("[0, 2^24]")] = 0
    codewords: Annotated[int, Bounded("[4, 2^25]")] = 16_384
    delta: costs.Share = 1e-6
    rounds: Annotated[int, Bounded("[1, 10000]")] = 1
    bit_epsilon: costs.Epsilon = None
    identified: Annotated[float, Bounded("[0, 100]")] = 0.0

    def answer(self, report: Report) -> None:
        """Answer all that was asked."""
        if (self.epsilon is None) == (self.central is None):
            raise typer.BadParameter("give --epsilon, or --central, the wanted one")
        order = self.codewords // 2
        if 2 * order != self.codewords or order & (order - 1):
            raise wrong("--codewords", "must be twice a power of two")
        costs.warn_of_delta(self.delta, self.reports, report)
        report.facts.update(mechanism="codeword", parameters=asdict(self))
        with working("bounding the shuffled reports"):
            mechanism = self._mechanism(order)
            plan = mechanism.plan(order)
            part = FavouredPart(mechanism.epsilon, plan.favoured / plan.codewords)
            bit = () if self.bit_epsilon is None else (FavouredPart(self.bit_epsilon, 0.5),)
            one = ShuffledReports((part, *bit), self.reports)
            epsilon = rounds_epsilon([(one, self.rounds)], self.delta) + self.identified
            alone = self.rounds == 1 and not self.identified
            attained = one.attained(self.delta) if alone else None
        local = self.rounds * one.local_epsilon + self.identified
        spent = PrivacySpent(Unit.CLIENT, epsilon, self.delta)
        of = f", delta {self.delta:g}, of {self.rounds:,} x {self.reports:,} shuffled reports"
        if self.identified:
            of += f", with {self.identified:g} for what leaves with an identity"
        report.tell(
            Fact("codewords", plan.codewords, "M, codewords"),
            Fact("favoured", plan.favoured, "K, codewords favoured"),
            Fact("efficiency", plan.efficiency, "efficiency of a report"),
            Fact("codeword_epsilon", mechanism.epsilon, "local epsilon of a codeword"),
            Fact("central_epsilon", epsilon, "central epsilon", of, at_least(epsilon, 7)),
            Fact("central_lower_bound", attained, "   of the best test", ", if codewords allow it"),
            Fact("meaning.central", meaning(spent), "   that is"),
            Fact("condition", _CONDITION, "   condition"),
            Fact("local_epsilon", local, "everything together", ", at any later time"),
            Fact("relation", Unit.CLIENT.relation),
        )

    def _mechanism(self, order: int) -> Codeword:
        if self.epsilon is not None:
            return Codeword(self.epsilon, self.favoured)
        if self.favoured or self.rounds > 1 or self.bit_epsilon or self.identified:
            raise wrong("--central", "is of one round of codewords alone: give --epsilon")
        return codeword_for(self.central or 0.0, self.reports, delta=self.delta, order=order)
