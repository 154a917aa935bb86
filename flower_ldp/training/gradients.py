"""Per-row gradients, the exact sum of clipped gradients, and its noise.

Clipped gradients are rounded to multiples of 2^-33 standard deviations. They and the noise are
added as integers, so low-order bits reveal nothing about the sum. Each row is a batch of one in an
isolated pass (:mod:`~flower_ldp.isolation`). Its gradient depends on this row, the weights and
public facts alone, to the last bit.
"""

import hashlib
import logging
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from flower_ldp.clients.diagnostics import cause_of
from flower_ldp.errors import ReleaseError, say
from flower_ldp.isolation import IsolatedPasses, Tensors
from flower_ldp.mechanisms.integer_noise import DEVIATION_BITS, normal
from flower_ldp.mechanisms.random import RandomSource
from flower_ldp.training.row_form import Row, batch_of_one
from flower_ldp.training.rows import Rows

_log = logging.getLogger("flower_ldp")

_MARGIN = 1e-5


#: Added to a gradient's length by automatic clipping, as by its authors.
_GAMMA = 0.01


def clipping_factor(norm: float, clip: float | None) -> float:
    """Return the factor of a gradient of this length; without a clip, for a length below 1."""
    return 1.0 / (norm + _GAMMA) if clip is None else min(1.0, clip / norm)


def grid_unit(noise: float, length: float, dimension: int) -> float:
    """Return the grid of a noisy sum: 2^-33 of the deviation, which covers the roundings."""
    grid = 2.0 * math.sqrt(dimension) * noise * 2.0**-DEVIATION_BITS
    margin = max(_MARGIN, 2e-9 + grid)
    return math.ldexp(noise * length * (1 + margin), -DEVIATION_BITS)


def noised_whole(whole: torch.Tensor, unit: float, rng: RandomSource) -> torch.Tensor:
    """Return a **private** int64 sum with noise, in double precision."""
    noise = torch.from_numpy(normal(whole.numel(), rng)).reshape(whole.shape)
    return (whole + noise).to(torch.float64) * unit


#: Of a model and one row, whose tensors are batches of one.
RowLoss = Callable[[Any, Any], Any]
_ADVICE = (
    ". Replace BatchNorm by GroupNorm (opacus.validators.ModuleValidator.fix does), or keep it in "
    "evaluation mode, where its averages are constant"
)
#: Entries of a gradient that are clipped and added at a time: they stay in a processor's cache.
_CHUNK = 1 << 15
#: Entropy of passes on the public row: they are compared with each other.
_FIXED = bytes(range(16))


class RowModel:
    """Computes a model for one row at a time; the model is unchanged after each use."""

    def __init__(
        self,
        model: nn.Module,
        measure: RowLoss,
        rows: Rows,
        fixed: Tensors,
        learning: Sequence[str] = (),
    ) -> None:
        for name, tensor in model.state_dict().items():
            if tensor.device.type != "cpu":
                raise ValueError(f"{name} is on {tensor.device}: private rows need the CPU")
        for name, layer in model.named_modules():
            if isinstance(layer, torch.jit.ScriptModule):
                raise ValueError(f"layer {name!r} is of TorchScript: give the module itself")
            if isinstance(layer, _BatchNorm) and (layer.training or layer.running_mean is None):
                raise ValueError(f"layer {name!r} uses the statistics of a batch{_ADVICE}")
        self._model, self._measure, self._rows, self._fixed = model, measure, rows, fixed
        self._learns = dict(model.named_parameters())
        self._learning = tuple(learning)
        parameters = [self._learns[name] for name in learning]
        if len({one.dtype for one in parameters}) > 1:
            raise ValueError("parameters that learn must have one dtype")
        dtype = parameters[0].dtype if parameters else None
        self._gradient = torch.zeros(sum(one.numel() for one in parameters), dtype=dtype)
        views = self._gradient.split([one.numel() for one in parameters])
        self._parts = [view.view_as(one) for view, one in zip(views, parameters, strict=True)]
        self._before = b""
        #: Rows asked for and failed since the last line about them; whether a cause was logged.
        self._asked = self._failed = 0
        self._told = False

    def passes(self) -> IsolatedPasses:
        """Return the context in which rows are computed."""
        return IsolatedPasses(self._model, self._measure)

    def row(self, passes: IsolatedPasses, weights: Tensors, index: int) -> torch.Tensor | None:
        """Return a **private** row's result, valid until the next row; None if it fails."""
        self._asked += 1
        try:
            passes.begin({**self._fixed, **weights})
            found = self._computed(self._rows.read(index))
            if self._rows.strict and not found.isfinite().all():
                raise ValueError("what comes of a row is not finite")
            return found
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # a row that exits is a row that fails
            if self._rows.strict:
                raise
            self._failed += 1
            if not self._told:
                say(_log, logging.WARNING, "a row counts as zero: %s", cause_of(error))
            self._told = True
            return None

    def log_failed(self) -> None:
        """Log how many of the rows since the last call failed; the owner's log has one cause."""
        if self._failed:
            text = "%d of %d rows count as zero"
            say(_log, logging.WARNING, text, self._failed, self._asked)
        self._asked = self._failed = 0

    def check(self, weights: Tensors) -> None:
        """Run the model on the public row; raise ValueError if it fails or a buffer changes."""
        with self.passes() as passes:
            try:
                passes.begin({**self._fixed, **weights}, _FIXED)
                self._computed(self._rows.like)
                changed = _contents(self._model)
                self._before = self._shown(passes)
            except Exception as error:
                raise ValueError(
                    f"the model or what is measured fails on the public row: "
                    f"{type(error).__name__}: {error}"
                ) from error
            passes.begin({**self._fixed, **weights}, _FIXED)
            names = sorted({name for name, _ in changed ^ _contents(self._model)})
        if names:
            raise ValueError(
                f"a pass changes buffers, which no noise protects: {', '.join(names)}{_ADVICE}"
            )

    def check_nothing_kept(self, passes: IsolatedPasses) -> None:
        """Raise ReleaseError unless the public row gives the same bits as in :meth:`check`.

        With the app's own weights: the server could send some that hide a kept state.
        """
        try:
            after = self._shown(passes)
        except Exception:
            after = None
        if after != self._before:
            raise ReleaseError(
                "the model, the loss or the data keep something of a row: the public row gives "
                "other numbers after private rows than before. Keep no state outside of the model"
            )

    def _shown(self, passes: IsolatedPasses) -> bytes:
        passes.begin(entropy=_FIXED)
        digest = hashlib.blake2b()

        def show(*given: Any) -> None:
            for one in given[-1] if isinstance(given[-1], (tuple, list)) else given[-1:]:
                with suppress(Exception):  # no tensor of memory, as one in vmap
                    digest.update(_bits(one).numpy().data)

        for layer in self._model.modules():  # the next pass has no hooks of this one
            layer.register_forward_hook(show)
        show(self._computed(self._rows.like, show))
        return digest.digest()

    def _computed(self, row: Row, show: Callable[..., None] | None = None) -> torch.Tensor:
        value = torch.as_tensor(self._measure(self._model, batch_of_one(row))).sum()
        if show is not None:
            show(value)
        if not self._learning:
            return torch.tensor([float(value)], dtype=torch.float64)
        value.backward()
        for name, part in zip(self._learning, self._parts, strict=True):
            found = self._learns[name].grad
            if found is None:
                part.zero_()
            elif found.shape == part.shape:
                part.copy_(found.to_dense() if found.is_sparse else found)
            else:
                raise ValueError(f"{name} has another shape after the pass: {tuple(found.shape)}")
        return self._gradient


