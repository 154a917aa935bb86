"""Where true labels end: the functions that read them, and what is made of their reports."""

from __future__ import annotations

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Context
from numpy.typing import NDArray
from torch import Tensor

from flower_ldp.clients import RandomizedLabels, private_labels
from flower_ldp.labels import LabelStages, group_counts, posterior
from flower_ldp.labels.clusters import nearest
from flower_ldp.labels.losses import forward_loss, plain_loss, soft_target_loss
from flower_ldp.mechanisms import KaryResponse, RRWithPrior
from flower_ldp.privacy import Unit
from label_dp_example import data
from label_dp_example.model import Loss

METHODS = ("plain", "forward", "local-priors", "lp-2st")
#: Of what the client keeps in its own state, which Flower holds between messages of a run.
STATE = "label-dp-targets"
#: LP-2ST: of five successive labels three are randomized in the first stage, two in the second.
SHARES = (3, 2)
#: The second stage draws with the first one's probabilities to this power: see docs/label_dp.md.
DRAW_POWER = 0.5


def stages(context: Context) -> LabelStages:
    """Return what randomizes labels; whether it may is for the data owner's policy to say."""
    epsilon = float(context.run_config["epsilon"])
    response = KaryResponse(epsilon, data.CATEGORIES, unit=Unit.LABEL)
    if context.run_config["method"] != "lp-2st":
        return LabelStages((response,), (1,))
    return LabelStages((response, RRWithPrior(epsilon, data.CATEGORIES, unit=Unit.LABEL)), SHARES)


def share(context: Context) -> tuple[Tensor, RandomizedLabels]:
    """Return this client's images and its **randomized** labels, of the first stage if of two.

    The first call randomizes and pays. Every later one, in this run or another, returns the
    same reports from the ledger.
    """
    mine = data.of_client(context)
    private = private_labels(context, mine.labels, mechanism=stages(context))
    return mine.images[private.members], private


def share_second(context: Context, known: NDArray[np.float64]) -> RandomizedLabels:
    """Return the second stage's randomized labels.

    Parameters
    ----------
    known : ndarray, shape (n, 10)
        Probabilities of each image's label by a model that has seen the first stage alone.
    """
    mine, both = data.of_client(context), stages(context)
    prior = known[both.members(1, len(mine.labels))] ** DRAW_POWER
    return private_labels(context, mine.labels, mechanism=both, stage=1, prior=prior)


def groups(images: Tensor, centers: NDArray[np.float32]) -> list[NDArray[np.int64]]:
    """Return the nearest center of each image, for each clustering."""
    return [nearest(images.flatten(1).numpy(), some) for some in centers]


def counts(context: Context, centers: NDArray[np.float32]) -> NDArray[np.int64]:
    """Count the randomized labels in each cluster: shape (clusterings, clusters, 10)."""
    images, private = share(context)
    return np.stack(
        [
            group_counts(private.reports, members, centers.shape[1], data.CATEGORIES)
            for members in groups(images, centers)
        ]
    )


def keep_priors(
    context: Context, centers: NDArray[np.float32], priors: NDArray[np.float64]
) -> None:
    """Keep each image's prior, by its clusters, and P(label | report, clusters)."""
    everything = data.of_client(context).images
    members = groups(everything, centers)
    prior = np.mean([some[where] for some, where in zip(priors, members, strict=True)], axis=0)
    _, private = share(context)
    _keep(context, prior, posterior(private.likelihood(), prior[private.members]))


def begin_second_stage(context: Context, known: NDArray[np.float64]) -> None:
    """Randomize the labels of the second stage, and make targets for all images.

    Parameters
    ----------
    known : ndarray, shape (n, 10)
        As for :func:`share_second`.
    """
    _, first = share(context)
    second = share_second(context, known)
    likelihood = np.ones((len(known), data.CATEGORIES))
    for part in (first, second):
        likelihood[part.members] = part.likelihood()
    prior = _kept(context, "prior")
    _keep(context, prior, posterior(likelihood, prior * known))


def task(context: Context) -> tuple[Tensor, Tensor, Loss]:
    """Return the images, what to train for, and the loss, as the run's method says.

    Raises
    ------
    ValueError
        If there is no such method, or the server skipped the rounds that it needs.
    """
    method = str(context.run_config["method"])
    if method not in METHODS:
        raise ValueError(f"method must be one of {METHODS}, got {method!r}")
    images, private = share(context)
    if method == "plain":
        return images, torch.from_numpy(private.reports), plain_loss
    if method == "forward":
        return images, torch.from_numpy(private.likelihood()).float(), forward_loss
    targets = torch.from_numpy(_kept(context, "targets"))
    if len(targets) > len(images):
        images = data.of_client(context).images
    return images, targets, soft_target_loss


def _keep(context: Context, prior: NDArray[np.floating], targets: NDArray[np.floating]) -> None:
    kept = {"prior": prior, "targets": targets}
    record = {name: Array(value.astype(np.float32)) for name, value in kept.items()}
    context.state[STATE] = ArrayRecord(record)


def _kept(context: Context, name: str) -> NDArray[np.float32]:
    if STATE not in context.state:
        raise ValueError("no soft targets: this client was not there when priors were found")
    return np.asarray(context.state.array_records[STATE][name].numpy())
