"""The Gaussian mechanism's proposal and report: exact both ways, strict when read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from flower_ldp.errors import WireError
from flower_ldp.mechanisms import Gaussian
from flower_ldp.mechanisms.signds_round import SignDSRound
from flower_ldp.wire.proposal import UpdateProposal
from tests.fixtures import parsed

MECHANISM = Gaussian(8.0, 1e-6, 0.5)
FIELDS = UpdateProposal(MECHANISM).to_fields()


def test_proposal_goes_both_ways() -> None:
    assert FIELDS == {
        "version": 1,
        "mechanism": "gaussian",
        "epsilon": 8.0,
        "delta": 1e-6,
        "clip-norm": 0.5,
    }
    assert parsed(FIELDS) == UpdateProposal(MECHANISM)
    assert UpdateProposal(MECHANISM).events() == MECHANISM.events()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"version": 2}, "version"),
        ({"version": True}, "version"),
        ({"version": 1.0}, "version"),
        ({"mechanism": "signds"}, "fields"),
        ({"sensitivity": 1.0}, "fields"),
        ({"epsilon": 8}, "fields"),
        ({"epsilon": True}, "fields"),
        ({"delta": "1e-6"}, "fields"),
        ({"clip-norm": [1.0]}, "fields"),
        ({"epsilon": 0.0}, "domain"),
        ({"epsilon": 200.0}, "domain"),
        ({"epsilon": float("nan")}, "domain"),
        ({"delta": 0.0}, "domain"),
        ({"delta": 1.0}, "domain"),
        ({"clip-norm": float("inf")}, "domain"),
        ({"clip-norm": -1.0}, "domain"),
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


def test_report_goes_both_ways() -> None:
    report = np.array([-30, 0, 7, 30], dtype=np.int8)
    data = MECHANISM.encode(report, 4)
    assert data == b"\x01\xe2\x00\x07\x1e"
    found = MECHANISM.decode(data, 4)
    assert found.dtype == np.int8
    np.testing.assert_array_equal(found, report)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "length"),
        (b"\x01", "length"),
        (b"\x01\x00\x00", "length"),
        (b"\x01\x00\x00\x00\x00", "length"),
        (b"\x02\x00\x00\x00", "version"),
        (b"\x01\x00\x7f\x00", "range"),
        (b"\x01\x81\x00\x00", "range"),
        (b"\x01\x28\xd8\x00", "range"),  # as a vector, though not as entries
        (b"\x01\x00\x00\x80", "range"),
    ],
)
def test_other_bytes_are_refused(data: bytes, reason: str) -> None:
    with pytest.raises(WireError) as caught:
        MECHANISM.decode(data, 3)
    assert caught.value.reason == reason


def test_only_bytes_are_encoded() -> None:
    with pytest.raises(TypeError):
        MECHANISM.encode(np.array([300], dtype=np.int64), 1)  # type: ignore[arg-type]
