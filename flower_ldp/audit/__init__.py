"""Audits: lower confidence bounds on epsilon from a sampler's own draws.

An audit can refute a claim and never prove one. Needs scipy (the extra ``accounting``).
"""

from __future__ import annotations

from flower_ldp.audit.auditing import AuditResult, audit
from flower_ldp.audit.bounds import epsilon_lower_bound
from flower_ldp.audit.cases import (
    BUILDERS,
    Case,
    Contrast,
    Settings,
    audit_case,
    binary_response,
    magrr,
    signds,
)
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
    "binary_response",
    "epsilon_lower_bound",
    "magrr",
    "signds",
]
