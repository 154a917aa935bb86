"""SignDS is epsilon-LDP and tight: every output enumerated, over inputs full of ties."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flower_ldp.mechanisms import RandomSource, Selection, SignDS, SmallTopSetWarning
from flower_ldp.mechanisms.signds import sum_of_signs
from tests.unit.mechanisms.topk_masses import masses

pytestmark = pytest.mark.filterwarnings("ignore::flower_ldp.mechanisms.SmallTopSetWarning")

D = 8
TINY = float(np.finfo(np.float32).smallest_subnormal)
INPUTS = [
    np.array(values, dtype=np.float32)
    for values in (
        [0.0] * D,
        [0.0, -0.0] * (D // 2),
        [0.0] * (D // 2) + [1.0, -2.0, 3.0, -4.0],
        [1.0] * D,
        [-1.0] * D,
        [TINY, -TINY, 0.0, TINY, 2 * TINY, -0.0, -2 * TINY, 0.0],
        [1.0, 1.0, 1.0, 0.0, 0.0, -1.0, -1.0, -1.0],
        list(range(D)),
        list(range(D, 0, -1)),
        [5.0, 5.0, 5.0, 5.0, -5.0, -5.0, -5.0, 3e38],
        [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0],
        [0.3, -0.7, 0.0, 0.0, 0.2, 0.2, -0.2, 0.9],
    )
]


def outputs(h: int) -> list[Selection]:
    subsets = itertools.product((-1, 1), itertools.combinations(range(D), h))
    return [report(sign, *subset) for sign, subset in subsets]


@pytest.mark.parametrize("k", [0.13, 0.25])
@pytest.mark.parametrize("h", [1, 3, 7])
@pytest.mark.parametrize("epsilon", [0.1, 4.0, 30.0])
def test_largest_log_ratio_is_epsilon(k: float, h: int, epsilon: float) -> None:
    mechanism = SignDS(epsilon, k, dim_out=h)
    table = np.array([[mechanism.log_prob(out, u) for out in outputs(h)] for u in INPUTS])
    np.testing.assert_allclose(np.exp(table).sum(axis=1), 1.0, rtol=1e-12)
    assert mechanism.plan(D).threshold <= min(h, mechanism.plan(D).top_size)
    assert np.ptp(table, axis=0).max() == pytest.approx(epsilon, abs=1e-12)


def test_weights_never_exceed_epsilon_in_exact_arithmetic() -> None:
    """Where a double cannot tell: the ratio of integer weights lies below e^epsilon."""
    import mpmath

    for epsilon in (1e-3, 0.1, 1.0, 8.0, 100.0):
        law = SignDS(epsilon, 0.25, dim_out=3).plan(400).law
        with mpmath.workdps(120):
            ratio = mpmath.mpf(law.high) / law.low
            bound = mpmath.exp(mpmath.mpf(repr(epsilon)))
            assert bound * (1 - mpmath.mpf(2) ** -126) <= ratio <= bound


def test_log_prob_does_not_ask_the_sampler(monkeypatch: pytest.MonkeyPatch) -> None:
    """At production size, where both once asked the same code and agreed on the wrong set."""

    def broken(*_: object) -> None:
        raise AssertionError("asked the sampler's code")

    for case in masses(8, 5):
        mechanism = SignDS(8.0, 0.0626 if case.asked[0][1] > 0 else 0.2)
        plan = mechanism.plan(len(case.values))
        report = mechanism.randomize(case.values, RandomSource.seeded(1))
        best = case.best(plan.top_size, report.sign)
        expected = plan.law.subset_probability(int(best[report.indices].sum()))
        with monkeypatch.context() as patch:
            for name in ("signds.top_set", "topk._tie_cut", "topk.TopSet.contains"):
                patch.setattr(f"flower_ldp.mechanisms.{name}", broken)
            found = mechanism.log_prob(report, case.values)
            with pytest.raises(AssertionError, match="sampler's"):
                mechanism.randomize(case.values, RandomSource.seeded(1))
        assert found == pytest.approx(math.log(expected / 2), rel=1e-12)


def test_estimate_is_unbiased_over_all_outputs() -> None:
    mechanism, u = SignDS(2.0, 0.25, dim_out=3), INPUTS[7]
    chances = np.exp([mechanism.log_prob(out, u) for out in outputs(3)])
    mean = chances @ np.array([mechanism.estimate([out], D) for out in outputs(3)])
    direction = np.zeros(D)
    direction[-2:], direction[:2] = 1.0, -1.0
    np.testing.assert_allclose(mean, direction, atol=1e-12)


def test_moments_of_a_dimension_are_those_of_the_docs() -> None:
    """Mean and variance of a report's sign at a dimension, in one top set and in none."""
    mechanism, u = SignDS(2.0, 0.25, dim_out=3), INPUTS[7]
    plan = mechanism.plan(D)
    p_in = plan.expected_inside / plan.top_size
    p_out = (plan.dim_out - plan.expected_inside) / (D - plan.top_size)
    for dimension, expected in (
        (D - 1, (plan.contrast / 2, (p_in + p_out) / 2 - plan.contrast**2 / 4)),
        (D // 2, (0.0, p_out)),
    ):
        told = [out for out in outputs(3) if dimension in out.indices]
        chances = np.exp([mechanism.log_prob(out, u) for out in told])
        mean = chances @ np.array([out.sign for out in told])
        variance = chances.sum() - mean**2
        assert (mean, variance) == pytest.approx(expected, abs=1e-12)


@pytest.mark.filterwarnings("default::flower_ldp.mechanisms.SmallTopSetWarning")
def test_small_top_set_warns() -> None:
    with pytest.warns(SmallTopSetWarning, match="K = 49"):
        SignDS(1.0, 0.01).plan(4_999)


# The sum of signs, against the sum written out.


def report(sign: int, *indices: int) -> Selection:
    return Selection(np.array(indices, dtype=np.int64), sign)


@settings(deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.sampled_from([-1, 1]), st.sets(st.integers(0, 11))), max_size=20))
def test_sum_is_the_sum(drawn: list[tuple[int, set[int]]]) -> None:
    expected = np.zeros(12, dtype=np.int32)
    for sign, indices in drawn:
        expected[list(indices)] += sign
    total = sum_of_signs([report(sign, *sorted(indices)) for sign, indices in drawn], 12)
    assert total.dtype == np.int32
    assert total.tolist() == expected.tolist()


def test_a_sum_counts_each_time_and_leaves_reports_as_they_were() -> None:
    one = report(-1, 2)
    assert sum_of_signs(iter([report(1, 2)] * 300 + [one] * 45), 4).tolist() == [0, 0, 255, 0]
    assert (one.indices.tolist(), one.sign) == ([2], -1)
    with pytest.raises(IndexError):
        sum_of_signs([report(1, 5)], 5)
