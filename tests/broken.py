"""Planted broken mechanisms: each claims an epsilon that it does not keep.

They are here so that the audit can be shown to refute them, by its own code and not by a
special case. None is reachable from the package.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flower_ldp.audit import Case, Contrast
from flower_ldp.mechanisms import RandomSource, Selection, SignDS
from flower_ldp.mechanisms.signds_round import Report
from flower_ldp.privacy import PrivacyEvent, PrivacySpent, Unit

Floats = NDArray[np.float64]


def generator(rng: RandomSource) -> np.random.Generator:
    """Return a numpy generator keyed from a source, as fast floating-point noise is drawn."""
    return np.random.default_rng(rng.bits(128))


def signds_with_naive_ties(mechanism: SignDS) -> Callable[..., Report]:
    """Return SignDS with S = {j : s u_j >= tau}: among equal entries it holds more than K."""

    def draw(update: NDArray[np.float32], rng: RandomSource) -> Report:
        plan = mechanism.plan(update.size)
        numpy_rng = generator(rng)
        sign = rng.sign()
        signed = sign * update
        tau = np.partition(signed, -plan.top_size)[-plan.top_size]
        top, rest = np.flatnonzero(signed >= tau), np.flatnonzero(signed < tau)
        inside = max(plan.law.sample(rng), plan.dim_out - len(rest))
        chosen = numpy_rng.choice(top, inside, replace=False)
        others = numpy_rng.choice(rest, plan.dim_out - inside, replace=False)
        return Selection(np.sort(np.concatenate([chosen, others])), sign), None

    return draw


def signds_with_sign(
    mechanism: SignDS, wanted: Callable[[NDArray[np.float32]], int]
) -> Callable[..., Report]:
    """Return SignDS with a sign that follows the update, where ``wanted`` gives one, not 0."""

    def draw(update: NDArray[np.float32], rng: RandomSource) -> Report:
        report = mechanism.randomize(update, rng)
        while report.sign == -wanted(update):
            report = mechanism.randomize(update, rng)
        return report, None

    return draw


def sign_of_the_update(update: NDArray[np.float32]) -> int:
    """Return the sign of the first entry, as of a model that was moved up or down."""
    return 1 if update[0] >= 0 else -1


def one_sign_for_equals(update: NDArray[np.float32]) -> int:
    """Return one sign for an update of equal entries, and leave that of others to the coin."""
    return int(np.ptp(update) == 0)


def signds_of_a_length(mechanism: SignDS) -> Callable[..., Report]:
    """Return SignDS with one dimension fewer for updates that begin below zero."""

    def draw(update: NDArray[np.float32], rng: RandomSource) -> Report:
        report = mechanism.randomize(update, rng)
        return Selection(report.indices[int(update[0] < 0) :], report.sign), None

    return draw


def signds_counting_equals_twice(mechanism: SignDS) -> Callable[..., Report]:
    """Return SignDS with a top set that counts the equals at both ends of one bracket twice.

    On a vector of more than 131,072 entries two order statistics of 8,192 probed entries
    bracket the threshold. Where both are one value, the entries at or beyond the better end
    hold the equal ones already, and they are counted again: the set is too small.
    """
    probes = 8192

    def members(update: NDArray[np.float32], size: int, sign: int) -> NDArray[np.bool_]:
        signed, d = sign * update, len(update)
        at = np.arange(probes)
        shift = ((at * 40503 & 0xFFFF) * (d // probes)) >> 16
        sample = np.sort(signed[at * d // probes + shift])[::-1]
        rank = probes * size / d
        slack = 3.5 * np.sqrt(rank * (1 - size / d)) + 8.0
        best, worst = int(np.floor(rank - slack)), int(np.ceil(rank + slack))
        ends = sample[max(best, 0)], sample[min(worst, probes - 1)]
        beyond = int((signed >= ends[0]).sum())
        equal = int((signed == ends[1]).sum())
        if ends[0] != ends[1] or not beyond < size <= beyond + equal:
            return by_definition(signed, size)
        wanted = size - beyond  # of the equals, all of which beyond holds
        top = signed > ends[1]
        top[np.flatnonzero(signed == ends[1])[:wanted]] = True
        return top

    def by_definition(signed: NDArray[np.float32], size: int) -> NDArray[np.bool_]:
        top = np.zeros(len(signed), dtype=np.bool_)
        top[np.argsort(-signed, kind="stable")[:size]] = True
        return top

    @lru_cache(maxsize=8)
    def sets(update: bytes, size: int, sign: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        top = members(np.frombuffer(update, dtype=np.float32), size, sign)
        return np.flatnonzero(top), np.flatnonzero(~top)

    def draw(update: NDArray[np.float32], rng: RandomSource) -> Report:
        plan = mechanism.plan(update.size)
        numpy_rng = generator(rng)
        sign = rng.sign()
        top, rest = sets(update.tobytes(), plan.top_size, sign)
        inside = min(plan.law.sample(rng), len(top))
        chosen = [
            side[numpy_rng.integers(len(side), size=count)]
            for side, count in ((top, inside), (rest, plan.dim_out - inside))
        ]
        return Selection(np.sort(np.concatenate(chosen)), sign), None

    return draw


def each_unit_by_itself(events: Iterable[PrivacyEvent]) -> dict[Unit, PrivacySpent]:
    """Add up what each unit was charged, and leave out that a coarser unit holds finer ones."""
    charged = list(events)
    return {
        unit: PrivacySpent(unit, sum(e.epsilon * e.count for e in charged if e.unit is unit))
        for unit in {event.unit for event in charged}
    }


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
