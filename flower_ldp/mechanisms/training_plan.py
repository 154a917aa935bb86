"""A plan of private training: rounds of noisy steps, and their joint cost.

By default a gradient g counts as g / (|g| + 0.01), whatever its length ("automatic clipping": Bu,
Wang, Zha and Karypis 2023). A plan with a ``clip`` scales longer gradients down to it (Abadi et al.
2016). A plan's terms have no clip by default, so the digests of both kinds differ.
:func:`flower_ldp.accounting.dpsgd.check_noise` checks that the noise suffices.
"""

import math
from dataclasses import dataclass, field
from typing import Annotated

from flower_ldp.parameter_bounds import Bounded, check_fields
from flower_ldp.privacy import PrivacyEvent, Unit

#: The most rounds, the most steps in a round, and the most in all, which is what is accounted for.
MOST_ROUNDS, MOST_STEPS, MOST_IN_ALL = 10**6, 10**6, 10**8
_MOST_NAME = 100


def total_steps(rounds: int, steps: int) -> int:
    """Return the steps of all rounds; ValueError if they are more than is accounted for."""
    if rounds * steps > MOST_IN_ALL:
        given = f"got {rounds:,} times {steps:,}"
        raise ValueError(f"rounds times steps must be at most {MOST_IN_ALL:,}, {given}")
    return rounds * steps


@dataclass(frozen=True)
class TrainingPlan:
    """Rounds of DP-SGD on one client's data.

    Parameters
    ----------
    rounds : int
        Models that leave; in [1, 10^6].
    steps : int
        Noisy steps in each round; in [1, 10^6], and 10^8 over all rounds.
    rate : float
        Probability that an example is in a step; in [1e-9, 1].
    noise : float
        Standard deviation of the noise over :attr:`length`; in [0.05, 10,000].
    epsilon, delta : float
        Of all rounds together, for one example replaced; in [0.01, 30] and [1e-10, 0.5].
    name : str
        Distinguishes two plans of the same numbers in one run; at most 100 printable characters.
    evaluations : int
        Evaluations that epsilon and delta cover too; in [0, 10^6].
    evaluation_epsilon : float
        Of each, per example, pure; in [1e-4, 30].
    clip : float, optional
        Length that longer gradients are scaled down to; in [1e-100, 1e100]. By default every
        gradient is scaled to almost 1.

    Raises
    ------
    ValueError
        If a parameter is outside its interval.
    """

    rounds: Annotated[int, Bounded(f"[1, {MOST_ROUNDS}]")]
    steps: Annotated[int, Bounded(f"[1, {MOST_STEPS}]")]
    rate: Annotated[float, Bounded("[1e-09, 1]")]
    noise: Annotated[float, Bounded("[0.05, 10000]")]
    epsilon: Annotated[float, Bounded("[0.01, 30]")]
    delta: Annotated[float, Bounded("[1e-10, 0.5]")]
    name: str = ""
    evaluations: Annotated[int, Bounded(f"[0, {MOST_ROUNDS}]")] = 0
    evaluation_epsilon: Annotated[float, Bounded("[1e-4, 30]")] = 1.0
    clip: Annotated[float | None, Bounded("[1e-100, 1e+100]")] = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        check_fields(self)
        total_steps(self.rounds, self.steps)
        is_text = isinstance(self.name, str) and self.name.isprintable()
        if not is_text or len(self.name) > _MOST_NAME:
            raise ValueError(f"name must be printable text of at most {_MOST_NAME} characters")

    @property
    def event(self) -> PrivacyEvent:
        """Cost of the whole plan for an example."""
        return PrivacyEvent("dpsgd", float(self.epsilon), float(self.delta), Unit.EXAMPLE)

    @property
    def length(self) -> float:
        """Bound on the length of what an example adds to a step's sum."""
        return 1.0 if self.clip is None else float(self.clip)

    def terms(self) -> dict[str, int | float | str]:
        """Return all numbers of the plan by name."""
        found: dict[str, int | float | str] = {"rounds": self.rounds, "steps": self.steps}
        for name in ("rate", "noise", "clip", "epsilon", "delta"):
            if (value := getattr(self, name)) is not None:
                found[name] = float(value)
        if self.evaluations:
            found["evaluations"] = self.evaluations
            found["evaluation-epsilon"] = float(self.evaluation_epsilon)
        return found | ({"name": self.name} if self.name else {})

    def mean_size(self, examples: int) -> float:
        """Return the mean number of examples in a step; public."""
        return float(self.rate) * examples

    def deviation(self, examples: int) -> float:
        """Return the noise on each entry of a step's mean gradient."""
        return self.noise * self.length / self.mean_size(examples)

    def moved_by_noise(self, examples: int) -> float:
        """Return a round's noise on each entry, at a step size of 1."""
        return self.deviation(examples) * math.sqrt(self.steps)
