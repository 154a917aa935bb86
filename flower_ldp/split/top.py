"""The server's half of a split model, in torch."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from flower_ldp.files import replacing
from flower_ldp.labels.losses import forward_loss
from flower_ldp.mechanisms.randomized_response import KaryResponse

Rows = NDArray[np.float32]


class TorchTop:
    """A top model over the parties' embeddings, laid side by side in the order of names.

    Parameters
    ----------
    module : Module
        From rows as wide as all embeddings together to one score for each class: shape
        (records, classes), or (records, classes, labels of a record).
    optimizer : callable
        Makes the optimizer from the parameters.
    loss : callable
        Of scores and labels, mean over records. :class:`ForwardCorrected` where the labels
        were randomized.
    """

    def __init__(
        self,
        module: nn.Module,
        optimizer: Callable[[Any], torch.optim.Optimizer] = torch.optim.Adam,
        loss: Callable[[Tensor, Tensor], Tensor] = nn.functional.cross_entropy,
    ) -> None:
        self.module = module
        self._optimizer = optimizer(module.parameters())
        self._loss = loss
        #: Name of the last step, which the strategy sets; a part of what is saved.
        self.at: str | None = ""

    def step(
        self, embeddings: Sequence[Rows], labels: NDArray[np.int64]
    ) -> tuple[float, list[Rows]]:
        """Move the top by one block; return the loss before, and each party's gradient."""
        inputs = [torch.tensor(rows, requires_grad=True) for rows in embeddings]
        self.module.train()
        loss = self._loss(self.module(torch.cat(inputs, 1)), torch.from_numpy(labels))
        value = loss.item()
        if not math.isfinite(value):
            raise FloatingPointError(f"the loss is {value}: lower the learning rate")
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()
        return value, [_gradient(rows) for rows in inputs]

    def predict(self, embeddings: Sequence[Rows]) -> NDArray[np.int64]:
        """Return the class with the largest score, for each label of each record."""
        return np.asarray(self._scores(embeddings).argmax(1).numpy(), dtype=np.int64)

    def loss(self, embeddings: Sequence[Rows], labels: NDArray[np.int64]) -> float:
        """Return the mean loss over all labels, in evaluation mode; the top learns nothing."""
        with torch.no_grad():
            return float(self._loss(self._scores(embeddings), torch.from_numpy(labels)))

    def _scores(self, embeddings: Sequence[Rows]) -> Tensor:
        self.module.eval()
        with torch.no_grad():
            scores: Tensor = self.module(torch.from_numpy(np.concatenate(embeddings, axis=1)))
        return scores

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write module, optimizer and step to a file, replaced as a whole."""
        state = {
            "module": self.module.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "at": self.at,
        }
        with replacing(Path(path)) as file:
            torch.save(state, file)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Read what :meth:`save` wrote."""
        state = torch.load(path, map_location="cpu", weights_only=True)
        self.module.load_state_dict(state["module"])
        self._optimizer.load_state_dict(state["optimizer"])
        self.at = state["at"]


class ForwardCorrected:
    """Cross-entropy for labels that went through k-ary randomized response.

    :func:`~flower_ldp.labels.losses.forward_loss` with the likelihood of this channel.

    Parameters
    ----------
    response : KaryResponse
        The channel.
    """

    def __init__(self, response: KaryResponse) -> None:
        self._keep = response.keep_probability
        self._other = (1.0 - self._keep) / (response.categories - 1)

    def __call__(self, scores: Tensor, labels: Tensor) -> Tensor:
        """Return the mean loss."""
        likelihood = torch.full_like(scores, self._other).scatter_(1, labels[:, None], self._keep)
        return forward_loss(scores, likelihood)


def _gradient(rows: Tensor) -> Rows:
    if rows.grad is None:
        return np.zeros(tuple(rows.shape), dtype=np.float32)
    return np.asarray(rows.grad.numpy())
