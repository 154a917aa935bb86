"""Protected evaluation as MindSpore Federated publishes it: score and loss over rounds.

A variational autoencoder with dropout and Gaussian input, whose code is a clustering, trains by
FedAvg on MNIST. In each round 1,000 clients predict one row each. The rows are scored as they are,
with Laplace noise at several epsilons, and with Gaussian noise at the same.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import spearmanr
from sklearn.cluster import KMeans
from sklearn.metrics import calinski_harabasz_score, silhouette_score
from torch import nn

from flower_ldp.mechanisms.base import NoProtectionWarning
from flower_ldp.mechanisms.gaussian import LARGEST_EPSILON, largest_shift
from flower_ldp.mechanisms.laplace import Laplace
from flower_ldp.mechanisms.random import RandomSource

Rows = NDArray[np.float64]
CLUSTERS, SIDE = 10, 14
#: One over the noise's scale, as published; the true epsilon is twice that.
PUBLISHED = 230_260.0
EPSILONS = (2 * PUBLISHED, 1_000.0, 100.0, 64.0, 32.0, 16.0, 8.0)
DELTA = 1e-5
#: Two rows of probabilities are at most so far apart.
L2 = math.sqrt(2)


@dataclass(frozen=True)
class Settings:
    """Of the federation, and of its training."""

    clients: int = 1_000
    a_round: int = 30
    rounds: int = 60
    #: Rounds between two evaluations.
    every: int = 2
    steps: int = 8
    batch_size: int = 20
    rate: float = 0.05
    public: int = 1_000
    dropout: float = 0.2
    input_noise: float = 0.1
    sharpness: float = 400.0


class VariationalAutoencoder(nn.Module):
    """An encoder to cluster probabilities, with dropout and Gaussian input, and a decoder."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.settings = settings
        self.encoder = nn.Sequential(
            nn.Linear(SIDE**2, 64), nn.ReLU(), nn.Dropout(settings.dropout), nn.Linear(64, CLUSTERS)
        )
        self.decoder = nn.Linear(CLUSTERS, SIDE**2, bias=False)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        """Return the logarithms of cluster probabilities, shape (n, 10)."""
        if self.training:
            pixels = pixels + self.settings.input_noise * torch.randn_like(pixels)
        return torch.log_softmax(self.encoder(pixels), dim=1)

    def losses(self, pixels: torch.Tensor) -> torch.Tensor:
        """Return the negative evidence lower bound of each image, with the sum over codes."""
        log_q = self(pixels)
        errors = (pixels[:, None] - self.decoder.weight.T).square().mean(dim=2)
        bound: torch.Tensor = (log_q.exp() * (self.settings.sharpness * errors + log_q)).sum(dim=1)
        return bound + math.log(CLUSTERS)


def images(path: Path) -> torch.Tensor:
    """Return MNIST's training images at half their resolution, as rows."""
    with np.load(path) as file:
        pixels = torch.from_numpy(file["x_train"].astype(np.float32) / 255.0)[:, None]
    return nn.functional.avg_pool2d(pixels, 2).flatten(1)


