"""The ways of training on private labels that benchmarks/label_dp.py compares.

Each method takes the training images with their true labels, randomizes each label once and
returns a model. What a method reads of the true labels is what its mechanism reads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
import torch
from _networks import batches, descend, outputs, small_cnn
from numpy.typing import NDArray
from sklearn.decomposition import PCA
from torch import Tensor, nn

from flower_ldp.labels import (
    CentralHistograms,
    cluster_sums,
    moved,
    nearest,
    posterior,
    priors_from_likelihoods,
)
from flower_ldp.labels.losses import forward_loss, plain_loss, soft_target_loss
from flower_ldp.mechanisms import KaryResponse, RandomSource, RRWithPrior, SubsetSelection

CATEGORIES = 10
Loss = Callable[[Tensor, Tensor], Tensor]
Doubles = NDArray[np.float64]
Response = KaryResponse | SubsetSelection


@dataclass(frozen=True)
class Settings:
    """Of training; the same for all epsilons unless a method says otherwise."""

    epochs: int = 3
    learning_rate: float = 3e-3
    batch_size: int = 256
    #: Clusters of each of several clusterings, whose priors are averaged.
    clusters: int = 1_000
    clusterings: int = 10
    #: Steps of k-means from random examples.
    center_steps: int = 2
    #: Steps of expectation-maximization.
    steps: int = 50
    #: Part of epsilon that central histograms get.
    histogram_epsilon: float = 0.1
    #: Epochs of LP-2ST's first stage, and its part of each ten examples.
    first_epochs: int = 3
    first_tenths: int = 6
    #: LP-2ST draws the second stage with the first model's probabilities to this power.
    draw_power: float = 0.5


@dataclass(frozen=True)
class Near:
    """Settings of the methods that begin with neighbours, beside those of training."""

    #: Nearest others of an example, and steps of hearing them.
    neighbours: int = 20
    neighbour_steps: int = 60
    #: Soft targets are taken to this power.
    sharpness: float = 4.0
    #: Of MNIST: axes of strokes in which distances are taken, and the power of their spread that
    #: each is divided by.
    axes: int = 200
    axes_power: float = 1.0


@dataclass(frozen=True, eq=False)
class Examples:
    """Images (n, 1, 28, 28) scaled, or features of images (n, f), and their true labels.

    ``coordinates`` (n, c) are where distances between images are taken, if a method needs any.
    """

    images: Tensor
    labels: NDArray[np.int64]
    coordinates: NDArray[np.float32] | None = None

    @cached_property
    def features(self) -> NDArray[np.float32]:
        """The images' 50 principal components."""
        flat = self.images.flatten(1).numpy()
        reduced = PCA(50, svd_solver="randomized", random_state=0).fit(flat[:20_000])
        return np.asarray(reduced.transform(flat), dtype=np.float32)


@dataclass(frozen=True)
class Task:
    """Examples, and what must repeat."""

    examples: Examples
    epsilon: float
    seed: int
    settings: Settings
    near: Near = Near()

    @property
    def images(self) -> Tensor:
        return self.examples.images

    @property
    def labels(self) -> NDArray[np.int64]:
        return self.examples.labels

    @property
    def noise(self) -> RandomSource:
        """Repeatable, for this comparison only."""
        return RandomSource.seeded(self.seed)

    @property
    def response(self) -> KaryResponse:
        return KaryResponse(self.epsilon, CATEGORIES)

    @property
    def sets(self) -> SubsetSelection:
        return SubsetSelection(self.epsilon, CATEGORIES)


def make_model() -> nn.Sequential:
    """Return the CNN, in the format in which it is twice as fast."""
    return small_cnn().to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]


def make_head(features: int) -> nn.Sequential:
    """Return what is trained over features of images: one hidden layer."""
    return nn.Sequential(nn.Linear(features, 256), nn.ReLU(), nn.Linear(256, CATEGORIES))


