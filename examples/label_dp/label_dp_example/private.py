"""Where true labels end: the one function that reads them, and what is made of its reports."""

from __future__ import annotations

import numpy as np
import torch
from flwr.app import Context
from numpy.typing import NDArray
from torch import Tensor

from flower_ldp.clients import private_labels
from flower_ldp.labels import group_counts, posterior
from flower_ldp.labels.clusters import nearest
from flower_ldp.labels.losses import forward_loss, plain_loss, soft_target_loss
from flower_ldp.mechanisms import KaryResponse
from flower_ldp.privacy import Unit
from label_dp_example import data
from label_dp_example.model import Loss

METHODS = ("plain", "forward", "local-priors")
#: Of the soft targets in the client's own state, which Flower keeps between messages of a run.
STATE = "label-dp-targets"


def response(context: Context) -> KaryResponse:
    """Return what randomizes labels; whether it may is for the data owner's policy to say."""
    return KaryResponse(float(context.run_config["epsilon"]), data.CATEGORIES, unit=Unit.LABEL)


def share(context: Context) -> tuple[Tensor, NDArray[np.int64]]:
    """Return this client's images and its **randomized** labels.

    The first call randomizes and pays. Every later one, in this run or another, returns the
    same reports from the ledger.
    """
    mine = data.of_client(context)
    private = private_labels(context, mine.labels, mechanism=response(context))
    return mine.images, private.reports


def groups(images: Tensor, centers: NDArray[np.float32]) -> list[NDArray[np.int64]]:
    """Return the nearest center of each image, for each clustering."""
    return [nearest(images.flatten(1).numpy(), some) for some in centers]


def counts(context: Context, centers: NDArray[np.float32]) -> NDArray[np.int64]:
    """Count the randomized labels in each cluster: shape (clusterings, clusters, 10)."""
    images, reports = share(context)
    return np.stack(
        [
            group_counts(reports, members, centers.shape[1], data.CATEGORIES)
            for members in groups(images, centers)
        ]
    )


def soft_targets(
    context: Context, centers: NDArray[np.float32], priors: NDArray[np.float64]
) -> NDArray[np.float32]:
    """Return P(label | report, clusters of the image), shape (n, 10)."""
    images, reports = share(context)
    members = groups(images, centers)
    prior = np.mean([some[where] for some, where in zip(priors, members, strict=True)], axis=0)
    return posterior(response(context).likelihood(reports), prior).astype(np.float32)


def task(context: Context) -> tuple[Tensor, Tensor, Loss]:
    """Return the images, what to train for, and the loss, as the run's method says.

    Raises
    ------
    ValueError
        If there is no such method, or the server skipped the rounds that it needs.
    """
    method = str(context.run_config["method"])
    images, reports = share(context)
    if method == "plain":
        return images, torch.from_numpy(reports), plain_loss
    if method == "forward":
        likelihood = response(context).likelihood(reports)
        return images, torch.from_numpy(likelihood).float(), forward_loss
    if method != "local-priors":
        raise ValueError(f"method must be one of {METHODS}, got {method!r}")
    if STATE not in context.state:
        raise ValueError("no soft targets: this client was not there when priors were found")
    targets = context.state.array_records[STATE]["targets"].numpy()
    return images, torch.from_numpy(targets), soft_target_loss
