"""The sum of signs, against the sum written out."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flower_ldp.mechanisms.signds import Selection, sum_of_signs


def report(sign: int, *indices: int) -> Selection:
    return Selection(np.array(indices, dtype=np.int64), sign)


def written_out(reports: list[Selection], dimension: int) -> list[int]:
    total = [0] * dimension
    for one in reports:
        for index in one.indices.tolist():
            total[index] += one.sign
    return total


@st.composite
def report_lists(draw: st.DrawFn) -> tuple[list[Selection], int]:
    dimension = draw(st.integers(1, 12))
    subsets = st.sets(st.integers(0, dimension - 1))
    drawn = draw(st.lists(st.tuples(st.sampled_from([-1, 1]), subsets), max_size=20))
    return [report(sign, *sorted(indices)) for sign, indices in drawn], dimension


@settings(deadline=None, derandomize=True)
@given(report_lists())
def test_sum_is_the_sum(case: tuple[list[Selection], int]) -> None:
    reports, dimension = case
    total = sum_of_signs(reports, dimension)
    assert total.dtype == np.int32
    assert total.shape == (dimension,)
    assert total.tolist() == written_out(reports, dimension)


def test_no_reports_sum_to_zero() -> None:
    np.testing.assert_array_equal(sum_of_signs([], 3), np.zeros(3, dtype=np.int32))


def test_a_dimension_that_many_report_is_counted_each_time() -> None:
    total = sum_of_signs([report(1, 2)] * 300 + [report(-1, 2)] * 45, 4)
    assert total.tolist() == [0, 0, 255, 0]


def test_a_sum_is_the_one_written_out() -> None:
    rng = np.random.default_rng(1)
    reports = [
        report(int(rng.choice([-1, 1])), *sorted(rng.permutation(10)[: i % 5].tolist()))
        for i in range(50)
    ]
    assert sum_of_signs(iter(reports), 10).tolist() == written_out(reports, 10)


def test_reports_are_left_as_they_were() -> None:
    one = report(-1, 0, 3)
    sum_of_signs([one, one], 4)
    assert one.indices.tolist() == [0, 3]
    assert one.sign == -1


def test_an_index_outside_is_an_error_and_not_a_wrong_sum() -> None:
    with pytest.raises(IndexError):
        sum_of_signs([report(1, 5)], 5)
