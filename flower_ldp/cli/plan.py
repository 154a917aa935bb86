"""``flower-ldp plan``: what a training run costs and what it can learn, before it starts.

It has a command for each mechanism, and ``advice``, which chooses one. Without a command's name it
is ``plan advice`` if a total is given with clients and weights, and neither rounds nor an epsilon;
else ``plan signds``.
"""

import math
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal

import click
from typer.core import TyperGroup

from flower_ldp.accounting.dpsgd import (
    PureReleases,
    SampledGaussian,
    check_noise,
    noise_multiplier,
)
from flower_ldp.advice import advise
from flower_ldp.cli.output import Report, command, group
from flower_ldp.cli.plan_costs import PerhapsCount, price
from flower_ldp.cli.plan_counts import CountsNoise
from flower_ldp.cli.plan_noise import GaussianRun, LaplaceNoise, RandomizedLabels
from flower_ldp.cli.plan_shuffled import ShuffledRun
from flower_ldp.cli.plan_updates import CodewordRun, SignDSRun
from flower_ldp.facts import Fact
from flower_ldp.mechanisms import Codeword, SignDS, TrainingOutlook, TrainingPlan
from flower_ldp.mechanisms.training_plan import MOST_ROUNDS, MOST_STEPS, total_steps
from flower_ldp.parameter_bounds import Bounded
from flower_ldp.privacy import PrivacySpent, Unit, meaning, rounded_up
from flower_ldp.yaml_source import in_one_line

#: The fields of a plan of private training in a policy.
_POLICY_FIELDS = ("rounds", "steps", "rate", "noise", "clip")


@dataclass(frozen=True)
class AdviceAsked:
    """Say how to train with a total for each client, what comes of it, and what would help.

    Each client is asked once, or a few times, over the whole run. The verdict is that of clients
    that agree: those that differ learn less.

    Parameters
    ----------
    clients
        Clients that there are.
    params
        Number of weights of the model, d.
    total_epsilon
        What a client may spend in the whole run, pure.
    answers_per_client
        How often a client is asked; by default what is worth most.
    rounds
        Rounds; by default 40, or as many as have 5 reports each.
    mechanism
        By default the one whose answers are worth more.
    """

    clients: int
    params: Annotated[int, Bounded("[2, 4294967295]")]
    total_epsilon: float
    answers_per_client: int | None = None
    rounds: int | None = None
    mechanism: Literal["signds", "codeword"] | None = None

    def answer(self, report: Report) -> None:
        """Answer all that was asked."""
        kinds = {None: None, "signds": SignDS, "codeword": Codeword}
        asked: dict[str, Any] = {**vars(self), "mechanism": kinds[self.mechanism]}
        advice = advise(weights=asked.pop("params"), **asked)
        total = PrivacySpent(Unit.CLIENT, advice.total_epsilon)
        report.tell(Fact("parameters", asdict(self)), *advice.facts())
        report.tell(Fact("bytes_up.dense_float32_per_round", 4 * self.params))
        report.tell(Fact("meaning.total", meaning(total), "in all"))


