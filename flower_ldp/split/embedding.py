r"""The cut layer as a torch module: quantize, randomize, and let the gradient through.

Forward: bits [h > 0], each kept with probability :math:`e^{\epsilon/2}/(e^{\epsilon/2}+1)`, by
the exact sampler of :class:`~flower_ldp.mechanisms.UnaryEncoding`, which also states what a
release costs. Backward: the straight-through estimator (Hubara et al. 2016): the gradient
passes unchanged where :math:`|h| \le 1` and is 0 elsewhere.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from flower_ldp.mechanisms.embeddings import UnaryEncoding
from flower_ldp.mechanisms.random import RandomSource


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
