"""Training on randomized labels: priors and posteriors (numpy), losses (torch, an extra)."""

from flower_ldp.labels.clusters import cluster_sums, moved, nearest, nearest_examples
from flower_ldp.labels.priors import (
    CentralHistograms,
    group_counts,
    posterior,
    priors_from_counts,
    priors_from_likelihoods,
    priors_from_neighbours,
)
from flower_ldp.labels.stages import LabelStages, RandomizedLabels
from flower_ldp.mechanisms.labels import LABEL_METHODS
from flower_ldp.mechanisms.randomized_response import LabelMechanism

__all__ = [
    "LABEL_METHODS",
    "CentralHistograms",
    "LabelMechanism",
    "LabelStages",
    "RandomizedLabels",
    "cluster_sums",
    "group_counts",
    "moved",
    "nearest",
    "nearest_examples",
    "posterior",
    "priors_from_counts",
    "priors_from_likelihoods",
    "priors_from_neighbours",
]
