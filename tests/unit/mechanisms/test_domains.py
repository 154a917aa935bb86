"""What the mechanisms refuse: parameters beyond the ends of their intervals, and no reports."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from flower_ldp.mechanisms import (
    BinaryResponse,
    BottomModelClaim,
    BoundedMean,
    CodebookEmbedding,
    CodebookResponse,
    Codeword,
    CodewordReport,
    ExampleMean,
    Gaussian,
    GaussianMeans,
    JointCounts,
    KaryResponse,
    Laplace,
    LaplacePlan,
    MagRR,
    RandomSource,
    RROnBins,
    RRWithPrior,
    Selection,
    SignDS,
    SubsetSelection,
    Subspace,
    UnaryEncoding,
    best_accuracy,
    project_to_simplex,
)
from flower_ldp.mechanisms.codebook import maximum_likelihood
from flower_ldp.mechanisms.gaussian import gaussian_delta, gaussian_epsilon, largest_shift
from flower_ldp.mechanisms.hadamard import MAX_ORDER, order_for
from flower_ldp.mechanisms.integer_noise import DiscreteLaplace
from flower_ldp.mechanisms.laplace import check_simplex_rows
from flower_ldp.mechanisms.random import ExactLookup, exp_lower
from flower_ldp.privacy import as_fraction

CODES = np.array([[0.9, 0.1], [0.5, 0.5], [0.1, 0.9]])
BINARY, KARY, SUBSET = BinaryResponse(1.0), KaryResponse(1.0, 3), SubsetSelection(1.0, 3, 2)
PRIOR, UNARY, CODE = RRWithPrior(1.0, 3), UnaryEncoding(1.0, 3), CodebookEmbedding(1.0, 3)
CODEBOOK, CODEWORD, SIGNDS = CodebookResponse(CODES, 1.0), Codeword(1.0), SignDS(1.0, 0.2)
GAUSSIAN, LAPLACE, MAGRR, SUBSPACE = Gaussian(1.0, 1e-5), Laplace(1.0, 3), MagRR(1.0), Subspace(4)
MEAN, COUNTS, PLAN = ExampleMean(1.0, 3), JointCounts(1.0, (2,)), LaplacePlan(1.0)
RNG = RandomSource.seeded(0)
UPDATE, ONES, OF_THREE = np.arange(5.0), np.ones(3), SignDS(1.0, 0.2, dim_out=3)
NO_BOUNDS = [(1.0, 1.0), (2.0, 1.0), (-1.7e308, 1.7e308), (0.0, math.inf), (math.nan, 1.0)]
NO_WEIGHTS = [[1 << 256, 0], [1 << 255], [-1, (1 << 256) + 1]]
NO_PRIORS = [[0.5], [1, 1, -1e-9], [1, np.nan, 1], [1, np.inf, 1], ["a"] * 3, None]
NO_ROWS = [np.array(row) for row in ([[0.5, 0.6]], [[1.5, -0.5]], [[np.nan, 1.0]])]
WORDS = [(4, 64, 0, 1), (4, -1, 0, 1), (4, 0, 4, 1), (4, 0, 0, 0), (8, 0, 0, 1)]
NO_CODEWORDS = [CodewordReport(*parts) for parts in WORDS]
SETS = [([1, 2], 1), ([1, 1, 2], 1), ([1, 2, 5], 1), ([-1, 1, 2], 1), ([1, 2, 3], 0)]
NO_SETS = [Selection(np.array(indices), sign) for indices, sign in SETS]


def number(text: str) -> float:
    """Return an end of an interval as it is written: 2^31 is a power."""
    base, _, power = text.partition("^")
    return int(base) ** int(power) if power else float(text)


def outside(interval: str, kind: type) -> list[float]:
    """Return the values nearest to an interval that are not in it; none beyond infinity."""
    low, high = map(number, interval[1:-1].split(", "))
    if kind is int:
        ends = [low - (interval[0] == "["), high + (interval[-1] == "]")]
        return [int(end) for end in ends if end < math.inf]
    below = math.nextafter(low, -math.inf) if interval[0] == "[" else low
    return [below, math.nextafter(high, math.inf) if interval[-1] == "]" else high]


@pytest.mark.parametrize(
    ("mechanism", "intervals"),
    [
        (BINARY, {"epsilon": "(0, 100]"}),
        (KARY, {"epsilon": "(0, 100]", "categories": "[2, 2^31]"}),
        (SUBSET, {"epsilon": "(0, 100]", "categories": "[2, 62]", "size": "[0, 3)"}),
        (PRIOR, {"epsilon": "(0, 100]", "categories": "[2, 2^20]"}),
        (RROnBins(1.0, (0, 1), (1, 1)), {"epsilon": "(0, 100]"}),
        (UNARY, {"epsilon": "[0, 100]", "bits": "[1, 1048576]"}),
        (CODE, {"epsilon": "(0, 100]", "codes": "[2, 65536]"}),
        (CODEBOOK, {"epsilon": "(0, 100]", "rows": "[1, inf)"}),
        (CODEWORD, {"epsilon": "[1e-12, 100]", "favoured": "[0, 2^24]", "seed": "[0, 2^63)"}),
        (CODEWORD, {"rotations": "[1, 4096]", "blocks": "[1, 65536]"}),
        (SIGNDS, {"epsilon": "(0, 100]", "k": "(0, 0.25]"}),
        (SIGNDS, {"threshold_ratio": "[0.5, 1]", "dim_out": "[0, 4096]"}),
        (GAUSSIAN, {"epsilon": "[0.001, 100]", "delta": "[1e-18, 0.5]"}),
        (GAUSSIAN, {"clip_norm": "[1e-30, 1e+30]"}),
        (LAPLACE, {"epsilon": "[1e-6, 1e6]", "classes": "[2, 2^20]", "rows": "[1, inf)"}),
        (Laplace(1.0, 3, 1, 1), {"grid_bits": "[0, 40]"}),
        (MAGRR, {"epsilon": "(0, 100]", "initial_estimate": "[1e-30, 1e+30]"}),
        (MAGRR, {"significance": "[0, inf)", "regrow_after": "[0, inf)"}),
        (SUBSPACE, {"dimension": "[1, 4194304]", "seed": "[0, 2^63)"}),
        (BoundedMean(1.0, 0.0, 1.0, 1), {"epsilon": "[1e-6, 1e6]", "grid_bits": "[0, 40]"}),
        (MEAN, {"epsilon": "[1e-6, 1e6]", "examples": "[1, 10^12]", "steps": "[1, 2^20]"}),
        (GaussianMeans(1.0, 1e-5, 3), {"epsilon": "[0.001, 100]", "delta": "[1e-18, 0.5]"}),
        (GaussianMeans(1.0, 1e-18, 3), {"examples": "[1, 10^12]"}),
        (COUNTS, {"epsilon": "[1e-6, 1000]", "delta": "[0, 0.5]", "steps": "[1, 2^16]"}),
        (PLAN, {"epsilon": "(0, inf)"}),
    ],
)
def test_parameters_end_where_their_intervals_do(mechanism: Any, intervals: dict[str, str]) -> None:
    for name, interval in intervals.items():
        for value in outside(interval, type(getattr(mechanism, name))):
            text = f"{re.escape(interval)}, got {re.escape(repr(value))}"
            with pytest.raises(ValueError, match=f"^{name} must be (an integer )?in {text}$"):
                replace(mechanism, **{name: value})


@pytest.mark.parametrize(
    ("call", "values", "text"),
    [
        (BinaryResponse, (math.nan,), "epsilon must be in"),
        *((SubsetSelection, (1.0, 9, bad), "size must be an int") for bad in (2.0, True, None)),
        (CodebookResponse, (CODES[:1], 1.0), "at least 2 rows"),
        (CodebookResponse, (CODES[[0, 0]], 1.0), "all different"),
        (CodebookResponse, (CODES * 2, 1.0), "add up"),
        (Laplace, (90.0, 3, 1, 0), "grid_bits must keep"),
        (Laplace, (1e-6, 3, 1, 40), "grid_bits must keep"),
        (BoundedMean, (90.0, 0.0, 1.0, 0), "grid_bits must keep"),
        *((BoundedMean, (1.0, *bad), "lower must be below upper") for bad in NO_BOUNDS),
        *((ExampleMean, (1.0, 3, *bad), "lower must be below upper") for bad in NO_BOUNDS),
        (BottomModelClaim, ("private",), "kind must be one of"),
        (BottomModelClaim, ("public", 1.0), "for kind 'dp' only"),
        (BottomModelClaim, ("conditional", 0.0, 1e-5), "for kind 'dp' only"),
        *((BottomModelClaim, ("dp", bad, 1e-5), "epsilon must be in") for bad in (0.0, math.inf)),
        *((BottomModelClaim, ("dp", 1.0, bad), "delta must be in") for bad in (0.0, 1.0)),
        (Codeword(8.0, blocks=5).plan, (4,), "blocks must be in"),
        (Codeword(8.0, blocks=33).plan, (331,), "blocks of 11 entries are 31 for 331, got 33"),
        (Codeword(8.0, blocks=3).plan, (2**24,), "more than 16777216 rows"),
        *((CODEWORD.plan, (bad,), "dimension must be") for bad in (0, 1, 2**24 + 1)),
        (Codeword(1.0, favoured=5).plan, (4,), "favoured must be in"),
        *((SIGNDS.plan, (bad,), "dimension must be in") for bad in (0, 2**32)),
        (SignDS(1.0, 0.2, dim_out=61).plan, (60,), r"dim_out must be in \[0, 60\], got 61"),
        *((order_for, (bad,), "dimension must be in") for bad in (0, -1, MAX_ORDER + 1)),
        (SUBSPACE.check, (2**32,), "needs a model of 4 to"),
        *((DiscreteLaplace, (Fraction(bad),), "keep the rate") for bad in (0, 33, 2**-49, -1)),
        *((ExactLookup, (bad,), "weights must be positive") for bad in NO_WEIGHTS),
        *((exp_lower, (bad,), r"epsilon must be in \[0, inf\), got") for bad in (-1e-9, math.nan)),
        *((as_fraction, (bad,), "Invalid literal") for bad in (math.nan, math.inf)),
        *((gaussian_delta, (bad, 1.0), "epsilon must be in") for bad in (0.0, 101.0, math.nan)),
        *((gaussian_delta, (1.0, bad), "shift must be in") for bad in (0.0, math.inf)),
        *((largest_shift, (1.0, bad), "delta must be in") for bad in (0.0, -1e-5, 0.6, math.nan)),
        *((gaussian_epsilon, (bad, 0.1), "shift must be in") for bad in (0.0, math.inf)),
        *((gaussian_epsilon, (1.0, bad), "delta must be in") for bad in (0.0, 1.0)),
        *((LaplacePlan.from_noise, (bad, 0.5), "below must be") for bad in (0.0, math.inf)),
        (LaplacePlan.from_noise, (1.0, 1.0), "probability must be"),
        *((PLAN.noise_below, (bad,), "probability must be") for bad in (0.0, 1.0, math.nan)),
        *((best_accuracy, (bad, 10), "epsilon must be in") for bad in (-1.0, math.nan)),
        (best_accuracy, (1.0, 0), "classes must be an integer in"),
        *((BINARY.log_prob, (bad, 0), "report must be 0 or 1") for bad in (2, -1, 0.5)),
        *((BINARY.estimate, bad, "ones must be in") for bad in ((-1, 10), (11, 10), (1, 0))),
        *((MAGRR.majority, bad, "ones must be in") for bad in ((-1, 10), (11, 10), (0, -1))),
        *((KARY.estimate, (bad,), "counts must have shape") for bad in ([1, 2], [[1, 2, 3]])),
        *((KARY.estimate, (bad,), "counts must be integers") for bad in ([1, 2, -1], [1.0, 2, 3])),
        *((SUBSET.estimate, (bad, 1), "counts must") for bad in ([1, 1], [1, 1, -1], [1.0, 1, 0])),
        *((SUBSET.estimate, bad, "counts must add") for bad in (([2, 0, 0], 1), ([1] * 3, 2))),
        *((SUBSET.log_prob, (bad, 0), "report must be") for bad in (1, 7, 9, -1, 2.0, None, "x")),
        *((SUBSET.likelihood, ([3, bad],), "reports must be") for bad in (1, 7, 9, -1, 2.0, "x")),
        *((CODEBOOK.estimate, ([bad],), "reports must be") for bad in (3, -1, 0.5)),
        *((maximum_likelihood, (bad, 1.0), "counts") for bad in ([0, 0], [1], [-1, 2], [[1, 2]])),
        (maximum_likelihood, ([0.5, 1.0], 1.0), "counts"),
        (CODE.log_prob, (3, ONES), "report must be integers"),
        *((CodebookEmbedding(bad, 9).estimate, ([1],), "say nothing") for bad in (5e-324, 1e-308)),
        *((UNARY.estimate, (bad,), "reports must be zeros") for bad in ([0, 1, 2], [0.0, 1, 1])),
        *((UNARY.estimate, (bad,), "reports must have") for bad in ([0, 1], [[[0, 1, 1]]])),
        (UNARY.log_prob, ([0, 1], ONES), "reports must have"),
        (UnaryEncoding(0.0, 3).estimate, ([0, 1, 1],), "say nothing about the bits"),
        (UnaryEncoding(None, 3).events, (), "no privacy guarantee"),
        (CODEWORD.estimate, ([], 4), "at least one report"),
        *((CODEWORD.log_prob, (bad, np.ones(4)), "must name one of") for bad in NO_CODEWORDS),
        *((CODEWORD.estimate, ([bad], 4), "must name one of") for bad in NO_CODEWORDS),
        (SIGNDS.estimate, ([], 5), "at least one"),
        *((OF_THREE.log_prob, (bad, UPDATE), "3 distinct dimensions") for bad in NO_SETS),
        (GAUSSIAN.estimate, (np.zeros(3, np.int64), 0), r"reports must be in \[1, inf\)"),
        (GAUSSIAN.log_prob, (np.zeros(2, np.int8), ONES), "report must have shape"),
        (SUBSPACE.project, (np.zeros(3),), "needs a model of 4 to"),
        (SUBSPACE.project, (np.zeros((2, 4)),), "update must be a vector"),
        (SUBSPACE.lift, (np.zeros(4), 3), "needs a model of 4 to"),
        (SUBSPACE.lift, (np.zeros(5), 10), r"step must have shape \(4,\)"),
        *((project_to_simplex, (bad,), "rows must be") for bad in ([np.nan, 1.0], [np.inf, 0.0])),
        *((project_to_simplex, (bad,), "rows must have") for bad in (1.0, [], np.ones((2, 2, 2)))),
        *((check_simplex_rows, ("value", bad, 2), "not negative, and add up") for bad in NO_ROWS),
        *((check_simplex_rows, ("value", bad, 2), "must have shape") for bad in (ONES, CODES.T)),
        (check_simplex_rows, ("value", np.array([[1, 0]]), 2), "floats"),
        # What is public may be wrong where a value cannot be.
        (SIGNDS.randomize, (UPDATE, RNG, 0), "dimension must"),
        (GAUSSIAN.randomize, (UPDATE, RNG, 0), "dimension must"),
        (UNARY.randomize, (ONES, RNG, (20, 4)), "shape must"),
        (CODE.randomize, (ONES, RNG, (2, 20, 3)), "shape must"),
        *((PRIOR.randomize, (1, RNG, bad), "prior must") for bad in (*NO_PRIORS, [ONES])),
        *((PRIOR.randomize_array, ([0, 1], RNG, bad), "prior must") for bad in NO_PRIORS),
        *((PRIOR.log_prob, (0, 0, bad), "prior must") for bad in (*NO_PRIORS, [ONES])),
        *((RNG.below, (bad,), f"n must be positive, got {bad}") for bad in (0, -1, -(2**70))),
        *((RNG.integers, (bad, 1), r"high must be in \[1, 2\^63\]") for bad in (0, -1, 2**63 + 1)),
        *((RNG.integers, (high, -1), "size must be in") for high in (1, 5, 2**63)),
        (RNG.words, (-1,), "n must be at least 0"),
        *((RNG.random_bytes, (bad,), f"at least 0, got {bad}") for bad in (-1, -8, -100)),
        *((RNG.bits, (bad,), f"at least 0, got {bad}") for bad in (-1, -7, -8)),
    ],
)
def test_what_is_no_setting_and_no_report_is_refused(
    call: Callable[..., object], values: tuple[object, ...], text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        call(*values)


def test_what_is_refused_draws_nothing() -> None:
    rng = RandomSource.seeded(0)
    with pytest.raises(ValueError, match="prior must"):
        PRIOR.randomize_array([0, 1], rng, [1.0])
    assert rng.random_bytes(8) == RandomSource.seeded(0).random_bytes(8)
