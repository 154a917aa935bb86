"""Randomized labels in the place of the true ones, for torch and without it."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

pytest.importorskip("torch")

import numpy as np
import torch
from torch.utils.data import DataLoader, Subset, TensorDataset

from flower_ldp.clients import LabelStages, PrivateDataset, RandomizedLabels, private_dataset
from flower_ldp.clients.labels import true_labels
from flower_ldp.errors import ReleaseError
from flower_ldp.mechanisms import KaryResponse, SubsetSelection
from flower_ldp.privacy import Unit
from tests.fixtures import context
from tests.unit.clients.test_private_labels import POLICY, total  # noqa: F401

RESPONSE = KaryResponse(1.0, 10, unit=Unit.LABEL)
FEATURES = torch.arange(600).float()
LABELS = torch.arange(600) % 10


def private(dataset: object, **options: object) -> PrivateDataset:
    return private_dataset(context(), dataset, **{"mechanism": RESPONSE, **options})  # type: ignore[arg-type]


def test_every_epoch_of_a_loader_sees_the_same_randomized_labels(folder: Path) -> None:
    dataset = private(TensorDataset(FEATURES, LABELS))
    epochs = []
    for _ in range(2):
        batches = list(DataLoader(dataset, batch_size=64, shuffle=True))
        features, labels = (torch.cat(part) for part in zip(*batches, strict=True))
        order = features.argsort()
        torch.testing.assert_close(features[order], FEATURES)
        epochs.append(labels[order])
    torch.testing.assert_close(epochs[0], epochs[1])
    np.testing.assert_array_equal(epochs[0].numpy(), dataset.labels.reports)
    kept = (epochs[0] == LABELS).double().mean()
    assert kept < 0.5, "the true labels came through"
    assert total(folder) == 1.0


def test_subsets_and_items_with_more_than_one_feature(folder: Path) -> None:
    whole = TensorDataset(FEATURES, -FEATURES, LABELS)
    part = Subset(whole, list(range(5, 300, 2)))
    dataset = private(part)
    assert len(dataset) == len(part) == len(list(dataset))  # type: ignore[call-overload]
    first, second, label = dataset[3]
    assert (float(first), float(second)) == (11.0, -11.0)
    assert label == dataset.labels.reports[3]
    assert dataset[-1][0] == part[len(part) - 1][0]
    with pytest.raises(IndexError):
        dataset[len(part)]
    with pytest.raises(ReleaseError, match="not those"):
        private(Subset(whole, list(range(6, 302, 2))))


def test_a_stage_holds_its_own_examples(folder: Path) -> None:
    stages = LabelStages((RESPONSE, RESPONSE), (1, 2))
    dataset = private(TensorDataset(FEATURES, LABELS), mechanism=stages, stage=1)
    assert len(dataset) == 400
    assert [float(dataset[i][0]) for i in range(4)] == [1.0, 2.0, 4.0, 5.0]
    assert total(folder) == 1.0


def test_sets_take_no_labels_place_and_cost_nothing(folder: Path) -> None:
    sets = SubsetSelection(1.0, 10, unit=Unit.LABEL)
    for mechanism in (sets, LabelStages((sets, RESPONSE), (1, 1))):
        with pytest.raises(ValueError, match="subset_selection reports sets"):
            private(TensorDataset(FEATURES, LABELS), mechanism=mechanism)
    assert total(folder) == 0.0
    told = RandomizedLabels(np.full(600, 7), np.arange(600), sets)
    with pytest.raises(ValueError, match="subset_selection reports sets"):
        PrivateDataset(TensorDataset(FEATURES, LABELS), told)


def test_labels_of_plain_lists_are_read() -> None:
    found = true_labels([("a", 3), ("b", np.int32(1)), ("c", torch.tensor(2))])
    assert found.tolist() == [3, 1, 2]
    assert found.dtype == np.int64


def test_a_label_that_is_no_integer_is_unknown_and_leaves_the_others_alone() -> None:
    wrong = (0.5, None, "x", -3, math.nan, torch.tensor([1]), torch.tensor(0.5))
    items = [("a", 3), *(("b", label) for label in wrong), ("c",), ("c", 2.0)]
    found = true_labels(items)
    assert found.tolist() == [3, *[-1] * (len(wrong) + 1), 2]


@pytest.mark.parametrize("items", [[3], [("a",)], [{"x": 1, "y": 2}]])
def test_items_that_are_no_features_and_label_are_refused(items: list[object]) -> None:
    with pytest.raises(ValueError, match="dataset must have"):
        true_labels(items)
