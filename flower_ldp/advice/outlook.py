"""What answers are worth, what a planned run can learn by them, and what would make it good."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache
from typing import TypeAlias

from flower_ldp.accounting.amounts import EPSILON_UNITS
from flower_ldp.facts import Fact
from flower_ldp.mechanisms.base import GOOD_COSINE, UpdatePlan, Verdict, run_cosine, signal_of
from flower_ldp.mechanisms.codeword import Codeword, CodewordPlan
from flower_ldp.mechanisms.sampling.nearest import MAX_ORDER
from flower_ldp.mechanisms.signds import SelectionPlan, SignDS

Kind: TypeAlias = type[SignDS] | type[Codeword]

#: Largest epsilon of one answer.
LARGEST_EPSILON = 100.0
#: Largest total that is ever proposed.
MOST_TOTAL = 100.0
# Answers of less than this are never worth more together than fewer of more: efficiency grows
# with the square of a small epsilon.
_LEAST_EPSILON = 4.0
# Below this epsilon SignDS's reports are worth a hundredth more than codewords at most.
_SIGNDS_FROM = 8.0
# What is better by less than this is not worth another answer of every client, or more bytes.
_TIE = 0.05
_RATIO = 1.25


@dataclass(frozen=True)
class Choice:
    """A mechanism, how often a client is asked, and what that is worth.

    Parameters
    ----------
    kind : type
        Of the mechanism.
    answers : int
        Of a client.
    epsilon : float
        Of an answer.
    worth : float
        Efficiency of all answers of a client together.
    """

    kind: Kind
    answers: int
    epsilon: float
    worth: float


def plan_of(mechanism: SignDS | Codeword, weights: int) -> SelectionPlan | CodewordPlan:
    """Return a mechanism's plan, without a warning of what is said in other words."""
    if isinstance(mechanism, SignDS):
        return mechanism.plan(weights, quiet=True)
    return mechanism.plan(weights)


def counts(units: int, least: int, most: int | None) -> list[int]:
    """Return how often a client may be asked so that its answers have sensible epsilons.

    Parameters
    ----------
    units : int
        The total, in units of 1e-12.
    least : int
        Fewest answers.
    most : int or None
        Most answers, if there is a limit; not below ``least``.
    """
    last = max(least, int(units / EPSILON_UNITS / _LEAST_EPSILON))
    last = last if most is None else min(last, most)
    found = [least]
    while (more := max(found[-1] + 1, int(found[-1] * _RATIO))) <= last:
        found.append(more)
    return found


def best(units: int, weights: int, kinds: tuple[Kind, ...], answers: list[int]) -> Choice:
    """Return the fewest answers that are nearly worth most, codewords first.

    Parameters
    ----------
    units : int
        The total, in units of 1e-12.
    weights : int
        Of the model.
    kinds : tuple of types
        Mechanisms to choose from, the preferred one first.
    answers : list of int
        How often a client may be asked, in ascending order.
    """
    found = []
    for times in answers:
        epsilon = units // times / EPSILON_UNITS
        for kind in kinds:
            if kind is SignDS and len(kinds) > 1 and epsilon <= _SIGNDS_FROM:
                continue
            worth = times * _efficiency(kind(epsilon), weights)
            found.append(Choice(kind, times, epsilon, worth))
    enough = max(choice.worth for choice in found) * (1.0 - _TIE)
    return next(choice for choice in found if choice.worth >= enough)


@lru_cache(maxsize=64)
def total_for(clients: int, weights: int, signal: float) -> float | None:
    """Return about the least total, to two digits, that gives a run a signal; None above 100.

    By codewords, or SignDS where a model is too large for these, or has one weight.
    """
    # As much more as the fewest answers that are nearly worth most may fall short of it.
    needed = signal * weights / clients / (1.0 - _TIE)
    kind: Kind = Codeword if 2 <= weights <= MAX_ORDER else SignDS
    grid = [step / 10 for step in range(1, 100)] + [float(e) for e in range(10, 101)]

    def worth(total: float) -> float:
        units = round(total * EPSILON_UNITS)
        # SignDS is slower to plan, and its efficiency grows with epsilon to the end.
        times = counts(units, 1, None if kind is Codeword else 1)
        return max(best(units, weights, (kind,), [count]).worth for count in times)

    if worth(grid[-1]) < needed:
        return None
    low, high = -1, len(grid) - 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if worth(grid[middle]) >= needed else (middle, high)
    return grid[high]


@lru_cache(maxsize=256)
def _efficiency(mechanism: SignDS | Codeword, weights: int) -> float:
    return plan_of(mechanism, weights).efficiency


#: Below so many clients a bad outlook is one of the promise, and not of numbers alone.
FEW_CLIENTS = 50
#: A total above this is none that :func:`flower_ldp.privacy.meaning` calls a limit.
LARGEST_LIMIT = 10.0
# So often the weights that are few enough are guessed, each time by the last ones' efficiency.
_GUESSES = 4
# More clients than there are people are no advice.
_MOST_CLIENTS = 10**10
# Reports that would not fill a last round are fewer than a fortieth of all.
_SPARE = 1.03


