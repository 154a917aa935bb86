"""The answer of ``flower-ldp plan dpsgd``: the noise of a plan, and the policy's line for it."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from flower_ldp.accounting.dpsgd import check_noise, noise_multiplier
from flower_ldp.cli.costs import check_count, wrong
from flower_ldp.cli.output import Report, number
from flower_ldp.mechanisms.training_plan import MOST_ROUNDS, MOST_STEPS, TrainingPlan
from flower_ldp.privacy import PrivacySpent, Unit, meaning, rounded_up


@dataclass(frozen=True)
class PlanOptions:
    """What was asked, as the options of ``flower-ldp plan dpsgd`` say it."""

    epsilon: float
    delta: float
    rounds: int
    steps: int
    rate: float
    examples: int
    clip: float

    def __post_init__(self) -> None:
        check_count("--rounds", self.rounds, MOST_ROUNDS)
        check_count("--steps", self.steps, MOST_STEPS)
        check_count("--examples", self.examples, 10**12)

    def plan(self) -> TrainingPlan:
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
            name = str(error).split()[0]
            named = {"sample_rate": "rate", "steps": "steps"}.get(name, name)
            known = named if named in asdict(self) else "epsilon"
            raise wrong(f"--{known}", str(error)) from error
        return plan


def answer(options: PlanOptions, report: Report) -> None:
    """Answer all that was asked."""
    plan = options.plan()
    n = options.examples
    if options.delta * n >= 1:
        report.warn(f"delta {options.delta:g} is not below 1 / examples: a policy refuses the plan")
    size, deviation = plan.mean_size(n), plan.deviation(n)
    report.facts.update(
        mechanism="dpsgd",
        parameters=asdict(options),
        noise_multiplier=plan.noise,
        step={"examples": size, "deviation": deviation},
        epsilon={
            "unit": "example",
            "relation": Unit.EXAMPLE.relation,
            "plan": plan.epsilon,
            "delta": plan.delta,
        },
    )
    numbers = f"rounds: {plan.rounds}, steps: {plan.steps}, rate: {_yaml(plan.rate)}"
    section = f"{{{numbers}, noise: {_yaml(plan.noise)}, clip: {_yaml(plan.clip)}}}"
    report.facts["policy"] = section
    report.pairs(
        [
            ("noise multiplier", f"{_yaml(plan.noise)}, the noise over the clipping length"),
            ("examples in a step", f"{number(size)} on average, of {n:,}"),
            ("noise of each entry", f"deviation {number(deviation)} of a step's mean gradient"),
            (
                "epsilon of the plan",
                f"{plan.epsilon:g}, delta {plan.delta:g}, per example, for all "
                f"{plan.rounds * plan.steps:,} steps together",
            ),
        ]
    )
    report.line()
    report.line(f"In the policy: plan: {section}")
    words = meaning(PrivacySpent(Unit.EXAMPLE, plan.epsilon, plan.delta))
    report.facts["meaning"] = {"plan": words}
    report.line(f"All rounds: {words}")


def _yaml(value: float) -> str:
    text = repr(float(value))
    if "e" in text and "." not in text.partition("e")[0]:
        text = text.replace("e", ".0e")
    return text
