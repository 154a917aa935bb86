"""``flower-ldp plan laplace`` and ``labels``: noise on probabilities and on labels."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Annotated

import typer

from flower_ldp.cli.output import Report, real, usage, whole, wrong
from flower_ldp.cli.plan_costs import (
    Clients,
    Delta,
    Rounds,
    bytes_up,
    laplace_noise,
    mean_of,
    tell_cost,
)
from flower_ldp.facts import Fact, note
from flower_ldp.mechanisms.labels import (
    MAX_SET_CATEGORIES,
    SubsetSelection,
    mutual_information,
)
from flower_ldp.mechanisms.laplace import Laplace, LaplacePlan, NoProtectionWarning
from flower_ldp.mechanisms.randomized_response import KaryResponse
from flower_ldp.privacy import Unit, compose, meaning
from flower_ldp.wire.evaluation import EvalProposal, eval_report_length


@dataclass(frozen=True)
class LaplaceNoise:
    """Plan Laplace noise on rows of probabilities: which noise gives which epsilon, and back.

    A row may change in any way, by up to 2 in the sum of its changes: the true epsilon is
    twice the one that is published for the same noise.
    """

    epsilon: Annotated[
        float | None, typer.Option(help="True epsilon, per row and client, in [1e-6, 1e6].")
    ] = None
    noise_below: Annotated[
        float | None,
        typer.Option(help="In place of it: bound on the noise, kept with --probability."),
    ] = None
    published_epsilon: Annotated[
        float | None,
        typer.Option(help="In place of it: one over the noise's scale, as texts publish it."),
    ] = None
    probability: Annotated[float, real("How often noise is below the bound.", "(0, 1)")] = 0.9
    classes: Annotated[
        int | None, whole("Probabilities in a row; for the bytes.", "[2, 1048576]")
    ] = None
    rows: Annotated[int, whole("Rows that a client sends in a round.", "[1, 1048576]")] = 1
    rounds: Rounds = 1
    clients: Clients = None
    delta: Delta = 1e-5

    def answer(self, report: Report) -> None:
        """Answer all that was asked."""
        plan, mechanism = self._chosen(report)
        reports = None if self.clients is None else self.clients * self.rows
        sizes = []
        if self.classes is not None:
            sizes = bytes_up(eval_report_length(EvalProposal(mechanism, {})), self.rounds)
        report.tell(
            Fact("mechanism", "laplace"),
            Fact("parameters", asdict(self)),
            *laplace_noise(plan, self.probability),
            *mean_of(math.sqrt(2.0) * plan.scale, reports, "rows of a round"),
            *sizes,
        )
        tell_cost(mechanism.events(), self.rounds, self.delta, report)

    def _chosen(self, report: Report) -> tuple[LaplacePlan, Laplace]:
        """Return the setting that was named in one of three ways, and its mechanism."""
        given = {
            "--epsilon": (self.epsilon, LaplacePlan),
            "--published-epsilon": (self.published_epsilon, LaplacePlan.from_published),
            "--noise-below": (
                self.noise_below,
                lambda bound: LaplacePlan.from_noise(bound, self.probability),
            ),
        }
        named = [
            (option, value, make) for option, (value, make) in given.items() if value is not None
        ]
        if len(named) != 1:
            raise wrong("--epsilon", "give one of --epsilon, --noise-below and --published-epsilon")
        ((option, value, make),) = named
        with usage(option), report.warnings_of(NoProtectionWarning):
            plan = make(value)
            return plan, Laplace(plan.epsilon, self.classes or 2, self.rows)


@dataclass(frozen=True)
class RandomizedLabels:
    """Plan randomized labels: how many stay true, and what that costs each of them.

    K-ary randomized response, which needs no prior, and what sets of labels would tell at the
    same price. Each label is randomized once, and what it costs does not grow with the training.
    """

    classes: Annotated[int, whole("Number of different labels.", "[2, 2147483648]")]
    epsilon: Annotated[float | None, typer.Option(help="Per label, once, in (0, 100].")] = None
    keep_probability: Annotated[
        float | None, typer.Option(help="In place of it: how often a label stays true.")
    ] = None
    labels: Annotated[
        int | None, whole("Labels of a client, or of all of them.", "[1, 1000000000000]")
    ] = None

    def answer(self, report: Report) -> None:
        """Answer all that was asked."""
        mechanism = self._mechanism()
        spent = compose(mechanism.events())[Unit.LABEL]
        keep = mechanism.keep_probability
        other = keep * math.exp(-mechanism.epsilon)
        # Not 1 - keep, which cancels where epsilon is large.
        flip = (mechanism.categories - 1) * other
        once = f"{spent.epsilon:.15g} per label, pure, once: rounds of training add nothing"
        report.tell(
            Fact("mechanism", "kary_response"),
            Fact("parameters", asdict(self)),
            Fact("response.keep_probability", keep, "chance that a label stays true"),
            Fact("response.flip_rate", flip, "   that it is flipped", ", to each other alike"),
            Fact("response.each_other", other),
            *self._all(flip, spent.epsilon),
            *_sets(mechanism),
            Fact("epsilon.unit", "label"),
            Fact("epsilon.relation", Unit.LABEL.relation),
            Fact("epsilon.once", spent.epsilon, "epsilon", text=once),
            note("   per example and client", "no promise"),
        )
        report.tell(
            Fact("meaning.label", meaning(spent), "one label"),
            note("not protected", "features, and how many labels there are"),
        )

    def _mechanism(self) -> KaryResponse:
        """Return the response that keeps a label so often."""
        if (self.epsilon is None) == (self.keep_probability is None):
            raise wrong("--epsilon", "give one of --epsilon and --keep-probability")
        option, epsilon, keep = "--epsilon", self.epsilon, self.keep_probability
        if keep is not None:
            option, least = "--keep-probability", 1 / self.classes
            if not least < keep < 1:
                raise wrong(option, f"must be in (1 / classes, 1) = ({least:g}, 1), got {keep}")
            epsilon = math.log(keep * (self.classes - 1)) - math.log1p(-keep)
        with usage(option):
            return KaryResponse(epsilon or 0.0, self.classes, unit=Unit.LABEL)

    def _all(self, flip: float, epsilon: float) -> list[Fact]:
        """Say what becomes of all labels, if it was said how many there are."""
        if self.labels is None:
            return []
        flipped, in_all = flip * self.labels, epsilon * self.labels
        own, together = " each: every label has noise of its own", " for all of them together"
        return [
            Fact("labels.number", self.labels, "labels"),
            Fact("labels.flipped", flipped, "   expected to be flipped"),
            Fact("labels.epsilon_each", epsilon, "   epsilon of each", own),
            Fact("labels.epsilon_if_all_change", in_all, "   epsilon if all may change", together),
        ]


def _sets(mechanism: KaryResponse) -> list[Fact]:
    """Say what sets of labels in place of labels would tell, at the same epsilon."""
    if mechanism.categories > MAX_SET_CATEGORIES:
        return []
    sets = SubsetSelection(mechanism.epsilon, mechanism.categories)
    alone = mutual_information(mechanism.epsilon, mechanism.categories, 1)
    times = sets.mutual_information / alone if alone else 1.0  # of hardly any epsilon, nothing
    told = (
        f"sets of {sets.size} hold it with probability {sets.keep_probability:.3g} and tell "
        f"{times:.3g} times as much"
    )
    if sets.size == 1:
        told = "tells no more: at this epsilon sets of one label are best"
    return [
        Fact("subset_selection.size", sets.size, "subset selection", text=told),
        Fact("subset_selection.keep_probability", sets.keep_probability),
        Fact("subset_selection.information", sets.mutual_information),
        Fact("subset_selection.information_kary", alone),
    ]
