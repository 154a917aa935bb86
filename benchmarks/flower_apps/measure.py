"""What an app's last model comes to on rows that were held out, read through its own loader.

    python benchmarks/flower_apps/measure.py PACKAGE MODEL

Run in the app's folder. Prints JSON: the metric, and that of the best constant.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import sys
from collections.abc import Iterator
from typing import Any

import torch

os.environ["FLOWER_APPS_HELD_OUT"] = "1"
sys.path.insert(0, os.getcwd())
#: Apps whose training rows are distorted: only rows that the loader tests on are read.
DISTORTED = {"pytorch_example"}


def rows(task: Any, package: str) -> Iterator[tuple[Any, torch.Tensor]]:
    """Yield batches of what the model takes, and of the target."""
    told = {"partition_id": 0, "num_partitions": 1, "batch_size": 256, "model_name": ""}
    wanted = inspect.signature(task.load_data).parameters
    loaders = task.load_data(**{name: told[name] for name in wanted})
    for loader in loaders[1:] if package in DISTORTED else loaders:
        for batch in loader:
            if isinstance(batch, (tuple, list)):
                yield batch[0], batch[1]
            elif "input_ids" in batch:
                yield {name: batch[name] for name in batch if name != "labels"}, batch["labels"]
            else:
                yield batch["img" if "img" in batch else "image"], batch["label"]


def network(task: Any, package: str) -> Any:
    """Return an app's model."""
    if package == "fastai_example":
        return importlib.import_module("fastai.vision.all").squeezenet1_1()
    if package == "huggingface_example":
        return task.get_model("")
    names = ("Net", "LitAutoEncoder", "IncomeClassifier")
    return next(getattr(task, name) for name in names if hasattr(task, name))()


def labels_found(task: Any, package: str, model: str) -> dict[str, float]:
    """Return the share of right labels."""
    net = network(task, package)
    net.load_state_dict(torch.load(model))
    net.eval()
    right, targets = 0, []
    for given, target in rows(task, package):
        with torch.no_grad():
            found = net(**given).logits if isinstance(given, dict) else net(given)
        named = (found > 0.5).float() if found.shape[1] == 1 else found.argmax(1)
        right += int((named == target).sum())
        targets.append(target.reshape(-1))
    return _shares(right, torch.cat(targets).long())


def _shares(right: int, target: torch.Tensor) -> dict[str, float]:
    return {
        "figure": right / len(target),
        "constant": float(target.bincount().max()) / len(target),
        "rows": len(target),
    }


def reconstructions(task: Any, package: str, model: str) -> dict[str, float]:
    """Return the mean squared error of an autoencoder, and of the mean image."""
    net = network(task, package)
    net.load_state_dict(torch.load(model))
    net.eval()
    torch.manual_seed(0)  # of the variational one's draws
    found, images = [], []
    for image, _ in rows(task, package):
        with torch.no_grad():
            if hasattr(net, "reparametrize"):
                found.append(net(image)[0])
            else:
                found.append(net.decoder(net.encoder(image.flatten(1))).view_as(image))
        images.append(image)
    truth = torch.cat(images)
    return {
        "figure": float((torch.cat(found) - truth).square().mean()),
        "constant": float((truth - truth.mean(0)).square().mean()),
        "rows": len(truth),
    }


def by_regression(task: Any, package: str, model: str) -> dict[str, float]:
    """Return the share of right labels of scikit-learn's model."""
    import joblib

    del package
    trained = joblib.load(model)
    train, train_labels, test, test_labels = task.load_data(0, 1)
    both = (torch.tensor(train_labels), torch.tensor(test_labels))
    parts = ((train, train_labels), (test, test_labels))
    right = sum(len(one) * trained.score(one, labels) for one, labels in parts)
    return _shares(round(right), torch.cat(both))


def by_embeddings(task: Any, package: str, model: str) -> dict[str, float]:
    """Return the share of right labels of a model over the parties' embeddings."""
    del package
    kept = torch.load(model)
    embeddings, target = kept["embeddings"], kept["labels"]
    head = task.ServerModel(embeddings.shape[1])
    head.load_state_dict(kept["head"])
    share = task.evaluate_head_model(head, embeddings, target) / 100
    return _shares(round(share * len(target)), target.flatten().long())


def main(package: str, model: str) -> None:
    """Print the metric."""
    task = importlib.import_module(f"{package}.task")
    measure = {
        "sklearnexample": by_regression,
        "fedvaeexample": reconstructions,
        "pytorchlightning_example": reconstructions,
        "vertical_fl": by_embeddings,
    }.get(package, labels_found)
    print("measured", json.dumps(measure(task, package, model)))


if __name__ == "__main__":
    main(*sys.argv[1:])