def train(
    task: Task, loss: Loss, targets: Tensor, members: Tensor | None = None, epochs: int = 0
) -> nn.Sequential:
    """Train a new model on some examples (all if left out) by Adam and a one-cycle rate."""
    settings = task.settings
    torch.manual_seed(task.seed)
    members = torch.arange(len(task.images)) if members is None else members
    epochs, size = epochs or settings.epochs, settings.batch_size
    model = make_model() if task.images.ndim == 4 else make_head(task.images.shape[1])
    optimizer = torch.optim.Adam(model.parameters(), lr=settings.learning_rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, settings.learning_rate, total_steps=epochs * (len(members) // size)
    )
    rows = (members[some] for some in batches(len(members), size, epochs, whole=True))
    descend(optimizer, rows, lambda some: loss(model(task.images[some]), targets[some]), schedule)
    return model


def probabilities(model: nn.Module, images: Tensor) -> Doubles:
    return outputs(model, images).double().softmax(dim=1).numpy()


def floats(values: NDArray[np.floating]) -> Tensor:
    return torch.tensor(values, dtype=torch.float32)


@cache
def clustering(examples: Examples, clusters: int, steps: int, seed: int) -> NDArray[np.int64]:
    """Return the cluster of each example by k-means; it reads no label.

    The same for all epsilons and methods, so each is found once a process.
    """
    features = examples.features
    chosen = np.random.default_rng(seed).choice(len(features), clusters, replace=False)
    centers = features[chosen]
    for _ in range(steps):
        centers = moved(centers, *cluster_sums(features, centers))
    return nearest(features, centers)


def pixel_clusters(task: Task, clusterings: int) -> list[NDArray[np.int64]]:
    """Return clusterings from different starts."""
    settings = task.settings
    return [
        clustering(task.examples, settings.clusters, settings.center_steps, 1_000 * task.seed + i)
        for i in range(clusterings)
    ]


def no_privacy(task: Task) -> nn.Module:
    return train(task, plain_loss, torch.tensor(task.labels))


def plain(task: Task) -> nn.Module:
    reports = task.response.randomize_array(task.labels, task.noise)
    return train(task, plain_loss, torch.tensor(reports))


def forward(task: Task, response: Response) -> nn.Module:
    reports = response.randomize_array(task.labels, task.noise)
    return train(task, forward_loss, floats(response.likelihood(reports)))


def local_prior(task: Task, likelihood: Doubles, members: NDArray[np.int64]) -> Doubles:
    """Return a prior for each example, found from the reports of some and from nothing else.

    One clustering errs for whole clusters at a time; the average over several does not.
    """
    settings = task.settings
    total = np.zeros((len(task.labels), CATEGORIES))
    for groups in pixel_clusters(task, settings.clusterings):
        found = priors_from_likelihoods(
            likelihood[members], groups[members], settings.clusters, steps=settings.steps
        )
        total += found[groups]
    return total


def local_priors(task: Task) -> nn.Module:
    reports = task.response.randomize_array(task.labels, task.noise)
    likelihood = task.response.likelihood(reports)
    targets = posterior(likelihood, local_prior(task, likelihood, np.arange(len(reports))))
    return train(task, soft_target_loss, floats(targets))


def central_reports(
    task: Task,
) -> tuple[RRWithPrior, NDArray[np.int64], Doubles]:
    """Randomize with priors from noisy histograms of the true labels: central."""
    settings, noise = task.settings, task.noise
    (groups,) = pixel_clusters(task, 1)
    histograms = CentralHistograms(settings.histogram_epsilon, settings.clusters, CATEGORIES)
    priors = histograms.priors(histograms.randomize(task.labels, groups, noise))[groups]
    mechanism = RRWithPrior(task.epsilon - settings.histogram_epsilon, CATEGORIES)
    return mechanism, mechanism.randomize_array(task.labels, noise, priors), priors


def rr_with_prior(task: Task) -> nn.Module:
    _, reports, _ = central_reports(task)
    return train(task, plain_loss, torch.tensor(reports))


def rr_with_prior_soft(task: Task) -> nn.Module:
    mechanism, reports, priors = central_reports(task)
    targets = posterior(mechanism.likelihood(reports, priors), priors)
    return train(task, soft_target_loss, floats(targets))


def two_stages(task: Task, response: Response) -> nn.Module:
    """Two stages on disjoint examples; the first one's model is the second one's prior.

    The last prior is the product of the model's probabilities and of local priors from all
    reports: the model errs by shape, the clusters by place.
    """

    def believed(likelihood: Doubles, first: NDArray[np.int64]) -> Doubles:
        targets = posterior(likelihood, local_prior(task, likelihood, first))
        epochs = task.settings.first_epochs
        model = train(task, soft_target_loss, floats(targets), torch.tensor(first), epochs)
        return probabilities(model, task.images)

    likelihood, known = staged(task, response, believed)
    prior = local_prior(task, likelihood, np.arange(len(likelihood)))
    return train(task, soft_target_loss, floats(posterior(likelihood, prior * known)))


def staged(
    task: Task, response: Response, believed: Callable[[Doubles, NDArray[np.int64]], Doubles]
) -> tuple[Doubles, Doubles]:
    """Return the likelihoods of two stages' reports, and what the first one lets believe.

    RRWithPrior with what is believed would report the likeliest label of most examples, whatever
    the label is, and so nothing new. Flattened beliefs let it report more.

    Parameters
    ----------
    task : Task
    response : KaryResponse or SubsetSelection
        Of the first stage.
    believed : callable
        From likelihoods of all, and the places of those with a report, to priors of all.
    """
    noise, n = task.noise, len(task.labels)
    early = np.arange(n) % 10 < task.settings.first_tenths
    first, second = np.flatnonzero(early), np.flatnonzero(~early)
    likelihood = np.ones((n, CATEGORIES))
    likelihood[first] = response.likelihood(response.randomize_array(task.labels[first], noise))
    known = believed(likelihood, first)
    flat = known[second] ** task.settings.draw_power
    mechanism = RRWithPrior(task.epsilon, CATEGORIES)
    reports = mechanism.randomize_array(task.labels[second], noise, flat)
    likelihood[second] = mechanism.likelihood(reports, flat)
    return likelihood, known


METHODS: dict[str, Callable[[Task], nn.Module]] = {
    "no_privacy": no_privacy,
    "plain": plain,
    "forward": lambda task: forward(task, task.response),
    "forward_subset": lambda task: forward(task, task.sets),
    "rr_with_prior": rr_with_prior,
    "rr_with_prior_soft": rr_with_prior_soft,
    "local_priors": local_priors,
    "lp_2st": lambda task: two_stages(task, task.response),
    "lp_2st_subset": lambda task: two_stages(task, task.sets),
}
