"""In the place of Flower Datasets, which would download: records that scikit-learn ships."""

from __future__ import annotations

from typing import Any

from datasets import Records, load_dataset

from flwr_datasets.partitioner import IidPartitioner


class FederatedDataset:
    """Splits a training set by a fixed permutation, whatever the partitioner is."""

    def __init__(self, *, dataset: str, partitioners: dict[str, IidPartitioner]) -> None:
        self._records: Any = load_dataset(dataset, split="train")
        self._count = partitioners["train"].num_partitions

    def load_partition(self, partition_id: int, split: str = "train") -> Records:
        return self._records.shuffled(0).at(slice(partition_id, None, self._count))
