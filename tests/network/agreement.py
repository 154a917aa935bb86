"""Statistics of reports whose inputs are known, each with its exact law.

The client ``known_client`` has the same update and the same predictions in every round, so its
reports are drawings from laws that do not depend on any seed. A :class:`Count` is an integer that
was observed and its law; its p-value is exact, and so is that of the difference of two engines.
Means of protected evaluations are compared by Chernoff's bound, with the exact generating
function of the noise.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.stats import binom, hypergeom

from flower_ldp.mechanisms.integer_noise import DiscreteLaplace
from flower_ldp.mechanisms.laplace import round_to_grid
from flower_ldp.mechanisms.signds_round import decode_report
from flower_ldp.wire.evaluation import EvalProposal, decode_eval_report
from tests.fixtures import parsed
from tests.network.sites import ROOT

sys.path.insert(0, str(ROOT / "tests" / "network" / "app"))
from network_app import known

#: Of one statistic: all of those of two engines and of their differences together fail once in a
#: million times.
FAILURE = 1e-6 / 33

Law = NDArray[np.float64]
Exchanges = list[dict[str, Any]]


@dataclass(frozen=True)
class Count:
    """An integer that was observed, and P(0), P(1), ... of its law."""

    observed: int
    law: Law

    def p_value(self) -> float:
        """Return the probability of an observation as far out or farther, on both sides."""
        at = self.observed
        return min(1.0, 2 * min(float(self.law[: at + 1].sum()), float(self.law[at:].sum())))

    def difference(self, other: Count) -> Count:
        """Return the difference of two independent counts, moved so that it begins at 0."""
        law = np.convolve(self.law, other.law[::-1])
        return Count(self.observed - other.observed + len(other.law) - 1, law)


@dataclass(frozen=True)
class Mean:
    """The sum of independent noise that was observed, how many terms, and their law."""

    observed: int
    terms: int
    noise: DiscreteLaplace

    def p_value(self) -> float:
        """Return a bound on the probability of a sum as far out or farther."""
        rate = float(self.noise.rate)

        def exponent(share: float) -> float:
            s = share * rate
            tilted = math.log(-math.expm1(s - rate)) + math.log(-math.expm1(-s - rate))
            generating = 2 * math.log(-math.expm1(-rate)) - tilted
            return self.terms * generating - s * abs(self.observed)

        best = minimize_scalar(exponent, bounds=(0.0, 1.0 - 1e-9), method="bounded")
        return min(1.0, 2 * math.exp(min(0.0, float(best.fun))))

    def difference(self, other: Mean) -> Mean:
        """Return the difference of two independent sums: the noise is symmetric."""
        return Mean(self.observed - other.observed, self.terms + other.terms, self.noise)


Statistic = Count | Mean


def sizes(exchanges: Exchanges) -> list[tuple[str, list[int]]]:
    """Return what is no matter of chance: the reports of each exchange, by their length."""
    return [
        (one["type"], [len(bytes.fromhex(report)) for report in one["payloads"]])
        for one in exchanges
    ]


def statistics(exchanges: Exchanges) -> dict[str, Statistic]:
    """Return the statistics of a run of ``known_client``."""
    trained = [one for one in exchanges if one["type"] == "train"]
    evaluated = [one for one in exchanges if one["type"] == "evaluate"]
    return {**_training(trained), **_evaluation(evaluated)}


def rejected(found: dict[str, Statistic]) -> dict[str, float]:
    """Return the p-values of the statistics that are not what their law allows."""
    values = {name: one.p_value() for name, one in found.items()}
    return {name: value for name, value in values.items() if value < FAILURE}


def differences(first: dict[str, Statistic], second: dict[str, Statistic]) -> dict[str, Statistic]:
    """Return the differences of two engines' statistics, under the law that there are none."""
    return {name: one.difference(second[name]) for name, one in first.items()}  # type: ignore[arg-type]


