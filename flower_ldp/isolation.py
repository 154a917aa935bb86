"""Passes of a model that leave nothing behind for the next one.

A pass computes a model on one row. Before each pass everything that an earlier pass could have
changed is reset:

- parameters and buffers are copies in new memory; attributes of the model's modules are bound as
  before, and tensors and plain containers among them (hooks too) are copies;
- torch uses one thread, gradients, no autocast, denormal numbers and the app's default dtype;
  warnings are ignored; TorchScript and ``torch.compile`` run without their optimizers, whose
  results change from call to call;
- the generators of torch, numpy and ``random`` get fresh entropy of the operating system
  (:mod:`~flower_ldp.generators`).

At the end all of it is restored. State in closures, or inside objects that attributes name, is not
covered: see docs/dpsgd_release.md.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, suppress
from functools import partial
from threading import RLock
from types import FunctionType, MappingProxyType, MethodType
from typing import Any

import numpy as np
import torch
import torch._dynamo  # now: importing it in a pass, or in another thread beside one, would fail it
from torch import nn

from flower_ldp.generators import Generators

Tensors = Mapping[str, torch.Tensor]
_NO_TENSORS: Tensors = MappingProxyType({})
#: Of what is not the model's.
_NO_NAME = "."
#: Attributes of modules that are copied for each pass.
_CONTAINERS = (dict, OrderedDict, list, set, deque)


def _flushes_denormals() -> bool:
    return not bool(torch.tensor(1e-310, dtype=torch.float64) * 0.5)


def _autocast_nesting() -> int:
    level: int = torch.autocast_increment_nesting() - 1
    torch.autocast_decrement_nesting()
    return level


def _set_autocast_nesting(level: int) -> None:
    found = _autocast_nesting()
    for _ in range(found, level):
        torch.autocast_increment_nesting()
    for _ in range(level, found):
        torch.autocast_decrement_nesting()


#: Of this thread: how a setting is read and written, and its value in a pass; None is as found.
_OF_THREAD: tuple[tuple[Callable[[], Any], Callable[[Any], Any], Any], ...] = (
    (torch.is_grad_enabled, torch.set_grad_enabled, True),
    (partial(torch.is_autocast_enabled, "cpu"), partial(torch.set_autocast_enabled, "cpu"), False),
    (torch.is_autocast_cache_enabled, torch.set_autocast_cache_enabled, None),
    (_autocast_nesting, _set_autocast_nesting, 0),
    (partial(torch.get_autocast_dtype, "cpu"), partial(torch.set_autocast_dtype, "cpu"), None),
    (_flushes_denormals, torch.set_flush_denormal, False),
    (torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly, False),
    (np.geterr, lambda found: np.seterr(**found), None),
    (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, None),
    (torch._C._get_mkldnn_enabled, torch._C._set_mkldnn_enabled, None),
    (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode, None),
)


class _OfProcess:
    """State of the process, as its generators: one thread at a time sets and restores it."""

    def __init__(self) -> None:
        self.forked()

    def forked(self) -> None:
        """Make a new lock: another thread may have held it during the fork."""
        self._lock = RLock()
        self._found: list[tuple[Any, ...]] = []

    @property
    def generators(self) -> Generators:
        """The generators, as the app has them."""
        found: Generators = self._found[-1][2]
        return found

    @property
    def dtype(self) -> torch.dtype:
        """The app's default dtype."""
        found: torch.dtype = self._found[0][0]
        return found

    def __enter__(self) -> None:
        self._lock.acquire()
        self._found.append((torch.get_default_dtype(), torch.get_num_threads(), Generators()))

    def __exit__(self, *_: object) -> None:
        dtype, threads, generators = self._found.pop()
        torch.set_default_dtype(dtype)
        torch.set_num_threads(threads)
        generators.restore()
        self._lock.release()


_process = _OfProcess()
if sys.platform != "win32":
    os.register_at_fork(after_in_child=_process.forked)


