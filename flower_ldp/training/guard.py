"""A model that learns from each drawn batch once, and keeps nothing of it but by its gradients."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from opacus import GradSampleModule
from opacus.validators import ModuleValidator
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from flower_ldp.errors import ReleaseError
from flower_ldp.training.batches import mapped, tensors
from flower_ldp.training.draws import Draws

# Rows of made-up input on which a model is tried: one is changed, the others are watched.
_ROWS = 3


def problems(model: nn.Module) -> list[str]:
    """Return why a model's layers cannot be trained by DP-SGD; empty if they can."""
    found = [str(error) for error in ModuleValidator.validate(model, strict=False)]
    found += [str(error) for error in GradSampleModule.validate(model, strict=False)]
    for name, layer in model.named_modules():
        # Those without weights of their own too, which Opacus passes over.
        mixes = isinstance(layer, _BatchNorm) and (layer.training or not layer.track_running_stats)
        keeps = isinstance(layer, _InstanceNorm) and layer.training and layer.track_running_stats
        if mixes or keeps:
            found.append(f"layer {name!r} ({type(layer).__name__}) gathers statistics of a batch")
    return found


class GuardedModel(GradSampleModule):  # type: ignore[misc]  # Opacus has no types
    """Opacus's model, for one training pass per drawn batch.

    Each training pass (in training mode, with gradients) uses the batch's turn. Before the
    first, the model is tried on made-up rows: changing one must not change another's output.
    After each pass, whatever the mode, buffers and parameters must be what they were.
    Gradients summed over a batch, which autograd leaves in ``grad``, are dropped: they are
    neither clipped nor noised, and another optimizer would learn from them.

    Parameters
    ----------
    model : torch.nn.Module
        It is changed in place; ``to_standard_module`` gives it back as it was.
    draws : Draws
        The training's.
    """

    def __init__(self, model: nn.Module, draws: Draws) -> None:
        super().__init__(model)
        self._draws = draws
        self._tried = False
        self._learning = {name for name, p in model.named_parameters() if p.requires_grad}
        self._kept = {name: value.detach().clone() for name, value in _fixed(model).items()}
        self._given: dict[str, torch.Tensor] = {}
        self._guards = [
            model.register_forward_pre_hook(self._before, with_kwargs=True),
            model.register_forward_hook(self._after, always_call=True),
            *(
                p.register_post_accumulate_grad_hook(_drop_gradient)
                for p in model.parameters()
                if p.requires_grad
            ),
        ]

    def check_unchanged(self) -> None:
        """Put buffers and frozen parameters back to what they were, and refuse if they differed.

        Raises
        ------
        ReleaseError
            If training changed one: it would carry data out past the noise.
        """
        changed = self._chosen_anew()
        kept_values = {**self._given, **self._kept}
        for name, value in {**_fixed(self._module), **self._passing()}.items():
            kept = kept_values.get(name)
            if kept is None:
                owner, _, leaf = name.rpartition(".")
                delattr(self._module.get_submodule(owner), leaf)  # it came with the data
                changed.append(name)
            elif value.shape != kept.shape or not torch.equal(
                value, kept.to(value.device, value.dtype)
            ):
                value.data = kept.to(value.device, value.dtype, copy=True)
                changed.append(name)
        if changed:
            raise ReleaseError(
                "training changed what no noise protects (buffers or frozen parameters), which "
                f"has been undone: {', '.join(sorted(set(changed)))}"
            )

    def _chosen_anew(self) -> list[str]:
        """Let learn what learned at first and nothing else, and return what differed."""
        changed = []
        for name, p in self._module.named_parameters():
            if p.requires_grad != (name in self._learning) and (
                name in self._learning or name in self._kept
            ):
                p.requires_grad_(name in self._learning)
                p.grad = None
                changed.append(name)
        return changed

    def _passing(self) -> dict[str, torch.Tensor]:
        """Return the parameters, during a pass: only the optimizer may change them."""
        return dict(self._module.named_parameters()) if self._given else {}

    def cleanup(self) -> None:
        """Remove all hooks, Opacus's too."""
        for guard in self._guards:
            guard.remove()
        super().cleanup()

    def _before(self, model: nn.Module, given: Any, named: Any) -> None:
        self._given = {name: p.detach().clone() for name, p in model.named_parameters()}
        if not (model.training and torch.is_grad_enabled()):
            return
        self._draws.passed()
        self._forget_passes()
        if not self._tried:
            _try_rows(model, given, named)
            self.check_unchanged()
            self._tried = True

    def _after(self, _model: nn.Module, _given: Any, _output: Any) -> None:
        try:
            self.check_unchanged()
        finally:
            self._given = {}

    def _forget_passes(self) -> None:
        """Drop what Opacus keeps of passes that were given up, or rows of two would be one."""
        for layer in self._module.modules():
            layer.__dict__.pop("activations", None)
            layer.__dict__.pop("max_batch_len", None)
        for p in self._module.parameters():
            if hasattr(p, "_forward_counter"):
                p._forward_counter = 0
                p.__dict__.pop("_current_grad_sample", None)


def _fixed(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return what training has to leave alone: buffers and frozen parameters."""
    frozen = {name: p for name, p in model.named_parameters() if not p.requires_grad}
    return {**frozen, **dict(model.named_buffers())}


def _drop_gradient(parameter: torch.Tensor) -> None:
    parameter.grad = None


def _try_rows(model: nn.Module, given: Any, named: Any) -> None:
    """Refuse a model in which one row of made-up input has an effect on another's output.

    Raises
    ------
    ReleaseError
        If one has, or the model does not take such input.
    """
    devices = {tensor.device for tensor in model.parameters() if tensor.device.type == "cuda"}
    outputs = []
    with torch.no_grad(), torch.random.fork_rng(sorted(device.index for device in devices)):
        for first in (False, True):
            torch.manual_seed(0)  # dropout and the like are the same in both
            try:
                change = partial(_made_up, changed=first)
                rows, named_rows = mapped((given, named), change, lambda other: other)
                torch.manual_seed(0)
                outputs.append(tensors(model.forward(*rows, **named_rows), lambda other: other))
            except Exception as error:
                raise ReleaseError(
                    f"the model cannot be tried on {_ROWS} made-up rows, to see whether it mixes "
                    f"examples: {type(error).__name__}: {error}"
                ) from error
    for one, other in zip(*outputs, strict=True):
        alone = one.ndim == 0 or len(one) != _ROWS  # not by rows: nothing to be seen
        if not (alone or torch.allclose(one[1:], other[1:], rtol=1e-3, atol=1e-5, equal_nan=True)):
            raise ReleaseError("the model mixes the rows of a batch: each must stand alone")


def _made_up(like: torch.Tensor, changed: bool) -> torch.Tensor:
    """Return rows of the given kind: numbers in [0, 1), or zeros; the first may be another."""
    shape = (_ROWS, *like.shape[1:])
    if like.is_floating_point() or like.is_complex():
        rows = torch.rand(shape, dtype=like.dtype, device=like.device)
        first = 3 * torch.rand(shape[1:], dtype=like.dtype, device=like.device) - 1
    else:
        rows = torch.zeros(shape, dtype=like.dtype, device=like.device)
        first = torch.ones(shape[1:], dtype=like.dtype, device=like.device)
    if changed:
        rows[0] = first
    return rows
