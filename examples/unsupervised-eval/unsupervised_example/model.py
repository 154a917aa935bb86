r"""An autoencoder whose code is a clustering: one of ten clusters, with a probability each.

The encoder is a multilayer perceptron with a softmax, :math:`q(j | x)`; the decoder holds one
image :math:`m_j` for each cluster. The loss of an image x of D pixels is the negative evidence
lower bound of a variational autoencoder with a categorical code (Kingma and Welling 2014, with the
sum over codes in place of a sample):

.. math:: L(x) = \sum_j q(j | x) \left( \frac{s}{D} \lVert x - m_j \rVert^2
                 + \log q(j | x) \right) + \log 10.

No term needs other images, as the target distribution of deep embedded clustering does, so a
client with a handful of images can train.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from sklearn.cluster import KMeans
from torch import nn

CLUSTERS = 10
_HIDDEN = 32


class ClusteringAutoencoder(nn.Module):
    """Encoder from images to cluster probabilities, decoder from clusters to images.

    Parameters
    ----------
    side : int
        Width and height of an image; above 16 it is halved first. 3,050 parameters for 8 x 8
        images, 8,594 for 28 x 28.
    sharpness : float
        Weight s of the error, in nats.
    """

    def __init__(self, side: int, sharpness: float) -> None:
        super().__init__()
        self.pool = nn.AvgPool2d(2) if side > 16 else nn.Identity()
        pixels = (side // 2 if side > 16 else side) ** 2
        self.sharpness = sharpness
        self.encoder = nn.Sequential(
            nn.Linear(pixels, _HIDDEN), nn.ReLU(), nn.Linear(_HIDDEN, CLUSTERS)
        )
        self.decoder = nn.Linear(CLUSTERS, pixels, bias=False)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return cluster probabilities, shape (n, 10), of images, shape (n, 1, side, side)."""
        return torch.softmax(self.encoder(self.pixels(images)), dim=1)

    def pixels(self, images: torch.Tensor) -> torch.Tensor:
        """Return what is encoded and rebuilt, shape (n, pixels)."""
        return self.pool(images).flatten(1)

    def losses(self, images: torch.Tensor) -> torch.Tensor:
        """Return the loss of each image, in nats."""
        pixels = self.pixels(images)
        log_q = torch.log_softmax(self.encoder(pixels), dim=1)
        errors = (pixels[:, None] - self.decoder.weight.T).square().mean(dim=2)
        return (log_q.exp() * (self.sharpness * errors + log_q)).sum(dim=1) + math.log(CLUSTERS)


def initial(public: torch.Tensor, sharpness: float, seed: int) -> ClusteringAutoencoder:
    """Return a model whose decoder holds the centres of k-means on public images.

    The encoder is random: it knows nothing of the clusters yet.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = ClusteringAutoencoder(int(public.shape[-1]), sharpness)
    means = KMeans(CLUSTERS, n_init=10, random_state=seed).fit(net.pixels(public).numpy())
    with torch.no_grad():
        net.decoder.weight.copy_(torch.tensor(means.cluster_centers_.T))
    return net


def predict(net: ClusteringAutoencoder, images: torch.Tensor) -> NDArray[np.float32]:
    """Return cluster probabilities, shape (n, 10)."""
    with torch.inference_mode():
        return net(images).numpy()


def predictions_and_losses(
    net: ClusteringAutoencoder, images: torch.Tensor
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return cluster probabilities, shape (n, 10), and losses, shape (n,)."""
    with torch.inference_mode():
        return predict(net, images), net.losses(images).numpy()


def prediction_and_loss(
    net: ClusteringAutoencoder, images: torch.Tensor
) -> tuple[NDArray[np.float32], float]:
    """Return what a client is asked for: one row, of its first image, and its mean loss."""
    rows, losses = predictions_and_losses(net, images)
    return rows[:1], float(losses.mean())


def clustering_accuracy(clusters: NDArray[np.int64], labels: NDArray[np.int64]) -> float:
    """Return the fraction of images in the right cluster, clusters named as fits best."""
    together = np.zeros((CLUSTERS, CLUSTERS), dtype=np.int64)
    np.add.at(together, (clusters, labels), 1)
    rows, columns = linear_sum_assignment(together, maximize=True)
    return float(together[rows, columns].sum() / len(labels))


def save(net: ClusteringAutoencoder, path: Path) -> None:
    """Write the weights of a round."""
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **{name: value.numpy() for name, value in net.state_dict().items()})


def restore(net: ClusteringAutoencoder, path: Path) -> None:
    """Read the weights of a round into a model."""
    with np.load(path) as file:
        net.load_state_dict({name: torch.tensor(file[name]) for name in file.files})
