"""Partitioners that know how many partitions there are, and no more."""

from __future__ import annotations


class IidPartitioner:
    def __init__(self, num_partitions: int) -> None:
        self.num_partitions = num_partitions


class DirichletPartitioner(IidPartitioner):
    def __init__(self, num_partitions: int, partition_by: str, alpha: float) -> None:
        super().__init__(num_partitions)
