"""Audits of whole paths: what leaves a client, rather than what one sampler draws.

The samplers' audits are in :mod:`flower_ldp.audit`; these stand above the client's code and go
through all of it: the gate with its owner's policy and ledger, the labels' store, DP-SGD's
training. They draw from the operating system's entropy, as those do.
"""

from __future__ import annotations

from flower_ldp.audit_paths.builders import PATHS, NoSuchClaimError
from flower_ldp.audit_paths.gate import CLAIMED, gate
from flower_ldp.audit_paths.labels import labels

__all__ = ["CLAIMED", "PATHS", "NoSuchClaimError", "gate", "labels"]
