"""Proposals as strategies make them, and as releases of all mechanisms read them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flower_ldp.mechanisms import Codeword, Gaussian, SignDS
from flower_ldp.mechanisms.signds_round import SignDSRound
from flower_ldp.wire.proposal import UpdateProposal

KNOWN = {kind.name: kind.of_parameters for kind in (SignDSRound, Codeword, Gaussian)}


def parsed(fields: Mapping[str, object]) -> UpdateProposal[Any]:
    """Return the proposal of any mechanism that fields state."""
    return UpdateProposal.from_fields(fields, KNOWN)


def signds_proposal(
    selection: SignDS,
    magnitude_epsilon: float | None = None,
    magnitude_threshold: float | None = None,
    health_epsilon: float | None = None,
) -> UpdateProposal[SignDSRound]:
    asked = SignDSRound(selection, magnitude_epsilon, magnitude_threshold)
    return UpdateProposal(asked, health_epsilon)
