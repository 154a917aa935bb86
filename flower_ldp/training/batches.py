"""Batches whose rows are made of one item each, drawn anew for every step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset

from flower_ldp.training.draws import Draws
from flower_ldp.training.sampling import PoissonBatches


class PoissonLoader(DataLoader[Any]):
    """Loads Poisson batches and opens a turn for each.

    Parameters
    ----------
    given : DataLoader
        Its data set, workers, memory pinning and collating are used.
    batches : PoissonBatches
        Who takes part.
    draws : Draws
        The training's.
    """

    def __init__(self, given: DataLoader[Any], batches: PoissonBatches, draws: Draws) -> None:
        self._draws = draws
        super().__init__(
            _Items(given.dataset),
            batch_sampler=batches,
            collate_fn=OneRowEach(given.dataset, given.collate_fn),
            num_workers=given.num_workers,
            pin_memory=given.pin_memory,
        )

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        for batch in super().__iter__():
            self._draws.drawn(min(len(tensor) for tensor in tensors(batch)))
            yield batch


@dataclass(frozen=True)
class OneRowEach:
    """Collates item by item, so that no row is made of two items and no item makes two rows.

    An empty batch looks like a full one of length 0.

    Parameters
    ----------
    dataset : Dataset
        Its first item shows what an empty batch looks like.
    collate : callable
        Makes a batch of a list of items.
    """

    dataset: Any
    collate: Callable[[list[Any]], Any]

    def __call__(self, items: list[Any]) -> Any:
        """Return the batch of these items.

        Raises
        ------
        ValueError
            If one item becomes several rows or none, or two have different shapes.
        TypeError
            If a batch is not made of tensors.
        """
        if not items:
            return mapped(self._row(self.dataset[0]), lambda tensor: tensor[:0])
        return _joined([self._row(item) for item in items])

    def _row(self, item: Any) -> Any:
        row = self.collate([item])
        if any(tensor.ndim == 0 or len(tensor) != 1 for tensor in tensors(row)):
            raise ValueError("collating must make exactly one row of each item")
        return row


def mapped(
    batch: Any, change: Callable[[torch.Tensor], Any], rest: Callable[[Any], Any] | None = None
) -> Any:
    """Return tensors, or a list or mapping of such, with each tensor changed.

    Raises
    ------
    TypeError
        If anything else is there and ``rest`` does not say what becomes of it.
    """
    if isinstance(batch, torch.Tensor):
        return change(batch)
    if isinstance(batch, (list, tuple)):
        return _like(batch, [mapped(part, change, rest) for part in batch])
    if isinstance(batch, dict):
        return {name: mapped(part, change, rest) for name, part in batch.items()}
    if rest is None:
        raise TypeError(f"batches must consist of tensors, got {type(batch).__name__}")
    return rest(batch)


def tensors(batch: Any, rest: Callable[[Any], Any] | None = None) -> list[torch.Tensor]:
    """Return all tensors of a batch; ``rest`` as in :func:`mapped`."""
    found: list[torch.Tensor] = []
    mapped(batch, found.append, rest)
    return found


def check_items_differ(dataset: Any) -> None:
    """Refuse torch's own data sets that hold an item twice: it would take part twice.

    Raises
    ------
    ValueError
        If subsets and concatenations lead to one index of one data set in two ways.
    """
    if isinstance(dataset, (Subset, ConcatDataset)):
        items = _origins(dataset)
        if len(set(items)) < len(items):
            raise ValueError("the data repeat an item: each item must occur once")


def _origins(dataset: Any) -> list[tuple[int, int]]:
    """Return whose item of which index each item is, through subsets and concatenations."""
    if isinstance(dataset, Subset):
        inner = _origins(dataset.dataset)
        return [inner[int(index)] for index in dataset.indices]
    if isinstance(dataset, ConcatDataset):
        return [origin for part in dataset.datasets for origin in _origins(part)]
    return [(id(dataset), index) for index in range(len(dataset))]


class _Items(Dataset[Any]):
    """A data set read item by item: one for an index, also where it could give several."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        return self.dataset[index]


def _joined(rows: list[Any]) -> Any:
    """Put rows of one structure under each other, in new memory."""
    first = rows[0]
    if isinstance(first, torch.Tensor):
        if any(row.shape != first.shape for row in rows):
            raise ValueError("items must have one shape: pad them to a fixed length")
        return torch.cat(rows)
    if isinstance(first, dict):
        return {name: _joined([row[name] for row in rows]) for name in first}
    return _like(first, [_joined(list(parts)) for parts in zip(*rows, strict=True)])


def _like(given: Any, parts: list[Any]) -> Any:
    """Return ``parts`` as a list, tuple or named tuple, as ``given`` is."""
    if isinstance(given, list):
        return parts
    return type(given)(*parts) if hasattr(given, "_fields") else tuple(parts)
