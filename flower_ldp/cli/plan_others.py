"""``flower-ldp plan advice``, ``laplace``, ``labels`` and ``dpsgd``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import Enum
from types import MappingProxyType
from typing import Annotated, Any

import typer

from flower_ldp.accounting.dpsgd import check_noise, noise_multiplier
from flower_ldp.advice import Advice, advise
from flower_ldp.advice.efficiency import Kind
from flower_ldp.cli.output import Fact, Report, note, real, usage, whole, wrong
from flower_ldp.cli.plan_costs import (
    Clients,
    Delta,
    Rounds,
    bytes_up,
    laplace_noise,
    mean_of,
    tell_cost,
)
from flower_ldp.mechanisms.codeword import Codeword
from flower_ldp.mechanisms.codeword_plan import CodewordPlan
from flower_ldp.mechanisms.kary_response import KaryResponse
from flower_ldp.mechanisms.laplace import Laplace, NoProtectionWarning
from flower_ldp.mechanisms.laplace_plan import LaplacePlan
from flower_ldp.mechanisms.signds import SignDS
from flower_ldp.mechanisms.subset_selection import (
    MAX_SET_CATEGORIES,
    SubsetSelection,
    mutual_information,
)
from flower_ldp.mechanisms.training_plan import MOST_ROUNDS, MOST_STEPS, TrainingPlan
from flower_ldp.privacy import PrivacySpent, Unit, compose, meaning, rounded_up
from flower_ldp.wire.evaluation import EvalProposal, eval_report_length


class Mechanism(str, Enum):
    """What ``plan advice --mechanism`` takes."""

    signds = "signds"
    codeword = "codeword"


_KINDS: Mapping[str, Kind] = MappingProxyType({"signds": SignDS, "codeword": Codeword})


@dataclass(frozen=True)
class AdviceAsked:
    """Say how to train with a total for each client, what comes of it, and what would help.

    Each client is asked once, or a few times, over the whole run. The verdict is that of clients
    that agree: those that differ learn less.
    """

    clients: Annotated[int, typer.Option(help="Clients that there are.")]
    params: Annotated[int, whole("Number of weights of the model, d.", "[2, 4294967295]")]
    total_epsilon: Annotated[
        float, typer.Option(help="What a client may spend in the whole run, pure.")
    ]
    answers_per_client: Annotated[
        int | None, typer.Option(help="How often a client is asked; without it what is worth most.")
    ] = None
    rounds: Annotated[
        int | None, typer.Option(help="Rounds; without it 40, or as many as have 5 reports each.")
    ] = None
    mechanism: Annotated[
        Mechanism | None, typer.Option(help="Without it the one whose answers are worth more.")
    ] = None

    def answer(self, report: Report) -> None:
        """Answer all that was asked."""
        with usage(weights="params"):
            advice = advise(
                clients=self.clients,
                weights=self.params,
                total_epsilon=self.total_epsilon,
                answers_per_client=self.answers_per_client,
                rounds=self.rounds,
                mechanism=None if self.mechanism is None else _KINDS[self.mechanism.value],
            )
        outlook = advice.outlook
        report.tell(
            Fact("mechanism", "codeword" if isinstance(advice.mechanism, Codeword) else "signds"),
            Fact("parameters", asdict(self)),
            Fact(
                "advice",
                {
                    "epsilon_answer": advice.mechanism.epsilon,
                    "answers_per_client": advice.answers_per_client,
                    "rounds": outlook.rounds,
                    "clients_per_round": outlook.clients_per_round,
                    "efficiency": advice.plan.efficiency,
                },
            ),
            Fact("selection", _sizes(advice)),
            Fact("outlook", outlook.facts()),
            *(note(*row) for row in advice.rows()),
            Fact("bytes_up.per_round", advice.bytes_up),
            Fact("bytes_up.total", advice.bytes_up * advice.answers_per_client),
            Fact("bytes_up.dense_float32_per_round", 4 * self.params),
        )
        total = PrivacySpent(Unit.CLIENT, advice.total_epsilon)
        report.tell(Fact("meaning.total", meaning(total), "in all"))


def _sizes(advice: Advice) -> dict[str, Any]:
    plan = advice.plan
    if isinstance(plan, CodewordPlan):
        return {"favoured": plan.favoured, "rotations": plan.rotations, "n": plan.order}
    return {"top_size": plan.top_size, "h": plan.dim_out, "v_th": plan.threshold}


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
        flipped, whole_cost = flip * self.labels, epsilon * self.labels
        return [
            Fact("labels.number", self.labels, "labels"),
            Fact("labels.flipped", flipped, "   expected to be flipped"),
            Fact(
                "labels.epsilon_each",
                epsilon,
                "   epsilon of each",
                " each: every label has noise of its own",
            ),
            Fact(
                "labels.epsilon_if_all_change",
                whole_cost,
                "   epsilon if all may change",
                " for all of them together",
            ),
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


@dataclass(frozen=True)
class PrivateTraining:
    """Plan rounds of private training: the noise, and the policy's line for it.

    One example is replaced by any other; all models of all rounds are covered together.
    """

    epsilon: Annotated[float, typer.Option(help="Of the whole plan, per example: [0.01, 30].")]
    delta: Annotated[
        float, typer.Option(help="Of the whole plan, in [1e-10, 0.5]; below 1 / examples.")
    ]
    rounds: Annotated[int, whole("Models that leave a site.", f"[1, {MOST_ROUNDS}]")]
    steps: Annotated[int, whole("Noisy steps of a round.", f"[1, {MOST_STEPS}]")]
    rate: Annotated[float, real("Probability that an example takes part in a step.", "[1e-9, 1]")]
    examples: Annotated[int, whole("Rows or patients of a site; public.", "[1, 1000000000000]")]
    clip: Annotated[float, typer.Option(help="Length to which gradients are clipped.")] = 1.0

    def answer(self, report: Report) -> None:
        """Answer all that was asked."""
        plan = self._plan()
        if self.delta * self.examples >= 1:
            report.warn(
                f"delta {self.delta:g} is not below 1 / examples: a policy refuses the plan"
            )
        size, deviation = plan.mean_size(self.examples), plan.deviation(self.examples)
        numbers = f"rounds: {plan.rounds}, steps: {plan.steps}, rate: {_yaml(plan.rate)}"
        section = f"{{{numbers}, noise: {_yaml(plan.noise)}, clip: {_yaml(plan.clip)}}}"
        words = meaning(PrivacySpent(Unit.EXAMPLE, plan.epsilon, plan.delta))
        report.tell(
            Fact("mechanism", "dpsgd"),
            Fact("parameters", asdict(self)),
            Fact(
                "noise_multiplier",
                plan.noise,
                "noise multiplier",
                ", the noise over the clipping length",
            ),
            Fact("step.examples", size, "examples in a step", f" on average, of {self.examples:,}"),
            Fact("step.deviation", deviation, "deviation of the noise", ", of a step's gradient"),
            Fact("epsilon.unit", "example"),
            Fact("epsilon.relation", Unit.EXAMPLE.relation),
            Fact(
                "epsilon.plan",
                plan.epsilon,
                "epsilon of the plan",
                text=f"{plan.epsilon:g}, delta {plan.delta:g}, per example, for all "
                f"{plan.rounds * plan.steps:,} steps together",
            ),
            Fact("epsilon.delta", plan.delta),
            Fact("meaning.plan", words, "all rounds"),
        )
        report.tell(Fact("policy", section, "in the policy", text=f"plan: {section}"))

    def _plan(self) -> TrainingPlan:
        """Return the plan, with noise rounded up to four digits, which is checked once more."""
        try:
            least = noise_multiplier(
                self.epsilon, self.delta, sample_rate=self.rate, steps=self.rounds * self.steps
            )
            plan = TrainingPlan(
                self.rounds,
                self.steps,
                self.rate,
                rounded_up(least, 4),
                self.clip,
                self.epsilon,
                self.delta,
            )
            check_noise(plan)
        except ValueError as error:
            named = str(error).split()[0]
            raise wrong(f"--{named if named in asdict(self) else 'epsilon'}", str(error)) from error
        return plan


def _yaml(value: float) -> str:
    text = repr(float(value))
    if "e" in text and "." not in text.partition("e")[0]:
        text = text.replace("e", ".0e")
    return text
