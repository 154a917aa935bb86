"""How much the answers to a total are worth, by mechanism and by how often a client is asked."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

from flower_ldp.accounting.amounts import EPSILON_UNITS
from flower_ldp.mechanisms.codeword import Codeword
from flower_ldp.mechanisms.codeword_plan import CodewordPlan
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
