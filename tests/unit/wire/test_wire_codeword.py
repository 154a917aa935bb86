"""Codewords and Gaussian reports on the wire: every number both ways; vectors have the others."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from flower_ldp.errors import WireError
from flower_ldp.mechanisms import Codeword, CodewordReport, Gaussian
from flower_ldp.wire.proposal import UpdateProposal
from tests.fixtures import parsed, reason_of

MECHANISM = Codeword(8.0, 5, 3, 2**63 - 1)
GAUSSIAN = Gaussian(8.0, 1e-6, 0.5)
PROPOSALS = [
    UpdateProposal(MECHANISM),
    UpdateProposal(MECHANISM, 0.5),
    UpdateProposal(Codeword(8.0, 5, 3, 1, blocks=3)),
    UpdateProposal(GAUSSIAN),
]


@pytest.mark.parametrize("proposal", PROPOSALS, ids=repr)
def test_proposal_goes_both_ways(proposal: UpdateProposal[Any]) -> None:
    assert parsed(proposal.to_fields()) == proposal
    bit = [] if proposal.health_epsilon is None else [proposal.health_epsilon]
    assert [event.epsilon for event in proposal.events()] == [8.0, *bit]


def test_a_health_bit_is_a_byte() -> None:
    with_bit = UpdateProposal(MECHANISM, 0.5)
    assert with_bit.report_bytes(7) == UpdateProposal(MECHANISM).report_bytes(7) + 1


def test_a_proposal_states_how_many_are_favoured() -> None:
    with pytest.raises(ValueError, match="a proposal states favoured"):
        UpdateProposal(Codeword(8.0)).to_fields()
    fields = UpdateProposal(Codeword(8.0).sized(2_010)).to_fields()
    assert fields["favoured"] == 13


def test_every_number_is_a_report_of_its_own() -> None:
    plan = MECHANISM.plan(7)
    every = [bytes((1, number)) for number in range(plan.rotations * plan.codewords)]
    reports = [MECHANISM.decode(data, 7) for data in every]
    assert [MECHANISM.encode(report, 7) for report in reports] == every
    assert set(reports) == {CodewordReport(8, *at) for at in product(range(3), range(8), (1, -1))}
    assert MECHANISM.decode(b"\x01\x23", 7) == CodewordReport(8, 2, 1, -1)


@pytest.mark.parametrize(
    ("dimension", "rotations", "length"),
    [(2, 1, 2), (2_010, 1, 3), (2_010, 16, 3), (2_010, 64, 4), (61_706, 64, 4), (2**24, 4096, 6)],
)
def test_the_length_is_that_of_the_largest_number(
    dimension: int, rotations: int, length: int
) -> None:
    proposal = UpdateProposal(Codeword(4.0, 2, rotations))
    plan = proposal.mechanism.plan(dimension)
    assert proposal.report_bytes(dimension) == length
    for place in ((0, 0, 1), (rotations - 1, plan.order - 1, -1)):  # the first and the last
        report = CodewordReport(plan.order, *place)
        data = proposal.mechanism.encode(report, dimension)
        assert len(data) == length
        assert proposal.mechanism.decode(data, dimension) == report
    number = int.from_bytes(data[1:], "big")
    assert number == rotations * plan.codewords - 1
    if (number + 1).bit_length() <= 8 * (length - 1):
        with pytest.raises(WireError, match="names none"):
            proposal.mechanism.decode(b"\x01" + (number + 1).to_bytes(length - 1, "big"), dimension)


@pytest.mark.parametrize("report", [(8, 3, 0, 1), (8, 0, 8, 1), (8, 0, 0, 2), (8, -1, 0, 1)])
def test_what_names_no_codeword_is_not_encoded(report: tuple[int, int, int, int]) -> None:
    with pytest.raises(ValueError, match="report must name"):
        MECHANISM.encode(CodewordReport(*report), 7)


def test_more_favoured_than_a_model_has_rows_is_no_report() -> None:
    with pytest.raises(ValueError, match="favoured must be in"):
        UpdateProposal(MECHANISM).report_bytes(4)


def test_a_gaussian_report_goes_both_ways() -> None:
    report = np.array([-30, 0, 7, 30], dtype=np.int8)
    data = GAUSSIAN.encode(report, 4)
    found = GAUSSIAN.decode(data, 4)
    assert found.dtype == np.int8
    np.testing.assert_array_equal(found, report)
    assert reason_of(GAUSSIAN.decode, b"\x01\x81\x00\x00", 3) == "range"
    with pytest.raises(TypeError):
        GAUSSIAN.encode(np.array([300], dtype=np.int64), 1)  # type: ignore[arg-type]
