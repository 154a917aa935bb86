"""The case of codewords: a direction against its opposite, and against nothing at all."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from flower_ldp.audit.cases import Case, Contrast, Settings, claim, shipped
from flower_ldp.mechanisms import Codeword, NamedCodeword, RandomSource
from flower_ldp.mechanisms.sampling.nearest import signs, transform

#: Pairs that the check for repeated noise chooses from.
_PAIRS = 16
_SMALLEST_DIMENSION = 2
#: Codes of a seed: few, since a score knows the favoured codewords of each.
_CODES = 4

Update = NDArray[np.float32]
Ratio = Callable[[Sequence[NamedCodeword]], NDArray[np.float64]]


def _in_blocks(settings: Settings) -> tuple[Codeword, int]:
    """Return codewords of about ten blocks, none of which is empty."""
    size = -(-settings.dimension // 10)
    blocks = -(-settings.dimension // size)
    return Codeword(settings.epsilon, rotations=_CODES, blocks=blocks), settings.dimension


@shipped("codeword-blocks", _in_blocks)
@shipped("codeword", lambda s: (Codeword(s.epsilon, rotations=_CODES), s.dimension))
def codeword(mechanism: Codeword, dimension: int) -> Case:
    """Return the case of codewords for updates of ``dimension`` entries.

    Two contrasts, each with the logarithm of the exact ratio of probabilities as its score, in
    units of epsilon. *Opposite directions*: an update without equal entries and its negative, whose
    favoured codewords have none in common; -1, 0 or 1. *Zeros*: an update of zeros, all of whose
    codewords are equally near and are answered alike, against the first.
    """
    if dimension < _SMALLEST_DIMENSION:
        raise ValueError(f"dimension must be at least {_SMALLEST_DIMENSION}, got {dimension}")
    mechanism = mechanism.sized(dimension)
    plan = mechanism.plan(dimension)
    # No two of its inner products with codewords are equal.
    slope = np.sqrt(np.arange(1.0, dimension + 1.0)).astype(np.float32)
    none = np.zeros_like(slope)

    def draw(update: Update, rng: RandomSource) -> NamedCodeword:
        return mechanism.randomize(update, rng, dimension)

    favoured = _favoured(mechanism, slope)

    def opposite(reports: Sequence[NamedCodeword]) -> NDArray[np.float64]:
        return np.array([float(one in favoured) - (_flipped(one) in favoured) for one in reports])

    def zeros(reports: Sequence[NamedCodeword]) -> NDArray[np.float64]:
        return np.array([-float(one in favoured) for one in reports])

    shifts = [i * dimension // _PAIRS for i in range(_PAIRS)]
    return Case(
        f"codeword (epsilon {mechanism.epsilon:g}, d {dimension}, n {plan.order}, "
        f"K {plan.favoured}, G {plan.rotations}, B {plan.blocks})",
        claim(mechanism.events())[0],
        draw,
        (
            Contrast("opposite directions", (slope, -slope), opposite, "favoured by the first"),
            Contrast("zeros", (none, slope), zeros, "favoured by the second, negative"),
        ),
        [(np.roll(slope, shift), -np.roll(slope, shift)) for shift in shifts],
        draws=20_000,
        key=lambda report: report,
    )


def _flipped(report: NamedCodeword) -> NamedCodeword:
    return NamedCodeword(report.order, report.rotation, report.row, -report.sign)


def _favoured(mechanism: Codeword, update: Update) -> frozenset[NamedCodeword]:
    """Return the favoured codewords of all codes, by a full sort that the sampler does not use."""
    plan, found = mechanism.plan(len(update)), set()
    size, rows = -(-len(update) // plan.blocks), plan.order // plan.blocks
    filled = np.zeros(plan.order)
    for number, entry in enumerate(update.tolist()):
        filled[number // size * rows + number % size] = entry
    for rotation in range(plan.rotations):
        parts = np.split(filled * signs(mechanism.seed, rotation, plan.order), plan.blocks)
        products = np.concatenate([transform(part) for part in parts])
        nearest = np.argsort(-np.abs(products), kind="stable")[: plan.favoured]
        found |= {
            NamedCodeword(plan.order, rotation, number, 1 if products[number] > 0 else -1)
            for number in nearest.tolist()
        }
    return frozenset(found)