def _training(exchanges: Exchanges) -> dict[str, Statistic]:
    update = known.update().ravel()
    signs = truths = reports = low_inside = low_outside = inside_total = 0
    inside = low_in = low_out = np.ones(1)
    for one in exchanges:
        proposal = parsed(one["proposal"])
        plan, magnitude = (
            proposal.mechanism.selection.plan(update.size),
            proposal.mechanism.magnitude,
        )
        assert magnitude is not None
        assert proposal.mechanism.magnitude_threshold is not None
        # The update falls, so S is at one end, and its mean the same at both.
        truth = int(update[: plan.top_size].mean() < proposal.mechanism.magnitude_threshold)
        law = np.array([float(plan.law.probability(v)) for v in range(plan.dim_out + 1)])
        rest = plan.dimension - plan.top_size
        for payload in one["payloads"]:
            indices, sign, bit = decode_report(
                bytes.fromhex(payload),
                dimension=plan.dimension,
                dim_out=plan.dim_out,
                has_bit=True,
            )
            places = indices if sign > 0 else update.size - 1 - indices
            v = int((places < plan.top_size).sum())
            reports, signs, truths = reports + 1, signs + (sign > 0), truths + (bit == truth)
            inside_total += v
            low_inside += int((places < plan.top_size // 2).sum())
            low_outside += int(((places - plan.top_size >= 0) & (places < _middle(plan))).sum())
            inside = np.convolve(inside, law)
            low_in = np.convolve(low_in, _halves(plan.top_size, plan.top_size // 2, v))
            low_out = np.convolve(low_out, _halves(rest, rest // 2, plan.dim_out - v))
        keep = math.exp(magnitude.log_prob(1, True))
    return {
        "positive signs": Count(signs, _binomial(reports, 0.5)),
        "true magnitude bits": Count(truths, _binomial(reports, keep)),
        "top dimensions": Count(inside_total, inside),
        "top dimensions of the first half": Count(low_inside, low_in),
        "other dimensions of the first half": Count(low_outside, low_out),
    }


def _middle(plan: Any) -> int:
    return plan.top_size + (plan.dimension - plan.top_size) // 2


def _evaluation(exchanges: Exchanges) -> dict[str, Statistic]:
    rows, hot, losses = [], [], []
    for one in exchanges:
        proposal = EvalProposal.from_fields(one["proposal"])
        mechanism, loss = proposal.mechanism, proposal.metrics["loss"]
        sent = round_to_grid(known.rows(mechanism.rows).astype(float), mechanism.steps)
        width = loss.upper - loss.lower
        sent_loss = round((known.LOSS - loss.lower) / width * loss.steps)
        for payload in one["payloads"]:
            noisy, metrics = decode_eval_report(bytes.fromhex(payload), proposal)
            rows.append((noisy - sent).ravel())
            hot.append((noisy - sent)[sent > 0])
            losses.append(int(metrics[0]) - sent_loss)
    noise, hottest, lost = np.concatenate(rows), np.concatenate(hot), np.array(losses)
    return {
        "sizes of the rows' noise": _beyond(noise, mechanism.noise, 0.5),
        "signs of the rows' noise": _positive(noise, mechanism.noise),
        "mean of the rows' noise": Mean(int(noise.sum()), noise.size, mechanism.noise),
        "mean where a row is 1": Mean(int(hottest.sum()), hottest.size, mechanism.noise),
        "sizes of the loss's noise": _beyond(lost, loss.noise, 0.97),
        "mean of the loss's noise": Mean(int(lost.sum()), lost.size, loss.noise),
    }


def _beyond(noise: NDArray[np.int64], law: DiscreteLaplace, share: float) -> Count:
    """Count the noise beyond a size that about ``share`` of it is beyond."""
    rate = float(law.rate)
    size = max(0, math.floor(-math.log(share) / rate))
    beyond = 2 * math.exp(-rate * (size + 1)) / (1 + math.exp(-rate))
    return Count(int((np.abs(noise) > size).sum()), _binomial(noise.size, beyond))


def _positive(noise: NDArray[np.int64], law: DiscreteLaplace) -> Count:
    probability = math.exp(-float(law.rate)) / (1 + math.exp(-float(law.rate)))
    return Count(int((noise > 0).sum()), _binomial(noise.size, probability))


def _binomial(n: int, p: float) -> Law:
    return np.asarray(binom.pmf(np.arange(n + 1), n, p))


def _halves(size: int, half: int, drawn: int) -> Law:
    """Return the law of how many of ``drawn`` without replacement are in the first half."""
    return np.asarray(hypergeom.pmf(np.arange(drawn + 1), size, half, drawn))
