"""Codewords on the wire: every number both ways, and strict when read."""

from __future__ import annotations

from typing import Any

import pytest

from flower_ldp.errors import WireError
from flower_ldp.mechanisms import Codeword, CodewordReport
from flower_ldp.mechanisms.signds_round import SignDSRound
from flower_ldp.wire.proposal import UpdateProposal
from tests.fixtures import parsed

MECHANISM = Codeword(8.0, 5, 3, 2**63 - 1)
FIELDS = UpdateProposal(MECHANISM).to_fields()


def test_proposal_goes_both_ways() -> None:
    assert FIELDS == {
        "version": 1,
        "mechanism": "codeword",
        "epsilon": 8.0,
        "favoured": 5,
        "rotations": 3,
        "seed": 2**63 - 1,
    }
    assert parsed(FIELDS) == UpdateProposal(MECHANISM)
    with_bit = UpdateProposal(MECHANISM, 0.5)
    assert parsed(with_bit.to_fields()) == with_bit
    assert [event.epsilon for event in with_bit.events()] == [8.0, 0.5]
    parts = UpdateProposal(Codeword(8.0, 5, 3, 1, blocks=3))
    assert parts.to_fields()["blocks"] == 3
    assert parsed(parts.to_fields()) == parts
    assert with_bit.report_bytes(7) == UpdateProposal(MECHANISM).report_bytes(7) + 1


def test_a_proposal_states_how_many_are_favoured() -> None:
    with pytest.raises(ValueError, match="a proposal states favoured"):
        UpdateProposal(Codeword(8.0)).to_fields()
    fields = UpdateProposal(Codeword(8.0).sized(2_010)).to_fields()
    assert fields["favoured"] == 13


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"version": 2}, "version"),
        ({"version": True}, "version"),
        ({"version": 1.0}, "version"),
        ({"mechanism": "signds"}, "fields"),
        ({"mechanism": 3}, "fields"),
        ({"code": "hadamard"}, "fields"),
        ({"epsilon": 8}, "fields"),
        ({"epsilon": True}, "fields"),
        ({"favoured": 5.0}, "fields"),
        ({"favoured": True}, "fields"),
        ({"rotations": "3"}, "fields"),
        ({"seed": [1]}, "fields"),
        ({"blocks": 2.0}, "fields"),
        ({"blocks": 0}, "domain"),
        ({"blocks": 65_537}, "domain"),
        ({"epsilon": 0.0}, "domain"),
        ({"epsilon": 100.5}, "domain"),
        ({"epsilon": float("nan")}, "domain"),
        ({"favoured": 0}, "domain"),
        ({"favoured": -1}, "domain"),
        ({"favoured": 2**24 + 1}, "domain"),
        ({"rotations": 0}, "domain"),
        ({"rotations": 4097}, "domain"),
        ({"seed": -1}, "domain"),
        ({"seed": 2**63}, "domain"),
    ],
)
def test_other_proposals_are_refused(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(WireError) as caught:
        parsed({**FIELDS, **change})
    assert caught.value.reason == reason


@pytest.mark.parametrize("name", FIELDS)
def test_every_field_is_required(name: str) -> None:
    with pytest.raises(WireError):
        parsed({n: v for n, v in FIELDS.items() if n != name})


def test_one_mechanisms_proposal_is_none_of_anothers() -> None:
    with pytest.raises(WireError, match="not a signds proposal"):
        UpdateProposal.from_fields(FIELDS, {"signds": SignDSRound.of_parameters})


def test_every_number_is_a_report_of_its_own() -> None:
    plan = MECHANISM.plan(7)
    seen = set()
    for number in range(plan.rotations * plan.codewords):
        report = MECHANISM.decode(bytes((1, number)), 7)
        assert MECHANISM.encode(report, 7) == bytes((1, number))
        seen.add(report)
    assert seen == {
        CodewordReport(8, rotation, row, sign)
        for rotation in range(3)
        for row in range(8)
        for sign in (1, -1)
    }
    assert MECHANISM.decode(b"\x01\x23", 7) == CodewordReport(8, 2, 1, -1)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "length"),
        (b"\x01", "length"),
        (b"\x01\x00\x00", "length"),
        (b"\x00\x00", "version"),
        (b"\x02\x00", "version"),
        (b"\x01\x30", "range"),
        (b"\x01\xff", "range"),
    ],
)
def test_other_bytes_are_refused(data: bytes, reason: str) -> None:
    with pytest.raises(WireError) as caught:
        MECHANISM.decode(data, 7)
    assert caught.value.reason == reason


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
    last = CodewordReport(plan.order, rotations - 1, plan.order - 1, -1)
    first = CodewordReport(plan.order, 0, 0, 1)
    for report in (first, last):
        data = proposal.mechanism.encode(report, dimension)
        assert len(data) == length
        assert proposal.mechanism.decode(data, dimension) == report
    number = int.from_bytes(proposal.mechanism.encode(last, dimension)[1:], "big")
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
