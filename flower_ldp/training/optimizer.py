r"""DP-SGD's step, with the sum in double precision and noise that is exact.

Opacus computes the gradient of each example; this replaces what follows. Opacus adds up in
single precision and draws noise in floating point from torch's generator, which is no
cryptographic one (its ``secure_mode`` needs the package torchcsprng, which has no release for
current torch). Here

1. each example's gradient, over all parameters together, is scaled to length C at most and the
   scaled gradients are added up, all in double precision. An example whose gradient is not finite
   counts as zero, so that it neither spoils the model nor stops the training;
2. the sum is put on a grid of 2^-33 standard deviations, and whole normal numbers
   (:mod:`flower_ldp.mechanisms.sampling.discrete_gaussian`) are added as integers. So low-order
   bits of a noisy gradient tell nothing about the sum (Mironov, "On Significance of the Least
   Significant Bits for Differential Privacy", 2012).

**One draw, one step.** A step ends the turn that the loader opened when it drew the batch
(:mod:`~flower_ldp.training.draws`), and is counted, before anything else is computed: also if
what follows fails. Each sum is noised once, and gradients are used once.

**Roundings.** An example moves the rounded sum of B rows by at most
:math:`C (1 + 10^{-9} + 2^{-52} B^2) + \sqrt{d}\, 2^{-33} \sigma C` for d parameters. The noise is
:math:`1 + 10^{-5}` times what is accounted for, which covers that up to 10^5 expected rows and
d = 10^8 with :math:`\sigma \le 4`, or d = 10^6 with :math:`\sigma \le 40`; otherwise a larger
factor is taken.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NoReturn

import torch
from opacus.optimizers import DPOptimizer

from flower_ldp.errors import ReleaseError
from flower_ldp.mechanisms.random import RandomSource
from flower_ldp.training.draws import Draws
from flower_ldp.training.noise import clip_factors, grid_unit, noised


class ExactDPOptimizer(DPOptimizer):  # type: ignore[misc]  # Opacus has no types
    """Opacus's optimizer with exact noise, for a stated number of steps.

    Parameters
    ----------
    optimizer : torch.optim.Optimizer
        What takes the noisy gradients.
    noise_multiplier : float
        Standard deviation of the noise over ``max_grad_norm``.
    max_grad_norm : float
        C, the length that examples' gradients are clipped to.
    expected_batch_size : int
        What the noisy sum is divided by.
    steps : int
        How many steps are paid for. A further one is refused.
    draws : Draws
        The loader's and the model's.
    check : callable, optional
        Called before each step; raises if the step must not be taken.
    rng : RandomSource, optional
        A fresh one if left out.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        *,
        noise_multiplier: float,
        max_grad_norm: float,
        expected_batch_size: int,
        steps: int,
        draws: Draws,
        check: Callable[[], None] | None = None,
        rng: RandomSource | None = None,
    ) -> None:
        super().__init__(
            optimizer,
            noise_multiplier=noise_multiplier,
            max_grad_norm=max_grad_norm,
            expected_batch_size=expected_batch_size,
        )
        self._steps_left = steps
        self._draws, self._check = draws, check
        self._terms = self._current_terms()
        dimension = sum(p.numel() for p in self.params)
        self._unit = grid_unit(noise_multiplier, max_grad_norm, expected_batch_size, dimension)
        self._rng = RandomSource.from_os() if rng is None else rng
        self._stepping = False
        self._guard = optimizer.register_step_pre_hook(self._refuse_unless_stepping)

    @property
    def steps_left(self) -> int:
        """How many steps are paid for and not taken."""
        return self._steps_left

    @property
    def draws(self) -> Draws:
        """The training's: which batch may be learned from."""
        return self._draws

    @property
    def unit(self) -> float:
        """Grid of the noisy sum: 2^-33 of the noise's standard deviation."""
        return self._unit

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError("a private optimizer cannot be copied: both would take the paid steps")

    def release(self) -> None:
        """Let the given optimizer step by itself again, and take no further step here."""
        self._steps_left = 0
        self._guard.remove()

    def signal_skip_step(self, do_skip: bool = True) -> NoReturn:
        """Refuse: a step sums one batch, in which no example occurs twice."""
        raise NotImplementedError("a batch cannot be cut into several here: use smaller batches")

    def step(self, closure: Any = None) -> Any:
        """Take one noisy step.

        Raises
        ------
        ReleaseError
            If all steps that were paid for have been taken; or no batch was drawn since the
            last step and passed through the model and back once; or its gradients have another
            number of rows; or noise, clipping or parameters are not those that were paid for.
        ValueError
            If gradients of several batches have gathered (``zero_grad`` was left out).
        """
        if self._steps_left < 1:
            raise ReleaseError("all steps that were paid for have been taken")
        self._stepping = True
        try:
            return super().step(closure)
        finally:
            self._stepping = False

    def pre_step(self, closure: Any = None) -> bool:
        """Put a noisy gradient in place of the examples'."""
        self.clip_and_accumulate()
        self.add_noise()
        self.scale_grad()
        known = {id(p) for p in self.params}
        for p in (p for group in self.param_groups for p in group["params"]):
            if id(p) not in known:
                p.grad = None  # frozen, with a gradient from elsewhere: it has no noise
        if self.step_hook:
            self.step_hook(self)
        return True

    def clip_and_accumulate(self) -> None:
        """Count a step, clip each example's gradient and add them up, in double precision."""
        samples = self._taken()
        norms = self._norms(samples)
        factors = clip_factors(norms, self.max_grad_norm)
        finite = norms.isfinite()
        for p, sample in zip(self.params, samples, strict=True):
            rows = _rows(sample)
            if not finite.all():
                # a factor of zero is not enough: 0 * inf is not a number
                rows = rows.where(finite.to(rows.device)[:, None], 0.0)
            total = factors.to(rows.device) @ rows.to(torch.float64)
            p.summed_grad = total.reshape(p.shape)

    def _taken(self) -> list[torch.Tensor]:
        """Take the examples' gradients away and count a step, or refuse."""
        if self._steps_left < 1:
            raise ReleaseError("all steps that were paid for have been taken")
        if self._current_terms() != self._terms:
            raise ReleaseError("noise, clipping or parameters are not those that were paid for")
        if self._check is not None:
            self._check()
        found = [getattr(p, "grad_sample", None) for p in self.params]
        if any(isinstance(sample, list) for sample in found):
            raise ValueError("gradients of several batches: call zero_grad() before each batch")
        samples = [sample for sample in found if sample is not None]
        if len(samples) < len(found):
            raise ReleaseError(
                "no fresh gradients of the examples for every parameter: each step needs a newly "
                "drawn batch, one pass through the model and one back"
            )
        if len({len(sample) for sample in samples}) != 1:
            raise ValueError("every parameter must see the same examples")
        self._draws.taken(len(samples[0]))
        self._steps_left -= 1
        for p in self.params:
            p.grad_sample = None
        return samples

    def _current_terms(self) -> tuple[Any, ...]:
        numbers = (self.noise_multiplier, self.max_grad_norm, self.expected_batch_size)
        return (*numbers, [id(p) for p in self.params])

    def _refuse_unless_stepping(self, *_: Any) -> None:
        if not self._stepping:
            raise ReleaseError("the given optimizer has no noise: step the one of the training")

    @staticmethod
    def _norms(samples: list[torch.Tensor]) -> torch.Tensor:
        """Return each example's norm over all parameters; infinite or NaN if an entry is."""
        parts = [
            torch.linalg.vector_norm(_rows(sample), dim=1, dtype=torch.float64)
            for sample in samples
        ]
        gathered = torch.stack([part.to(parts[0].device) for part in parts])
        norms: torch.Tensor = torch.linalg.vector_norm(gathered, dim=0)
        return norms

    def add_noise(self) -> None:
        """Add exact noise to the sum on its grid, as integers, and forget the sum."""
        if any(p.summed_grad is None for p in self.params):
            raise ReleaseError("there is no sum of gradients that has not been noised")
        for p in self.params:
            total, p.summed_grad = p.summed_grad, None
            p.grad = noised(total, self.unit, self._rng).to(p.device, p.dtype)

    def scale_grad(self) -> None:
        """Divide by the mean size of a batch, which is public."""
        for p in self.params:
            p.grad /= self.expected_batch_size


def _rows(sample: torch.Tensor) -> torch.Tensor:
    """Return gradients as rows, one for an example, also if there are none."""
    return sample.reshape(len(sample), math.prod(sample.shape[1:]))