def _contents(model: nn.Module) -> set[tuple[str, tuple[object, ...]]]:
    return {
        (name, (one.dtype, one.shape, _bits(one).numpy().tobytes()))
        for name, one in model.named_buffers()
    }


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)


class ClippedSum:
    """Sum of examples' clipped gradients, in multiples of the noise's grid.

    Each gradient is rounded by itself, so an example changes no bit of what others add.
    """

    def __init__(self, size: int, clip: float | None, unit: float) -> None:
        self._clip, self._unit = clip, unit
        #: **Private**: int64, shape (size,).
        self.total = torch.zeros(size, dtype=torch.int64)
        self._scaled = torch.empty(min(size, _CHUNK), dtype=torch.float64)
        self._whole = torch.empty(min(size, _CHUNK), dtype=torch.int64)

    def add(self, gradient: torch.Tensor) -> None:
        """Clip and add an example's gradient, unless its length is zero or not finite."""
        norm = length(gradient)
        if not 0.0 < norm < math.inf:
            return
        scale = clipping_factor(norm, self._clip) / self._unit
        for start in range(0, len(gradient), _CHUNK):
            entries = gradient[start : start + _CHUNK]
            scaled, whole = self._scaled[: len(entries)], self._whole[: len(entries)]
            scaled.copy_(entries).mul_(scale).round_()
            self.total[start : start + _CHUNK] += whole.copy_(scaled)


def length(gradient: torch.Tensor) -> float:
    """Return the Euclidean length of a vector, in double precision."""
    parts = gradient.split(_CHUNK)
    return math.hypot(*(float(torch.linalg.vector_norm(p, dtype=torch.float64)) for p in parts))


class StepSum:
    """Sum of a step: for each example the clipped sum over its rows."""

    def __init__(self, model: RowModel, clip: float | None, unit: float) -> None:
        self._model, self._clip, self._unit = model, clip, unit

    def __call__(self, weights: Tensors, examples: Sequence[Sequence[int]]) -> torch.Tensor:
        """Return the sum over examples, given by row indices: int64, shape (d,)."""
        clipped = ClippedSum(sum(one.numel() for one in weights.values()), self._clip, self._unit)
        with self._model.passes() as passes:
            for rows in examples:
                clipped.add(self._example(passes, weights, rows))
            self._model.check_nothing_kept(passes)
        self._model.log_failed()
        return clipped.total

    def _example(
        self, passes: IsolatedPasses, weights: Tensors, rows: Sequence[int]
    ) -> torch.Tensor:
        if len(rows) == 1:  # nothing to add: no copy either
            found = self._model.row(passes, weights, rows[0])
            return torch.zeros(1) if found is None else found
        total: torch.Tensor | None = None
        for index in rows:
            found = self._model.row(passes, weights, index)
            if found is not None and length(found) < math.inf:
                total = found.clone() if total is None else total.add_(found)
        return torch.zeros(1) if total is None else total
