"""Planted broken mechanisms: each claims an epsilon that it does not keep.

They are here so that the audit can be shown to refute them, by its own code and not by a
special case. None is reachable from the package.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flower_ldp.audit import Case, Contrast
from flower_ldp.mechanisms import RandomSource, Selection, SignDS

Floats = NDArray[np.float64]


def generator(rng: RandomSource) -> np.random.Generator:
    """Return a numpy generator keyed from a source, as fast floating-point noise is drawn."""
    return np.random.default_rng(rng.bits(128))


def signds_with_naive_ties(mechanism: SignDS) -> Callable[..., Selection]:
    """Return SignDS with S = {j : s u_j >= tau}: among equal entries it holds more than K."""

    def draw(update: NDArray[np.float32], rng: RandomSource) -> Selection:
        plan = mechanism.plan(update.size)
        numpy_rng = generator(rng)
        sign = rng.sign()
        signed = sign * update
        tau = np.partition(signed, -plan.top_size)[-plan.top_size]
        top, rest = np.flatnonzero(signed >= tau), np.flatnonzero(signed < tau)
        inside = max(plan.law.sample(rng), plan.dim_out - len(rest))
        chosen = numpy_rng.choice(top, inside, replace=False)
        others = numpy_rng.choice(rest, plan.dim_out - inside, replace=False)
        return Selection(np.sort(np.concatenate([chosen, others])), sign)

    return draw


def laplace_with_sensitivity_1(epsilon: float, classes: int = 10) -> Case:
    """Return a row on the simplex with Laplace(1 / epsilon) noise.

    Two rows are up to 2 apart in the 1-norm, so the claim epsilon is really 2 epsilon.
    """
    rows = np.eye(classes)[0], np.eye(classes)[1]

    def draw_many(row: Floats, count: int, rng: RandomSource) -> Floats:
        return row + generator(rng).laplace(0.0, 1.0 / epsilon, (count, classes))

    def log_ratio(reports: Sequence[Any]) -> Floats:
        noisy = np.asarray(reports)
        loss: Floats = np.abs(noisy - rows[1]).sum(axis=1) - np.abs(noisy - rows[0]).sum(axis=1)
        # In units of 2 epsilon; half of the draws tie at the ends, but for their rounding.
        return np.round(loss / 2.0, 9)

    return Case(
        f"Laplace on softmax rows, sensitivity 1 (epsilon {epsilon:g})",
        epsilon,
        lambda row, rng: draw_many(row, 1, rng)[0],
        (Contrast("two one-hot rows", rows, log_ratio, "log-ratio / (2 epsilon)"),),
        (rows, rows[::-1]),
        draws=200_000,
        draw_many=draw_many,
    )


def argmax_of_noisy_label(epsilon: float, classes: int = 10) -> Case:
    """Return argmax(epsilon * one-hot + Laplace(1)) for a label, claimed to be epsilon.

    With ten classes it is really 0.566, 1.137 and 2.193 for 0.5, 1 and 2.
    """

    def draw_many(label: int, count: int, rng: RandomSource) -> NDArray[np.int64]:
        noisy = generator(rng).laplace(0.0, 1.0, (count, classes))
        noisy[:, label] += epsilon
        return np.asarray(noisy.argmax(axis=1))

    return Case(
        f"argmax of noisy one-hot label (epsilon {epsilon:g})",
        epsilon,
        lambda label, rng: int(draw_many(label, 1, rng)[0]),
        (Contrast("two labels", (0, 1), np.asarray, "reported label"),),
        ((0, 1), (1, 0)),
        draws=1_000_000,
        draw_many=draw_many,
    )


def argmax_probabilities(epsilon: float, classes: int = 10) -> tuple[float, float]:
    """Return P(report = y) under label y and under another one, by numerical integration."""
    t = np.linspace(-40.0, 45.0, 400_001)

    def cdf(x: Floats) -> Floats:
        return np.where(x < 0, 0.5 * np.exp(np.minimum(x, 0)), 1 - 0.5 * np.exp(-np.maximum(x, 0)))

    own = 0.5 * np.exp(-np.abs(t - epsilon)) * cdf(t) ** (classes - 1)
    other = 0.5 * np.exp(-np.abs(t)) * cdf(t) ** (classes - 2) * cdf(t - epsilon)
    step = t[1] - t[0]
    return float(own.sum() * step), float(other.sum() * step)


def with_constant_seed(draw: Callable[..., Any], seed: int = 1) -> Callable[..., Any]:
    """Return a sampler that makes the same draws in every call, process and instance."""
    return lambda value, rng: draw(value, RandomSource.seeded(seed))


def with_seed_kept_for(draw: Callable[..., Any], releases: int) -> Callable[..., Any]:
    """Return a sampler that draws a good seed, and uses it for several releases in a row.

    So does a client whose seed is the time in seconds, or whose state an engine copies. Each
    report by itself follows its law.
    """
    calls = 0
    seed = 0

    def repeating(value: Any, rng: RandomSource) -> Any:
        nonlocal calls, seed
        if calls % releases == 0:
            seed = rng.bits(64)
        calls += 1
        return draw(value, RandomSource.seeded(seed))

    return repeating
