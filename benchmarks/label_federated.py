"""Accuracy on MNIST of local priors in a federation of 50 clients, against central training.

In one process, without Flower: each client is an object that holds its own images and true
labels, randomizes its labels once, and answers with what a client of ``examples/label-dp``
sends. Nothing else leaves it: sums and numbers by cluster of its features, counts of its
**randomized** labels by cluster, and weights that it trained on soft targets. The server adds,
finds priors and averages weights over the clients of a round.

Not through :mod:`flower_ldp.simulation`: an app's labels pass the gate, whose draws take no seed,
and here each seed draws the labels that the central run of that seed drew. The app itself is
``examples/label-dp``.

The result file has the central runs of ``label_dp.py`` of the same seeds beside it.

    python benchmarks/label_federated.py mnist.npz
"""

from __future__ import annotations

import statistics
from copy import deepcopy
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from typing import Annotated

import _options as options
import numpy as np
import torch
import typer
from _label_methods import CATEGORIES, Examples, floats, make_model
from _networks import batches, descend
from _runs import Run, Runs, earlier, like, spread
from label_dp import evaluated, load
from numpy.typing import NDArray
from torch import Tensor, nn

from flower_ldp.labels import (
    cluster_sums,
    group_counts,
    moved,
    nearest,
    posterior,
    priors_from_counts,
)
from flower_ldp.labels.losses import soft_target_loss
from flower_ldp.mechanisms import KaryResponse, RandomSource

#: The federated mean may lie below the central one by no more than this.
GOAL = 0.01
State = dict[str, Tensor]
Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Settings:
    """Of the federation and of its training."""

    clients: int = 50
    #: Who trains in a round; chosen anew each time.
    fraction: float = 0.2
    rounds: int = 45
    batch_size: int = 50
    #: Of Adam in the first round; it falls along a half cosine.
    learning_rate: float = 3e-3
    clusters: int = 1_000
    clusterings: int = 10
    center_steps: int = 2
    #: Principal components that clusters are found in.
    components: int = 50
    #: Steps of expectation-maximization.
    steps: int = 50


@dataclass(frozen=True, eq=False)
class Client:
    """One client's examples; its methods are what it answers."""

    examples: Examples
    response: KaryResponse
    seed: int

    @cached_property
    def reports(self) -> NDArray[np.int64]:
        """Each label randomized once. Nothing else reads a true label."""
        return self.response.randomize_array(self.examples.labels, RandomSource.seeded(self.seed))

    @cached_property
    def pixels(self) -> Floats:
        """The images as rows."""
        return np.asarray(self.examples.images.flatten(1).numpy())

    def moments(self) -> tuple[Floats, Floats]:
        """Return the sums of the pixels and of their products; label privacy covers no features."""
        return self.pixels.sum(axis=0), self.pixels.T @ self.pixels

    def some(self, axes: Floats, number: int, seed: int) -> Floats:
        """Return the components of a few examples, for the first centers."""
        chosen = np.random.default_rng(seed).choice(len(self.pixels), number, replace=False)
        return np.asarray(self.pixels[chosen] @ axes)

    def clusters(self, axes: Floats, centers: list[Floats]) -> list[NDArray[np.int64]]:
        """Return the cluster of each example, for each clustering."""
        features = self.pixels @ axes
        return [nearest(features, some) for some in centers]

    def counts(self, axes: Floats, centers: list[Floats]) -> list[NDArray[np.int64]]:
        """Return how often each cluster holds each report, for each clustering."""
        found = zip(self.clusters(axes, centers), centers, strict=True)
        return [group_counts(self.reports, own, len(some), CATEGORIES) for own, some in found]

    def targets(
        self, axes: Floats, centers: list[Floats], priors: list[NDArray[np.float64]]
    ) -> Tensor:
        """Return the posterior of each label; it stays on the client."""
        found = zip(priors, self.clusters(axes, centers), strict=True)
        prior = np.mean([some[own] for some, own in found], axis=0)
        return floats(posterior(self.response.likelihood(self.reports), prior))

    def train(self, state: State, targets: Tensor, rate: float, batch_size: int) -> State:
        """Return the weights after one pass over this client's examples."""
        model = make_model()
        model.load_state_dict(state)
        optimizer = torch.optim.Adam(model.parameters(), lr=rate)
        descend(
            optimizer,
            batches(len(targets), batch_size, 1),
            lambda rows: soft_target_loss(model(self.examples.images[rows]), targets[rows]),
        )
        return model.state_dict()


