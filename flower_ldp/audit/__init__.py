"""Audits: lower confidence bounds on epsilon from a sampler's own draws.

An audit can refute a claim and never prove one. Needs scipy (the extra ``accounting``).
"""

from __future__ import annotations

# isort: off
# Each module of cases names its own in BUILDERS, in this order.
from flower_ldp.audit import response_cases, noise_cases, selection_cases, codeword_cases  # noqa: F401

# isort: on
from flower_ldp.audit.auditing import AuditResult, audit
from flower_ldp.audit.bounds import epsilon_lower_bound
from flower_ldp.audit.cases import BUILDERS, Case, Contrast, Settings, audit_case
from flower_ldp.audit.reuse import audit_reuse

__all__ = [
    "BUILDERS",
    "AuditResult",
    "Case",
    "Contrast",
    "Settings",
    "audit",
    "audit_case",
    "audit_reuse",
    "epsilon_lower_bound",
]
