"""The LabelDP notebook's runs on MNIST: its network, Adam at .001, batches of 250.

``rr_with_prior_notebook`` is what the notebook's code runs: epsilon 1.95 after .1 for the prior,
though its text says 1 in all. ``rr_with_prior`` spends the .9 that are left.
"""

from __future__ import annotations

import contextlib
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _images import read
from _networks import outputs, small_cnn
from _opacus import made_private
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
    found = read(path)
    y, y_test = found.y, found.held_y
    x, x_test = (
        torch.from_numpy(some.astype(np.float32) / 255)[:, None] for some in (found.x, found.held_x)
    )
    labels = randomized(method, x, y, seed)
    torch.manual_seed(seed)
    net = small_cnn()
    optimizer = torch.optim.Adam(net.parameters(), lr=RATE)
    rows = TensorDataset(x, torch.from_numpy(labels))
    loader = DataLoader(rows, batch_size=BATCH, shuffle=True)
    kept = (net, optimizer, loader)
    private = method == "dpsgd"
    epochs, steps = DPSGD_EPOCHS if private else epochs, 0
    with made_private(*kept, NOISE, CLIP) if private else contextlib.nullcontext(kept) as made:
        trained, stepper, batches = made
        for images, wanted in itertools.chain.from_iterable(itertools.repeat(batches, epochs)):
            stepper.zero_grad()
            nn.functional.cross_entropy(trained(images), wanted).backward()
            stepper.step()
            steps += 1
    right = outputs(trained, x_test).argmax(dim=1).numpy() == y_test
    return {
        "weights": sum(p.numel() for p in net.parameters()),
        "steps": steps,
        "epochs": epochs,
        "flipped": round(float((labels != y).mean()), 4),
        "accuracy": round(float(right.mean()), 4),
    }