@dataclass(frozen=True)
class Remedies:
    """What would about make a run good, each of them alone; None if nothing of its kind would.

    Parameters
    ----------
    weights : int or None
        At most so many weights.
    clients : int or None
        At least so many clients.
    total_epsilon : float or None
        At least this total for each client, at most 100, with the better mechanism for it.
    """

    weights: int | None
    clients: int | None
    total_epsilon: float | None

    def __str__(self) -> str:
        ways = []
        if self.weights is not None:
            ways.append(f"at most about {self.weights:,} weights")
        if self.clients is not None:
            ways.append(f"at least about {self.clients:,} clients")
        if self.total_epsilon is None:
            return f"{', or '.join(ways) or 'nothing'} (no total up to {MOST_TOTAL:g} is enough)"
        ways.append(
            f"a total epsilon of about {self.total_epsilon:g} spent as `flower-ldp plan` says"
        )
        if self.total_epsilon > LARGEST_LIMIT:
            ways[-1] += ", which as a promise means nothing"
        return ", or ".join(ways)


@dataclass(frozen=True)
class Outlook:
    """What a planned run can learn.

    Parameters
    ----------
    plan : callable
        From a number of weights to what the mechanism's reports are worth for it.
    weights : int
        Of the model.
    clients : int
        Clients that there are.
    rounds : int
        Rounds that ask for reports.
    clients_per_round : int
        Reports of a round.
    """

    plan: Callable[[int], UpdatePlan]
    weights: int
    clients: int
    rounds: int
    clients_per_round: int

    @property
    def reports(self) -> int:
        """Reports of all rounds."""
        return self.rounds * self.clients_per_round

    @cached_property
    def round_cosine(self) -> float:
        """Expected cosine of a round's step with its clients' direction, if they agree."""
        return self.plan(self.weights).cosine_of_sum(self.clients_per_round)

    @cached_property
    def run_cosine(self) -> float:
        """Expected cosine of all steps together with the clients' direction, if they agree."""
        return run_cosine(self.plan(self.weights), self.reports)

    @property
    def verdict(self) -> Verdict:
        """Good, poor or hopeless."""
        return Verdict.of(self.run_cosine)

    @cached_property
    def remedies(self) -> Remedies | None:
        """What would make it good; None if it is."""
        if self.verdict is Verdict.GOOD:
            return None
        enough = signal_of(GOOD_COSINE)
        worth = self.plan(self.weights)
        if worth.efficiency <= 0:  # the sign of one weight is all that is reported, and it is fair
            return Remedies(None, None, None)
        return Remedies(
            weights=self._few_enough(enough),
            clients=self._enough_clients(worth),
            total_epsilon=total_for(self.clients, self.weights, enough),
        )

    def facts(self) -> list[Fact]:
        """Return the cosines and the verdict."""
        one, run, remedies = self.round_cosine, self.run_cosine, self.remedies
        agree, less = (
            f"{one:.3f}, of clients that agree",
            f"{run:.3f}; clients that differ have less",
        )
        return [
            Fact("outlook.cosine_round", one, "cosine of a round's step", text=agree),
            Fact("outlook.cosine_run", run, "cosine of the run's steps", text=less),
            Fact("outlook.verdict", self.verdict.value),
            Fact("outlook.judgement", self.judgement(), "verdict"),
            Fact("outlook.remedies", None if remedies is None else asdict(remedies)),
        ]

    def judgement(self) -> str:
        """Return the verdict in words, with what would make it good."""
        found = self.remedies
        if found is None:
            return f"{self.verdict.value}: most of what can be learned is learned."
        what = {
            Verdict.POOR: "much of what can be learned is lost in the noise",
            Verdict.HOPELESS: "the steps are noise, and next to nothing is learned",
        }[self.verdict]
        return f"{self.verdict.value}: {what}. Good would be {found}.{self._promise()}"

    def _promise(self) -> str:
        if self.clients >= FEW_CLIENTS:
            return ""
        return (
            f" With so few clients ({self.clients}), each private on its own, totals that protect "
            "are enough for few weights alone: where a client is a site with many people's data, "
            "privacy for each of these people is the promise to look at (docs/dpsgd_release.md)."
        )

    def _enough_clients(self, worth: UpdatePlan) -> int | None:
        """Return how many clients are enough; None where reports lean away, however many."""
        square = GOOD_COSINE**2
        along = 1.0 - square * (1.0 + worth.lean)
        if along <= 0.0:
            return None
        short = square / along * self.weights / (self.reports * worth.efficiency)
        clients = _up(self.clients * short * _SPARE)
        return clients if clients <= _MOST_CLIENTS else None

    def _few_enough(self, signal: float) -> int | None:
        """Return a number of weights at which the same reports are good, if there is one."""
        weights = self.weights
        try:
            for _ in range(_GUESSES):
                efficiency = self.plan(weights).efficiency
                weights = min(_down(self.reports * efficiency / signal), self.weights)
                if weights < 2:
                    return None
            while weights >= 2:
                if run_cosine(self.plan(weights), self.reports) >= GOOD_COSINE:
                    return weights
                weights = _down(weights * 0.95)
        except ValueError:  # a report with as many indices as its h says needs as many weights
            pass
        return None


def _down(value: float) -> int:
    """Return two digits of a number, rounded down."""
    step = 10.0 ** max(math.floor(math.log10(max(value, 1.0))) - 1, 0)
    return int(math.floor(value / step) * step)


def _up(value: float) -> int:
    """Return two digits of a number, rounded up."""
    step = 10.0 ** max(math.floor(math.log10(max(value, 1.0))) - 1, 0)
    return int(math.ceil(value / step) * step)
