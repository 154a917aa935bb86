"""Label privacy on a client: the store of randomized labels, and data sets that hold them."""

from __future__ import annotations

from flower_ldp.clients.labels.data import PrivateDataset, private_dataset
from flower_ldp.clients.labels.labels import PrivateLabels, private_labels

__all__ = ["PrivateDataset", "PrivateLabels", "private_dataset", "private_labels"]
