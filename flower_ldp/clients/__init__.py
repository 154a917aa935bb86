"""Client side: the gate and the releases that it lets out."""

from __future__ import annotations

from flower_ldp.clients.admission import (
    Admission,
    NoLimits,
    Permit,
    ReleaseRequest,
    UnrecordedPermit,
)
from flower_ldp.clients.label_data import PrivateDataset, private_dataset
from flower_ldp.clients.label_store import RandomizedLabels
from flower_ldp.clients.labels import PrivateLabels, private_labels
from flower_ldp.clients.ldp_mod import LdpMod
from flower_ldp.clients.legacy import legacy_client_mod
from flower_ldp.clients.owner import OwnerAdmission
from flower_ldp.clients.release import OpenRelease, Release
from flower_ldp.clients.signds import SignDSRelease
from flower_ldp.labels.stages import LabelStages

__all__ = [
    "Admission",
    "LabelStages",
    "LdpMod",
    "NoLimits",
    "OpenRelease",
    "OwnerAdmission",
    "Permit",
    "PrivateDataset",
    "PrivateLabels",
    "RandomizedLabels",
    "Release",
    "ReleaseRequest",
    "SignDSRelease",
    "UnrecordedPermit",
    "legacy_client_mod",
    "private_dataset",
    "private_labels",
]
