"""Audits: lower confidence bounds on epsilon from a sampler's own draws.

An audit can refute a claim and never prove one. Needs scipy (the extra ``accounting``).
"""

from flower_ldp.audit.auditing import AuditResult, Case, audit, audit_case, audit_reuse, of_updates
from flower_ldp.audit.bounds import epsilon_lower_bound
from flower_ldp.audit.cases import BUILDERS, Settings
from flower_ldp.mechanisms.base import Contrast

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
    "of_updates",
]
