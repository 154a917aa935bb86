"""The LabelDP notebook's runs on MNIST: its network, Adam at .001, batches of 250.

``rr_with_prior_notebook`` is what the notebook's code runs: epsilon 1.95 after .1 for the prior,
though its text says 1 in all. ``rr_with_prior`` spends the .9 that are left.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from flower_ldp.labels import CentralHistograms
from flower_ldp.mechanisms import KaryResponse, RandomSource, RRWithPrior

Labels = NDArray[np.int64]
CLASSES, BATCH, RATE, CLUSTERS = 10, 250, 0.001, 200
NOISE, CLIP, DPSGD_EPOCHS = 1.0188458598723718, 1.5, 3
METHODS = ("no_privacy", "response", "rr_with_prior", "rr_with_prior_notebook", "dpsgd")


def network() -> nn.Module:
    """Return the notebook's network of 26,010 weights, padded by 3 as TensorFlow does."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 8, stride=2, padding=3),
        nn.ReLU(),
        nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, stride=2),
        nn.ReLU(),
        nn.MaxPool2d(2, 1),
        nn.Flatten(),
        nn.Linear(512, 32),
        nn.ReLU(),
        nn.Linear(32, CLASSES),
    )


def load(path: Path) -> tuple[torch.Tensor, Labels, torch.Tensor, Labels]:
    with np.load(path) as file:
        x, x_test = (
            torch.from_numpy(file[f"x_{part}"].astype(np.float32) / 255)[:, None]
            for part in ("train", "test")
        )
        return x, file["y_train"].astype(np.int64), x_test, file["y_test"].astype(np.int64)


def randomized(method: str, x: torch.Tensor, y: Labels, seed: int) -> Labels:
    """Return the labels that are trained on."""
    source = RandomSource.seeded(seed)
    if method == "response":
        return np.asarray(KaryResponse(1.0, CLASSES).randomize_array(y, source))
    if not method.startswith("rr_with_prior"):
        return y
    low = PCA(50, random_state=seed).fit_transform(x.flatten(1).numpy())
    groups = KMeans(CLUSTERS, n_init=1, random_state=0).fit(low).labels_
    central = CentralHistograms(0.1, CLUSTERS, CLASSES)
    priors = central.priors(central.randomize(y, groups, source))
    mechanism = RRWithPrior(1.95 if method.endswith("notebook") else 0.9, CLASSES)
    return np.asarray(mechanism.randomize_array(y, source, priors[groups]))


def train(path: Path, method: str, seed: int, epochs: int) -> dict[str, Any]:
    """Train once; return the share of changed labels and the test accuracy."""
    x, y, x_test, y_test = load(path)
    labels = randomized(method, x, y, seed)
    torch.manual_seed(seed)
    net = network()
    optimizer: Any = torch.optim.Adam(net.parameters(), lr=RATE)
    rows = TensorDataset(x, torch.from_numpy(labels))
    batches: Any = DataLoader(rows, batch_size=BATCH, shuffle=True)
    if method == "dpsgd":
        from opacus import PrivacyEngine

        epochs = DPSGD_EPOCHS
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of its generator, which is not cryptographic
            net, optimizer, batches = PrivacyEngine().make_private(
                module=net,
                optimizer=optimizer,
                data_loader=batches,
                noise_multiplier=NOISE,
                max_grad_norm=CLIP,
            )
    steps = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Opacus's hooks
        for _ in range(epochs):
            for images, wanted in batches:
                optimizer.zero_grad()
                nn.functional.cross_entropy(net(images), wanted).backward()
                optimizer.step()
                steps += 1
    net.eval()
    with torch.inference_mode():
        found = torch.cat([net(part).argmax(dim=1) for part in x_test.split(1_000)]).numpy()
    return {
        "weights": sum(p.numel() for p in net.parameters()),
        "steps": steps,
        "epochs": epochs,
        "flipped": round(float((labels != y).mean()), 4),
        "accuracy": round(float((found == y_test).mean()), 4),
    }
