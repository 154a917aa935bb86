"""Unary encoding of embeddings: its law, its price, its estimator, and what it refuses."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from flower_ldp.mechanisms import RandomSource, UnaryEncoding
from flower_ldp.privacy import Unit

RECORDS = [np.array(bits) * 2.5 - 1 for bits in itertools.product((0, 1), repeat=4)]
REPORTS = [np.array(bits) for bits in itertools.product((0, 1), repeat=4)]
ONE_HOT = list(np.eye(4))


def ratio(mechanism: UnaryEncoding, values: list[np.ndarray]) -> float:
    table = np.array([[mechanism.log_prob(r, v) for r in REPORTS] for v in values])
    np.testing.assert_allclose(np.exp(table).sum(axis=1), 1.0, rtol=1e-12)
    return float((table.max(axis=0) - table.min(axis=0)).max())


@pytest.mark.parametrize("epsilon", [1e-3, 1.0, 5.0, 60.0])
def test_arbitrary_records_cost_half_of_epsilon_a_bit_and_one_hot_records_epsilon(
    epsilon: float,
) -> None:
    free, one_hot = UnaryEncoding(epsilon, 4), UnaryEncoding(epsilon, 4, one_hot=True)
    assert ratio(free, RECORDS) == pytest.approx(4 * epsilon / 2, rel=1e-12)
    assert ratio(one_hot, ONE_HOT) == pytest.approx(epsilon, rel=1e-12)
    assert free.record_epsilon == 2 * epsilon
    assert one_hot.record_epsilon == epsilon
    for mechanism in (free, one_hot):
        (event,) = mechanism.events()
        assert (event.epsilon, event.delta, event.unit, event.count) == (
            mechanism.record_epsilon,
            0.0,
            Unit.EXAMPLE,
            1,
        )


def test_epsilon_zero_is_full_randomness_and_costs_nothing() -> None:
    mechanism = UnaryEncoding(0.0, 4)
    assert ratio(mechanism, RECORDS) == 0.0
    assert mechanism.events() == ()
    ones = mechanism.randomize(np.ones((5_000, 4)), RandomSource.seeded(1)).mean(axis=0)
    # five standard deviations for each of four means
    assert np.abs(ones - 0.5).max() < 5 * 0.5 / math.sqrt(5_000)
    with pytest.raises(ValueError, match="say nothing"):
        mechanism.estimate(np.ones(4, dtype=np.uint8))


def test_without_epsilon_there_is_quantization_alone_and_no_claim() -> None:
    mechanism = UnaryEncoding(None, 4)
    value = np.array([[0.1, 0.0, -0.0, -3.0], [np.inf, -np.inf, 1e-300, 5.0]])
    found = mechanism.randomize(value, RandomSource.seeded(1))
    assert found.dtype == np.uint8
    np.testing.assert_array_equal(found, [[1, 0, 0, 0], [1, 0, 1, 1]])
    assert mechanism.record_epsilon == math.inf
    assert mechanism.log_prob(found, value) == 0.0
    assert mechanism.log_prob(1 - found, value) == -math.inf
    np.testing.assert_array_equal(mechanism.estimate(found), found)
    with pytest.raises(ValueError, match="no privacy guarantee"):
        mechanism.events()


@pytest.mark.parametrize("epsilon", [0.5, 5.0, 40.0])
def test_the_estimate_is_unbiased(epsilon: float) -> None:
    mechanism = UnaryEncoding(epsilon, 4)
    for value in RECORDS:
        mean = sum(
            math.exp(mechanism.log_prob(report, value)) * mechanism.estimate(report)
            for report in REPORTS
        )
        np.testing.assert_allclose(mean, value > 0, atol=1e-12)


@pytest.mark.parametrize("value", [np.ones(3), np.ones((2, 3))])
def test_the_input_is_never_changed_and_the_shape_is_kept(value: np.ndarray) -> None:
    before = value.copy()
    value.flags.writeable = False
    report = UnaryEncoding(1.0, 3).randomize(value, RandomSource.seeded(0))
    assert report.shape == value.shape
    assert report.flags.writeable
    np.testing.assert_array_equal(value, before)


def test_no_records_give_no_reports() -> None:
    assert UnaryEncoding(1.0, 3).randomize(np.ones((0, 3)), RandomSource.seeded(0)).shape == (0, 3)
    assert UnaryEncoding(0.0, 3).randomize(np.ones((0, 3)), RandomSource.seeded(0)).shape == (0, 3)


@pytest.mark.parametrize("epsilon", [-1e-9, -1.0, 100.1, math.nan, math.inf])
def test_an_epsilon_outside_its_interval_is_an_error(epsilon: float) -> None:
    with pytest.raises(ValueError, match="epsilon must be in"):
        UnaryEncoding(epsilon, 4)


@pytest.mark.parametrize("bits", [0, -1, 2**20 + 1])
def test_a_wrong_number_of_bits_is_an_error(bits: int) -> None:
    with pytest.raises(ValueError, match="bits must be an integer in"):
        UnaryEncoding(1.0, bits)


@pytest.mark.parametrize("bits", [True, 4.0])
def test_bits_must_be_an_integer(bits: int) -> None:
    with pytest.raises(ValueError, match="bits must be an integer"):
        UnaryEncoding(1.0, bits)


@pytest.mark.parametrize("report", [[0, 1, 2], [0.0, 1.0, 1.0], [0, 1], [[[0, 1, 1]]]])
def test_what_is_no_report_is_refused(report: list[float]) -> None:
    mechanism = UnaryEncoding(1.0, 3)
    with pytest.raises(ValueError, match="reports must"):
        mechanism.estimate(report)
    with pytest.raises(ValueError, match="reports must"):
        mechanism.log_prob(report, np.ones(3))


def test_a_value_of_another_number_of_records_has_the_neutral_law() -> None:
    mechanism, report = UnaryEncoding(1.0, 3), np.ones((2, 3), dtype=int)
    assert mechanism.log_prob(report, np.ones((1, 3))) == pytest.approx(-6 * math.log(2))
