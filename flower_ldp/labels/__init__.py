"""Training on randomized labels: priors and posteriors (numpy), losses (torch, an extra)."""

from __future__ import annotations

from flower_ldp.labels.priors import group_counts, posterior, priors_from_counts

__all__ = ["group_counts", "posterior", "priors_from_counts"]