def split(examples: Examples, epsilon: float, seed: int, clients: int) -> list[Client]:
    """Deal the examples out to clients at random, as many to each."""
    order = np.random.default_rng(seed).permutation(len(examples.labels))
    return [
        Client(
            Examples(examples.images[part], examples.labels[part]),
            KaryResponse(epsilon, CATEGORIES),
            1_000 * seed + number,
        )
        for number, part in enumerate(np.array_split(order, clients))
    ]


def principal_axes(clients: list[Client], components: int) -> Floats:
    """Return the axes (pixels, components) of the largest variance over all clients."""
    n = sum(len(client.pixels) for client in clients)
    total, products = (sum(parts) for parts in zip(*(c.moments() for c in clients), strict=True))
    mean = np.asarray(total) / n
    covariance = np.asarray(products) / n - np.outer(mean, mean)
    return np.asarray(np.linalg.eigh(covariance)[1][:, -components:], dtype=np.float32)


def find_targets(clients: list[Client], settings: Settings, seed: int) -> list[Tensor]:
    """Cluster over all clients, find the priors from counts of reports; return soft targets."""
    axes = principal_axes(clients, settings.components)
    each = settings.clusters // len(clients)
    centers = []
    for number in range(settings.clusterings):
        found = np.concatenate([c.some(axes, each, 1_000 * seed + number) for c in clients])
        for _ in range(settings.center_steps):
            sums, sizes = zip(
                *(cluster_sums(client.pixels @ axes, found) for client in clients), strict=True
            )
            found = moved(found, sum(sums), sum(sizes))
        centers.append(found)
    law = clients[0].response.transition()
    counts = [sum(parts) for parts in zip(*(c.counts(axes, centers) for c in clients), strict=True)]
    priors = [priors_from_counts(some, law, steps=settings.steps) for some in counts]
    return [client.targets(axes, centers, priors) for client in clients]


def federate(clients: list[Client], settings: Settings, seed: int) -> nn.Module:
    """Return the model after federated averaging on soft targets."""
    targets = find_targets(clients, settings, seed)
    torch.manual_seed(seed)
    chance = np.random.default_rng(seed)
    model = make_model()
    for number in range(settings.rounds):
        rate = settings.learning_rate * (1 + np.cos(np.pi * number / settings.rounds)) / 2
        few = round(settings.fraction * len(clients))
        asked = chance.choice(len(clients), few, replace=False).tolist()
        state, size = deepcopy(model.state_dict()), settings.batch_size
        states = [clients[i].train(state, targets[i], float(rate), size) for i in asked]
        # Clients have as many examples to within one, so each counts the same.
        mean = {name: torch.stack([s[name] for s in states]).mean(dim=0) for name in state}
        model.load_state_dict(mean)
    return model


def central(part: str, epsilon: float) -> dict[int, float]:
    """Return the accuracy of central training on local priors for each seed measured."""
    runs = earlier(options.RESULTS / "label_dp.json")
    wanted = like(runs, method="local_priors", epsilon=epsilon, evaluated_on=part)
    return {run["seed"]: run["accuracy"] for run in wanted}


def summary(runs: list[Run], part: str, epsilon: float) -> Run:
    """Return mean and spread, beside the mean of central training with the same seeds."""
    found, beside = like(runs, evaluated_on=part, epsilon=epsilon), central(part, epsilon)
    same = [beside[run["seed"]] for run in found if run["seed"] in beside]
    whole = len(same) == len(found)
    return {
        "epsilon": epsilon,
        "evaluated_on": part,
        **spread(found, sample=True),
        "central_mean_of_the_same_seeds": round(statistics.mean(same), 4) if whole else None,
        "goal_below_central_at_most": GOAL,
    }


def measured(examples: Examples, held: Examples, settings: Settings, one: Run) -> Run:
    """Train a federation."""
    clients = split(examples, one["epsilon"], one["seed"], settings.clients)
    return evaluated(federate(clients, settings, one["seed"]), held)


def main(
    data: options.Mnist,
    epsilon: Annotated[float, typer.Option(help="Per label.")] = 1.0,
    seeds: options.Seeds = 3,
    evaluate_on: options.EvaluateOn = "test",
    set_: options.Changes = None,
    output: options.Output = options.RESULTS / "label_federated.json",
) -> None:
    """Train for each seed; write a results file. Runs that are there are not repeated."""
    torch.set_num_threads(1)
    settings = options.changed(Settings(), set_)
    examples, held = load(data, evaluate_on)
    runs = Runs(output, lambda made: summary(made, evaluate_on, epsilon), torch=torch.__version__)
    for seed in range(1, seeds + 1):
        one: Run = {"epsilon": epsilon, "seed": seed, "evaluated_on": evaluate_on}
        one["settings"] = asdict(settings)
        runs.make(one, partial(measured, examples, held, settings, one))
    runs.write()  # the central figures may be new


if __name__ == "__main__":
    typer.run(main)