class IsolatedPasses:
    """A context in which a model is computed on one row at a time.

    Parameters
    ----------
    model : Module
        Restored when the context ends.
    *others : object
        Modules among these, such as a loss, are reset with it. So are modules that functions among
        these name.
    """

    def __init__(self, model: nn.Module, *others: object) -> None:
        self._model = model
        self._others = _modules(others)

    def __enter__(self) -> IsolatedPasses:
        # Names are of the model's own; a loss may hold the model, or share its weights.
        modules = {module: name for name, module in self._model.named_modules()}
        parameters = {p: name for name, p in self._model.named_parameters()}
        for other in self._others:
            modules |= dict.fromkeys(set(other.modules()) - modules.keys(), _NO_NAME)
            parameters |= dict.fromkeys(set(other.parameters()) - parameters.keys(), _NO_NAME)
        self._attributes = [(name, vars(one), dict(vars(one))) for one, name in modules.items()]
        self._parameters = [
            (name, p, p.data, p.grad, p.requires_grad) for p, name in parameters.items()
        ]
        self._found = [read() for read, _, _ in _OF_THREAD]
        self._contexts = ExitStack()
        self._contexts.enter_context(_process)
        self._contexts.enter_context(torch.jit.optimized_execution(False))  # type: ignore[attr-defined]
        self._contexts.enter_context(torch.compiler.set_stance("force_eager"))
        self._contexts.enter_context(warnings.catch_warnings())
        return self

    def begin(self, tensors: Tensors = _NO_TENSORS, entropy: bytes | None = None) -> None:
        """Set everything anew for a pass.

        Parameters
        ----------
        tensors : mapping of str to Tensor
            Parameters and buffers of the model by name. The others are as they were.
        entropy : bytes, optional
            In place of fresh one, for the **public** row alone: masks that are known for a row,
            or are made of its index, would break the claim.
        """
        for (_, write, value), found in zip(_OF_THREAD, self._found, strict=True):
            write(found if value is None else value)
        torch.clear_autocast_cache()
        warnings.simplefilter("ignore")  # as errors, those given once would fail one row
        torch.set_num_threads(1)
        torch.set_default_dtype(_process.dtype)
        _process.generators.renew(entropy)
        self._set_model(tensors, copied=True)

    def _set_model(self, tensors: Tensors, *, copied: bool) -> None:
        for prefix, attributes, kept in self._attributes:
            attributes.clear()
            attributes.update(kept)
            if not copied:
                continue
            # Of its own, so that what a pass registers or adds is gone after it: hooks too.
            for name, value in kept.items():
                if type(value) in _CONTAINERS:
                    attributes[name] = value.copy()
                elif type(value) is torch.Tensor and not value.requires_grad:  # as of a metric
                    attributes[name] = value.clone()
            start = f"{prefix}." if prefix else ""
            attributes["_buffers"] = {
                leaf: None if value is None else tensors.get(start + leaf, value).detach().clone()
                for leaf, value in kept["_buffers"].items()
            }
        for _, parameter, data, gradient, learns in self._parameters:
            parameter.grad = None  # before the data, which may have another dtype
            parameter.data = data
            parameter.grad = None if copied else gradient
            parameter.requires_grad_(learns)
        if copied:  # now that the copies of the pass before are gone
            for name, parameter, data, *_ in self._parameters:
                parameter.data = tensors.get(name, data).clone()

    def __exit__(self, *_: object) -> None:
        try:
            self._set_model(_NO_TENSORS, copied=False)
        finally:
            self._contexts.close()
            for setting, found in zip(_OF_THREAD, self._found, strict=True):
                setting[1](found)


def _modules(others: Iterable[object]) -> list[nn.Module]:
    """Return the modules among these, and among what functions name: closures, their own file."""
    found: dict[int, object] = {}
    left = list(others)
    while left:
        one = left.pop()
        if id(one) in found:
            continue
        found[id(one)] = one
        if isinstance(one, MethodType):
            left += [one.__self__, one.__func__]
        elif isinstance(one, partial):
            left += [one.func, *one.args, *one.keywords.values()]
        elif isinstance(one, FunctionType):
            for cell in one.__closure__ or ():
                with suppress(ValueError):  # not assigned yet
                    left.append(cell.cell_contents)
            for value in map(one.__globals__.get, one.__code__.co_names):
                own = getattr(value, "__globals__", None) is one.__globals__
                left += [value] if own or isinstance(value, nn.Module) else []
    return [one for one in found.values() if isinstance(one, nn.Module)]


def alone(value: torch.Tensor) -> torch.Tensor:
    """Return a batch of one: a tensor without a batch axis, copied into memory of its own."""
    batch = torch.empty((1, *value.shape), dtype=value.dtype)
    batch[0] = value
    return batch
