"""UnSplit (Erdogan, Kupcu and Cicek 2022): inputs and a surrogate bottom, guessed in turns.

The server knows the bottom's architecture and what was sent, and neither weights nor images. It
takes some steps on the images, with total variation and their square added to the loss, and then
as many on the surrogate, until the surrogate sends of the images what was sent. All images are
guessed together, under one surrogate.

The ``published`` attack has the authors' loss and start: squared error, images of 0.5, weights 0.1
and 1. The adapted one knows two things more.

- The channel. A bit's loss is the negative logarithm of its probability, where the bit before the
  noise is 1 with the probability sigmoid(h / 2). A code's loss is that of its report.
- The kind of images. MNIST's margin is black. Bits of an inverted image fit as well, under a
  surrogate of the other sign. Therefore several surrogates make a start, and the one whose images
  are brightest in the middle goes on.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from _split_targets import Cut
from numpy.typing import NDArray
from torch import Tensor, nn

from flower_ldp.mechanisms import UnaryEncoding

IMAGE_RATE, BOTTOM_RATE, TURN = 1e-2, 1e-3, 10
SLOPE, STARTS, FIRST_STEPS = 0.5, 6, 300
MARGIN, MIDDLE = 4, slice(7, 21)

Misfit = Callable[[Tensor, Tensor], Tensor]


class _Guess:
    """Images and a surrogate, with their optimizers."""

    def __init__(self, cut: Cut, sent: Tensor, seed: int, published: bool) -> None:
        torch.manual_seed(seed)
        self.surrogate = cut.new_bottom()
        self._sent = sent
        self._misfit = nn.functional.mse_loss if published else misfit_of(cut)
        self._variation, self._square = (0.1, 1.0) if published else _weights(cut)
        self._black = torch.zeros(28, 28, dtype=torch.bool)
        if not published:
            self._black[:] = True
            self._black[MARGIN:-MARGIN, MARGIN:-MARGIN] = False
        start = 0.5 if published else 0.05
        self.images = torch.full((len(sent), 1, 28, 28), start, requires_grad=True)
        self._of_images = torch.optim.Adam([self.images], IMAGE_RATE, amsgrad=True)
        parameters = self.surrogate.parameters()
        self._of_surrogate = torch.optim.Adam(parameters, BOTTOM_RATE, amsgrad=True)

    def improve(self, steps: int) -> None:
        """Take steps, half of them on the images."""
        for _ in range(max(1, steps // (2 * TURN))):
            for _ in range(TURN):
                loss = self._misfit(self.surrogate(self.images), self._sent)
                loss = loss + self._square * (self.images**2).mean()
                loss = loss + self._variation * _variation(self.images)
                (self.images.grad,) = torch.autograd.grad(loss, self.images)
                self._of_images.step()
                with torch.no_grad():
                    self.images.clamp_(0, 1).masked_fill_(self._black, 0)
            guessed = self.images.detach()
            for _ in range(TURN):
                self._of_surrogate.zero_grad()
                self._misfit(self.surrogate(guessed), self._sent).backward()
                self._of_surrogate.step()

    def middle(self) -> float:
        """Return how much brighter the middle of the images is than all of them."""
        found = self.images.detach()
        return float(found[..., MIDDLE, MIDDLE].mean() - found.mean())


def unsplit(
    cut: Cut, sent: Tensor, steps: int, seed: int, *, published: bool = False
) -> tuple[NDArray[np.float32], nn.Module]:
    """Guess the images behind releases; return them and the surrogate bottom.

    Parameters
    ----------
    cut : Cut
    sent : Tensor, shape (n, width)
        One release of each record.
    steps : int
        Of the surrogate that is kept, and its images.
    seed : int
        Of the surrogates' first weights.
    published : bool
        The authors' loss and start.

    Returns
    -------
    ndarray of float32, shape (n, 28, 28)
        In [0, 1].
    Module
    """
    if published:
        best = _Guess(cut, sent, seed, published)
        best.improve(steps)
    else:
        first = min(FIRST_STEPS, steps)
        guesses = [_Guess(cut, sent, STARTS * seed + at, published) for at in range(STARTS)]
        for guess in guesses:
            guess.improve(first)
        best = max(guesses, key=_Guess.middle)
        if steps > first:
            best.improve(steps - first)
    return np.asarray(best.images.detach()[:, 0].numpy()), best.surrogate


def _weights(cut: Cut) -> tuple[float, float]:
    """Return the weights of variation and square: trials chose more where there is more noise."""
    if cut.kind == "float":
        return 0.1, 0.0
    noisy = cut.kind == "bits" and cut.epsilon is not None and cut.epsilon < 2
    return (2.0, 0.3) if noisy else (0.3, 0.3)


def _variation(images: Tensor) -> Tensor:
    down = (images[..., 1:, :] - images[..., :-1, :]) ** 2
    across = (images[..., 1:] - images[..., :-1]) ** 2
    return down.mean() + across.mean()


def misfit_of(cut: Cut) -> Misfit:
    """Return the loss of a surrogate's embeddings and what was sent, from the known channel."""
    if cut.kind == "float":
        return nn.functional.mse_loss
    if cut.kind == "bits":
        keep = UnaryEncoding(cut.epsilon, cut.width).keep_probability

        def of_bits(embeddings: Tensor, sent: Tensor) -> Tensor:
            ones = (1 - keep) + (2 * keep - 1) * torch.sigmoid(SLOPE * embeddings)
            return nn.functional.binary_cross_entropy(ones.clamp(1e-6, 1 - 1e-6), sent)

        return of_bits
    channel = torch.from_numpy(cut.codebook().response.transition().astype(np.float32))

    def of_codes(scores: Tensor, sent: Tensor) -> Tensor:
        reports = nn.functional.softmax(scores, 1) @ channel
        return -((reports * sent).sum(1)).log().mean()

    return of_codes