def train(pixels: torch.Tensor, settings: Settings, seed: int) -> tuple[list[Rows], list[float]]:
    """Train by FedAvg; return each evaluation's rows of all clients, and their mean loss."""
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    order = torch.from_numpy(rng.permutation(len(pixels)))
    public, own = order[: settings.public], order[settings.public :]
    own = own[: len(own) // settings.clients * settings.clients].view(settings.clients, -1)
    net = VariationalAutoencoder(settings)
    means = KMeans(CLUSTERS, n_init=3, random_state=seed).fit(pixels[public].numpy())
    with torch.no_grad():  # the decoder begins at clusters of images that are nobody's
        net.decoder.weight.copy_(torch.tensor(means.cluster_centers_.T))
    asked = pixels[own[:, 0]]
    rows, losses = [measured(net, asked)[0]], [measured(net, asked)[1]]
    for number in range(1, settings.rounds + 1):
        start = {name: value.clone() for name, value in net.state_dict().items()}
        total = {name: torch.zeros_like(value) for name, value in start.items()}
        for client in rng.choice(settings.clients, settings.a_round, replace=False):
            net.load_state_dict(start)
            net.train()
            optimizer = torch.optim.SGD(net.parameters(), lr=settings.rate)
            for _ in range(settings.steps):
                batch = own[client][torch.randperm(own.shape[1])[: settings.batch_size]]
                optimizer.zero_grad()
                net.losses(pixels[batch]).mean().backward()
                optimizer.step()
            for name, value in net.state_dict().items():
                total[name] += value / settings.a_round
        net.load_state_dict(total)
        if number % settings.every == 0:
            found, loss = measured(net, asked)
            rows.append(found)
            losses.append(loss)
    return rows, losses


def measured(net: VariationalAutoencoder, pixels: torch.Tensor) -> tuple[Rows, float]:
    """Return predicted rows and the mean loss, without dropout and noise."""
    net.eval()
    with torch.inference_mode():
        return net(pixels).exp().numpy().astype(np.float64), float(net.losses(pixels).mean())


def score(rows: Rows, labels: NDArray[np.int64], name: str) -> float:
    """Return scikit-learn's score; 0 where there is one cluster alone."""
    if len(np.unique(labels)) < 2:
        return 0.0
    found = silhouette_score if name == "silhouette" else calinski_harabasz_score
    return float(found(rows, labels))


def by_laplace(rows: Rows, epsilon: float, source: RandomSource) -> Rows:
    mechanism = Laplace(epsilon, CLUSTERS)
    drawn = [mechanism.estimate(mechanism.randomize(row[None], source)) for row in rows]
    return np.concatenate(drawn)


def by_gauss(rows: Rows, epsilon: float, rng: np.random.Generator) -> Rows:
    """Return rows with continuous Gaussian noise of the exact deviation for (epsilon, DELTA)."""
    return rows + L2 / largest_shift(epsilon, DELTA) * rng.standard_normal(rows.shape)


def parts_of_the_error(true: Rows, noisy: Rows) -> dict[str, dict[str, float]]:
    """Return scores where only labels, only distances, or both are those of the noisy rows."""
    labels, noised = true.argmax(axis=1), noisy.argmax(axis=1)
    return {
        name: {
            "true": score(true, labels, name),
            "noisy_labels": score(true, noised, name),
            "noisy_distances": score(noisy, labels, name),
            "noisy": score(noisy, noised, name),
        }
        for name in ("silhouette", "calinski_harabasz")
    }


def run(path: Path, settings: Settings, seed: int) -> dict[str, Any]:
    """Train twice, as published, and score the second training under noise."""
    pixels = images(path)
    plain_rows, plain_losses = train(pixels, settings, seed)
    rows, losses = train(pixels, settings, seed + 1_000)
    source, rng = RandomSource.seeded(seed), np.random.default_rng(seed)
    true = [score(one, one.argmax(axis=1), "silhouette") for one in rows]
    found: dict[str, Any] = {
        "not_encrypt": {
            "loss": plain_losses,
            "score": [score(one, one.argmax(axis=1), "silhouette") for one in plain_rows],
        },
        "laplace": {"loss": losses, "true_score": true},
        "by_epsilon": [],
    }
    with warnings.catch_warnings(action="ignore", category=NoProtectionWarning):
        for epsilon in EPSILONS:
            line: dict[str, Any] = {"epsilon": epsilon}
            noisy = {"laplace": [by_laplace(one, epsilon, source) for one in rows]}
            if epsilon <= LARGEST_EPSILON:
                noisy["gaussian"] = [by_gauss(one, epsilon, rng) for one in rows]
            for name, curve in noisy.items():
                scores = [score(one, one.argmax(axis=1), "silhouette") for one in curve]
                trend = spearmanr(scores, true).statistic
                line[name] = {
                    "score": scores,
                    "spearman": 0.0 if math.isnan(trend) else float(trend),
                    "mean_error": float(np.mean(np.abs(np.subtract(scores, true)))),
                }
            line["parts"] = parts_of_the_error(rows[-1], noisy["laplace"][-1])
            found["by_epsilon"].append(line)
    return found
