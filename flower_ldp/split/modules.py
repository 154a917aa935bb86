r"""Torch modules of a split model: the cut layer, the server's half, and its loss.

The cut layer quantizes, randomizes, and lets the gradient through.

Forward: bits [h > 0], each kept with probability :math:`e^{\epsilon/2}/(e^{\epsilon/2}+1)`, by
the exact sampler of :class:`~flower_ldp.mechanisms.UnaryEncoding`, which also states what a
release costs. Backward: the straight-through estimator (Hubara et al. 2016): the gradient
passes unchanged where :math:`|h| \le 1` and is 0 elsewhere.
"""

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
from flower_ldp.mechanisms.embeddings import UnaryEncoding
from flower_ldp.mechanisms.random import RandomSource
from flower_ldp.mechanisms.randomized_response import KaryResponse
from flower_ldp.strategies.split_tops import Top

Rows = NDArray[np.float32]


class EmbeddingDP(nn.Module):
    """Randomized one-bit embeddings with a straight-through gradient.

    It has no parameters and no buffers, so it may be put into and taken out of a model
    without a change to its state dict. Noise is drawn in evaluation mode too, with a fresh
    key from the operating system at every call; ``torch.manual_seed`` has no hold on it.

    Parameters
    ----------
    eps : float or None
        The published label, in [0, 100]: epsilon of a one-hot row. A record of m free bits
        costs ``m * eps / 2`` each time it is released. None quantizes only; 0 sends fair
        coins.
    one_hot : bool
        Whether each record has exactly one positive entry; one that has not is made so, at a
        uniform place.

    Raises
    ------
    ValueError
        If ``eps`` is outside its interval.

    Examples
    --------
    >>> import torch
    >>> EmbeddingDP()(torch.tensor([0.3, -0.2, 0.0]))
    tensor([1., 0., 0.])
    """

    def __init__(self, eps: float | None = None, *, one_hot: bool = False) -> None:
        super().__init__()
        UnaryEncoding(eps, 1, one_hot)  # checks eps
        self.eps = eps
        self.one_hot = one_hot

    def mechanism(self, bits: int) -> UnaryEncoding:
        """Return the randomizer of embeddings of that length: its law and its price."""
        return UnaryEncoding(self.eps, bits, self.one_hot)

    def forward(self, h: Tensor) -> Tensor:
        """Return randomized bits as 0.0 and 1.0.

        Parameters
        ----------
        h : Tensor of floating point, shape (m,) or (n, m)
            Never changed.

        Returns
        -------
        Tensor
            Shape, dtype and device of ``h``.

        Raises
        ------
        ValueError
            If the shape is another, which is the model's and no fact about a record. An entry
            that is NaN becomes a fair bit, and a record that is not one-hot where that was
            promised one whose place is uniform.
        TypeError
            If ``h`` is not of floating point.
        """
        if not h.is_floating_point():
            raise TypeError(f"h must be of floating point, got {h.dtype}")
        if h.ndim not in (1, 2) or h.shape[-1] == 0:
            raise ValueError(f"h must have shape (m,) or (n, m), got {tuple(h.shape)}")
        found: Tensor = _StraightThrough.apply(h, self.mechanism(h.shape[-1]))  # type: ignore[no-untyped-call]
        return found

    def extra_repr(self) -> str:
        """Show the label and whether rows are one-hot."""
        return f"eps={self.eps}" + (", one_hot=True" if self.one_hot else "")


class _StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, h: Tensor, mechanism: UnaryEncoding) -> Tensor:
        ctx.save_for_backward(h.detach().abs() <= 1)
        # numpy has no bfloat16; every float that torch has is exact in float64
        values = h.detach().to("cpu", torch.float64).numpy()
        bits = mechanism.randomize(values, RandomSource.from_os())
        return torch.from_numpy(bits).to(device=h.device, dtype=h.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (gradient,) = gradients
        (open_,) = ctx.saved_tensors
        return gradient * open_, None


class TorchTop(Top):
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
        found = [torch.zeros_like(rows) if rows.grad is None else rows.grad for rows in inputs]
        return value, [gradient.numpy() for gradient in found]

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
        module, optimizer = self.module.state_dict(), self._optimizer.state_dict()
        state = {"module": module, "optimizer": optimizer, "at": self.at}
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
