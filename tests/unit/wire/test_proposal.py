"""Proposals: the same on both ends, or refused."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flower_ldp.errors import LdpError, WireError
from flower_ldp.mechanisms import MagRR, SignDS
from flower_ldp.mechanisms.signds_round import SignDSRound
from flower_ldp.privacy import PrivacyEvent, Unit
from flower_ldp.wire.proposal import UpdateProposal
from tests.fixtures import parsed, signds_proposal

PLAIN = signds_proposal(SignDS(epsilon=7.0, k=0.2))
WITH_BIT = signds_proposal(SignDS(7.0, 0.2, 0.7, 12), 1.0, 0.03125)


EPSILONS = st.floats(0, 100, exclude_min=True)


@st.composite
def proposals(draw: st.DrawFn) -> UpdateProposal[SignDSRound]:
    """Draw any proposal of the whole domain."""
    selection = SignDS(
        draw(EPSILONS),
        draw(st.floats(0, 0.25, exclude_min=True)),
        draw(st.floats(0.5, 1)),
        draw(st.integers(0, 4096)),
    )
    if draw(st.booleans()):
        return signds_proposal(selection)
    threshold = draw(st.floats(0, exclude_min=True, allow_infinity=False))
    return signds_proposal(selection, draw(EPSILONS), threshold)


@settings(deadline=None, derandomize=True)
@given(proposals())
def test_round_trip_is_exact(proposal: UpdateProposal[SignDSRound]) -> None:
    fields = proposal.to_fields()
    assert parsed(fields) == proposal
    assert {type(value) for value in fields.values()} <= {int, float, str}


def test_fields_are_as_documented() -> None:
    assert PLAIN.to_fields() == {
        "version": 1,
        "mechanism": "signds",
        "epsilon": 7.0,
        "k": 0.2,
        "threshold-ratio": 0.6,
        "dim-out": 0,
    }
    assert WITH_BIT.to_fields() == {
        "version": 1,
        "mechanism": "signds",
        "epsilon": 7.0,
        "k": 0.2,
        "threshold-ratio": 0.7,
        "dim-out": 12,
        "magnitude-epsilon": 1.0,
        "magnitude-threshold": 0.03125,
    }


def test_integers_given_in_code_travel_as_floats() -> None:
    proposal = signds_proposal(SignDS(epsilon=100, k=0.2, threshold_ratio=1), 1, 2)
    fields = proposal.to_fields()
    assert [type(fields[name]) for name in ("epsilon", "threshold-ratio")] == [float, float]
    assert parsed(fields) == proposal


def test_cost_is_the_selection_and_the_bit_if_asked_for() -> None:
    selection = PrivacyEvent("signds", 7.0, unit=Unit.CLIENT)
    assert PLAIN.events() == (selection,)
    assert WITH_BIT.events() == (selection, PrivacyEvent("magrr", 1.0, unit=Unit.CLIENT))


def test_magnitude_is_the_bits_mechanism() -> None:
    assert PLAIN.mechanism.magnitude is None
    assert WITH_BIT.mechanism.magnitude == MagRR(1.0)


@pytest.mark.parametrize(("epsilon", "threshold"), [(1.0, None), (None, 1.0)])
def test_epsilon_and_threshold_go_together(epsilon: float | None, threshold: float | None) -> None:
    with pytest.raises(ValueError, match="go together"):
        signds_proposal(SignDS(7.0, 0.2), epsilon, threshold)


@pytest.mark.parametrize("threshold", [0.0, -1.0, math.inf, math.nan])
def test_threshold_must_be_finite_and_positive(threshold: float) -> None:
    with pytest.raises(ValueError, match=r"magnitude_threshold must be in \(0, inf\), got"):
        signds_proposal(SignDS(7.0, 0.2), 1.0, threshold)


@pytest.mark.parametrize("epsilon", [0.0, 101.0, math.nan])
def test_magnitude_epsilon_has_the_mechanisms_domain(epsilon: float) -> None:
    with pytest.raises(ValueError, match=r"epsilon must be in \(0, 100\], got"):
        signds_proposal(SignDS(7.0, 0.2), epsilon, 1.0)


BAD_FIELDS: list[tuple[dict[str, object], str]] = [
    ({"version": 2}, "version"),
    ({"version": "1"}, "version"),
    ({"version": None}, "version"),
    ({"version": True}, "version"),
    ({"version": 1.0}, "version"),
    ({"mechanism": "laplace"}, "fields"),
    ({"mechanism": 1}, "fields"),
    ({"extra": 1.0}, "fields"),
    ({"seed": 1}, "fields"),
    ({"epsilon": 7}, "fields"),
    ({"epsilon": "7.0"}, "fields"),
    ({"epsilon": True}, "fields"),
    ({"epsilon": [7.0]}, "fields"),
    ({"k": 0}, "fields"),
    ({"threshold-ratio": b"1"}, "fields"),
    ({"dim-out": 12.0}, "fields"),
    ({"dim-out": True}, "fields"),
    ({"magnitude-epsilon": 1}, "fields"),
    ({"magnitude-threshold": "x"}, "fields"),
    ({"epsilon": 0.0}, "domain"),
    ({"epsilon": 100.5}, "domain"),
    ({"epsilon": math.nan}, "domain"),
    ({"epsilon": math.inf}, "domain"),
    ({"k": 0.0}, "domain"),
    ({"k": 0.3}, "domain"),
    ({"threshold-ratio": 0.4}, "domain"),
    ({"threshold-ratio": math.nan}, "domain"),
    ({"dim-out": -1}, "domain"),
    ({"dim-out": 4097}, "domain"),
    ({"dim-out": 2**70}, "domain"),
    ({"magnitude-epsilon": 0.0}, "domain"),
    ({"magnitude-epsilon": 101.0}, "domain"),
    ({"magnitude-threshold": 0.0}, "domain"),
    ({"magnitude-threshold": -1.0}, "domain"),
    ({"magnitude-threshold": math.nan}, "domain"),
    ({"magnitude-threshold": math.inf}, "domain"),
]


@pytest.mark.parametrize(("changed", "reason"), BAD_FIELDS)
def test_changed_fields_are_refused(changed: dict[str, object], reason: str) -> None:
    with pytest.raises(WireError) as caught:
        parsed(WITH_BIT.to_fields() | changed)
    assert caught.value.reason == reason
    assert isinstance(caught.value, LdpError)


@pytest.mark.parametrize("name", sorted(WITH_BIT.to_fields()))
def test_missing_fields_are_refused(name: str) -> None:
    fields = dict(WITH_BIT.to_fields())
    del fields[name]
    with pytest.raises(WireError) as caught:
        parsed(fields)
    assert caught.value.reason == ("version" if name == "version" else "fields")


def test_an_empty_record_is_refused() -> None:
    with pytest.raises(WireError):
        parsed({})


@pytest.mark.parametrize("name", ["magnitude-epsilon", "magnitude-threshold"])
def test_half_a_magnitude_question_is_refused(name: str) -> None:
    with pytest.raises(WireError, match="not a signds proposal"):
        parsed(PLAIN.to_fields() | {name: 1.0})
