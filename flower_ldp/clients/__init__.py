"""Client side: the gate and the releases that it lets out."""

from __future__ import annotations

from flower_ldp.clients.admission import Admission, Permit, ReleaseRequest
from flower_ldp.clients.evaluation import LaplaceEvalRelease
from flower_ldp.clients.ldp_mod import LdpMod
from flower_ldp.clients.legacy import legacy_client_mod
from flower_ldp.clients.owner import OwnerAdmission
from flower_ldp.clients.release import OpenRelease, Release
from flower_ldp.clients.signds import SignDSRelease

__all__ = [
    "Admission",
    "LaplaceEvalRelease",
    "LdpMod",
    "OpenRelease",
    "OwnerAdmission",
    "Permit",
    "Release",
    "ReleaseRequest",
    "SignDSRelease",
    "legacy_client_mod",
]
