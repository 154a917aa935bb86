"""``flower-ldp plan counts``: noise of tables by query."""

import math
from dataclasses import asdict, dataclass
from statistics import NormalDist
from typing import Annotated, Literal

from flower_ldp.cli import plan_costs as costs
from flower_ldp.cli.output import Report
from flower_ldp.facts import Fact
from flower_ldp.parameter_bounds import Bounded
from flower_ldp.privacy import Unit, compose
from flower_ldp.wire.counts import CountsProposal

#: Points of noise beyond which a histogram shows little.
MOST_POINTS = 5.0


@dataclass(frozen=True)
class CountsNoise:
    """Plan counts by query: the noise of each count, and what it is of all examples.

    All tables of a question are one release. Its noise is Laplace's, or normal where a delta is
    given and that is less. Clients with one row each answer for one table by subset selection.

    Parameters
    ----------
    epsilon
        Per question and example, in [1e-6, 1000].
    examples
        Rows or patients of all sites together, or clients with one row each.
    tables
        Tables that are asked for at once.
    cells
        Cells of a table, with those of no value.
    sites
        Sites that answer, each with noise of its own.
    delta
        The most that normal noise may cost.
    unit
        What epsilon is about: an example of a site, or a client with one row.
    """

    epsilon: float
    examples: Annotated[int, Bounded("[1, 1000000000000]")]
    tables: Annotated[int, Bounded("[1, 100]")] = 1
    cells: Annotated[int, Bounded("[2, 10000]")] = 10
    sites: costs.Count = 1
    delta: float = 0.0
    unit: Literal["example", "client"] = "example"

    def answer(self, report: Report) -> None:
        """Answer all that was asked."""
        # With the level of no value a column has one more cell than categories.
        levels = {
            f"t{table}": [f"c{number}" for number in range(self.cells - 1)]
            for table in range(self.tables)
        }
        asked = [(name,) for name in levels]
        proposal = CountsProposal(levels, asked, self.epsilon, self.delta, Unit(self.unit))
        by_client = proposal.sets is not None
        law = "normal" if proposal.mechanism.factor else "Laplace"
        reports = self.examples if by_client else self.sites
        deviation = proposal.deviation(reports)
        share = 100 * deviation / self.examples
        # Of so many normal counts, half have none farther off.
        far = NormalDist().inv_cdf(0.5 + 0.5 * 0.5 ** (1 / (self.cells * self.tables)))
        report.facts.update(mechanism="counts", parameters=asdict(self))
        spent = compose(proposal.events())[Unit(self.unit)]
        many = f", of all {self.examples:,}: points of a bin"
        report.tell(
            Fact("noise.law", "sets of cells" if by_client else law, "noise of each count"),
            Fact("noise.deviation", deviation, "   its deviation", f", from {reports:,} reports"),
            Fact("noise.points", share, "   in per cent", many),
            Fact("noise.largest_points", far * share, "   of the worst count", ", about"),
            *costs.price(spent, "question", "epsilon a question"),
        )
        times = far * share / MOST_POINTS
        if times > 1:
            more = math.ceil(self.examples * times ** (2 if by_client else 1))
            report.warn(
                f"hopeless for bins of a few per cent: {far * share:.2g} points of noise. Ask for "
                f"fewer cells or tables, or about {more:,} {self.unit}s"
            )