@dataclass(frozen=True)
class PrivateTraining:
    """Plan rounds of private training: the noise, the policy's line, and what can be learned.

    One example is replaced by any other; all models of all rounds are covered together.

    Parameters
    ----------
    epsilon
        Of the whole plan, per example, in [0.01, 30].
    delta
        Of the whole plan, in [1e-10, 0.5]; below 1 / examples.
    rounds
        Models that leave a site.
    steps
        Noisy steps of a round.
    rate
        Probability that an example takes part in a step.
    examples
        Rows or patients of a site; public.
    clip
        Length that longer gradients are scaled down to; by default each is scaled to almost 1.
    evaluations
        Evaluations that the plan pays for, on the examples that it trains on.
    evaluation_epsilon
        Of each evaluation, per example.
    params
        Weights that learn; for the outlook.
    sites
        Sites whose models are averaged.
    classes
        Of the model's output; 2 for a number.
    agreement
        Of public rows' gradients, as public_agreement in flower_ldp.training measures it.
    """

    epsilon: float
    delta: float
    rounds: Annotated[int, Bounded(f"[1, {MOST_ROUNDS}]")]
    steps: Annotated[int, Bounded(f"[1, {MOST_STEPS}]")]
    rate: Annotated[float, Bounded("[1e-9, 1]")]
    examples: Annotated[int, Bounded("[1, 1000000000000]")]
    clip: float | None = None
    evaluations: Annotated[int, Bounded(f"[0, {MOST_ROUNDS}]")] = 0
    evaluation_epsilon: Annotated[float, Bounded("[1e-4, 30]")] = 0.05
    params: PerhapsCount = None
    sites: Annotated[int, Bounded("[1, 1000000]")] = 1
    classes: Annotated[int, Bounded("[2, 4294967295]")] = 2
    agreement: Annotated[float | None, Bounded("[-1, 1]")] = None

    def answer(self, report: Report) -> None:
        """Answer all that was asked."""
        cost, taken = (self.epsilon, self.delta), total_steps(self.rounds, self.steps)
        number, each = self.evaluations, self.evaluation_epsilon
        asked = PureReleases(each, number) if number else None
        found = noise_multiplier(*cost, sample_rate=self.rate, steps=taken, evaluations=asked)
        noise, free = rounded_up(found, 4), (self.rounds, self.steps, self.rate)
        plan = TrainingPlan(*free, noise, *cost, "", number, each, clip=self.clip)
        check_noise(plan)  # once more, with the noise in four digits
        if self.delta * self.examples >= 1:
            report.warn(f"delta {self.delta:g} is not below 1 / examples: policies refuse it")
        size, deviation = plan.mean_size(self.examples), plan.deviation(self.examples)
        fields: dict[str, Any] = {k: v for k, v in plan.terms().items() if k in _POLICY_FIELDS}
        if number:
            fields["evaluations"] = {"number": number, "epsilon": each}
        section, all_steps = in_one_line(fields), f", for all {taken:,} steps"
        together = f"{all_steps} and {number:,} evaluations" if number else all_steps
        over = ", the noise over the clipping length"
        spent = PrivacySpent(Unit.EXAMPLE, plan.epsilon, plan.delta)
        report.facts.update(mechanism="dpsgd", parameters=asdict(self))
        report.tell(
            Fact("noise_multiplier", plan.noise, "noise multiplier", over),
            Fact("step.examples", size, "examples in a step", f" on average, of {self.examples:,}"),
            Fact("step.deviation", deviation, "deviation of the noise", ", of a step's gradient"),
            *price(spent, "plan", "epsilon of the plan", f"{together} together"),
            *self._sum(plan),
            *self._outlook(plan),
            Fact("policy", section, "in the policy", text=f"plan: {section}"),
        )

    def _outlook(self, plan: TrainingPlan) -> list[Fact]:
        if self.params is None:
            return []
        known = (self.examples, self.sites, self.classes, self.agreement)
        relative = plan.deviation(self.examples) / plan.length * math.sqrt(self.params)
        over = " times the longest that a mean gradient can have, at one site"
        return [
            Fact("step.noise_length", relative, "length of a step's noise", over),
            *TrainingOutlook(plan, *known).facts(),
        ]

    def _sum(self, plan: TrainingPlan) -> list[Fact]:
        if not plan.evaluations:
            return []
        steps = SampledGaussian(plan.noise, self.rate, self.rounds * self.steps)
        apart = steps.epsilon(self.delta) + self.evaluations * self.evaluation_epsilon
        over = ", of the steps and the evaluations, charged one by one"
        return [Fact("epsilon.sum", rounded_up(apart, 4), "   as a sum", over)]


#: Options with which advice is asked for, and those that it takes besides.
_ASKS = frozenset({"--params", "--clients", "--total-epsilon"})
_TAKES = _ASKS | {"--answers-per-client", "--mechanism", "--json"}


class _ByOptions(TyperGroup):
    """A group whose command ``advice`` or ``signds`` is meant where options come first."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0].startswith("-") and args[0] not in ctx.help_option_names:
            named = {word.partition("=")[0] for word in args if word.startswith("--")}
            advice = "--answers-per-client" in named or _ASKS <= named <= _TAKES
            args = ["advice" if advice else "signds", *args]
        return super().parse_args(ctx, args)


#: What each command is made of, and an example.
_COMMANDS: dict[str, tuple[type[Any], str]] = {
    "advice": (AdviceAsked, "--clients 1000 --params 2010 --total-epsilon 8"),
    "signds": (SignDSRun, "--params 61706 --epsilon 8 --rounds 80 --clients 100"),
    "codeword": (CodewordRun, "codeword --epsilon 8 --params 2010 --clients 25"),
    "shuffled": (ShuffledRun, "shuffled --epsilon 4 --reports 2000"),
    "laplace": (LaplaceNoise, "laplace --noise-below 1e-5 --probability 0.9"),
    "labels": (RandomizedLabels, "labels --epsilon 1 --classes 10 --labels 60000"),
    "counts": (CountsNoise, "counts --epsilon 1 --examples 569 --sites 5"),
    "gaussian": (GaussianRun, "gaussian --epsilon 1 --delta 1e-6 --rounds 50"),
    "dpsgd": (
        PrivateTraining,
        "dpsgd --epsilon 1 --delta 1e-5 --rounds 20 --steps 5 --rate 0.05 --examples 1200",
    ),
}

app = group(
    *(f"flower-ldp plan {example}" for _, example in _COMMANDS.values()),
    help="Say what a run costs and what it can learn, before it starts. With --clients, --params "
    "and --total-epsilon alone it says how to train: see 'flower-ldp plan advice --help'. "
    "Otherwise, without a mechanism's name, the mechanism is signds: see 'flower-ldp plan signds "
    "--help'.",
    cls=_ByOptions,
)
for name, (options, example) in _COMMANDS.items():
    command(app, name, f"flower-ldp plan {example}")(options)
