"""Audits: lower confidence bounds on epsilon from a sampler's own draws.

An audit can refute a claim and never prove one. Needs scipy (the extra ``accounting``).
"""

from __future__ import annotations

from flower_ldp.audit.account_cases import nested_units
from flower_ldp.audit.auditing import AuditResult, audit
from flower_ldp.audit.bounds import epsilon_lower_bound
from flower_ldp.audit.builders import BUILDERS, Settings
from flower_ldp.audit.cases import Case, Contrast, audit_case
from flower_ldp.audit.count_cases import example_counts, example_mean
from flower_ldp.audit.embedding_cases import codebook_embedding, unary
from flower_ldp.audit.long_cases import signds_long
from flower_ldp.audit.noise_cases import bounded_mean, gaussian, laplace
from flower_ldp.audit.response_cases import (
    binary_response,
    codebook_response,
    kary_response,
    magrr,
    rr_with_prior,
    subset_selection,
)
from flower_ldp.audit.reuse import audit_reuse
from flower_ldp.audit.selection_cases import signds, signds_magrr

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
    "bounded_mean",
    "codebook_embedding",
    "codebook_response",
    "epsilon_lower_bound",
    "example_counts",
    "example_mean",
    "gaussian",
    "kary_response",
    "laplace",
    "magrr",
    "nested_units",
    "rr_with_prior",
    "signds",
    "signds_long",
    "signds_magrr",
    "subset_selection",
    "unary",
]
