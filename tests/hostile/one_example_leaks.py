"""Models that leave something behind where a row is large, and are another model with it."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from tests.hostile.one_example_zoo import LABEL, Form, Member

#: Entries of rows that leave something behind are larger.
LARGE = 1e6
#: What was entered and not left.
_entered: list[Any] = []


class Leaking(nn.Module):
    """Does something on large rows, and computes what depends on it."""

    def __init__(self, leak: Callable[[Any], Any], use: Callable[[Any, torch.Tensor], Any]) -> None:
        super().__init__()
        self.leak, self.use = leak, use
        self.hidden, self.out = nn.Linear(33, 16), nn.Linear(16, 5)
        self.drop, self.scale = nn.Dropout(0.5), 1.0
        self.centre, self.memory = torch.zeros(16), list[float]()
        self.tensors = [torch.zeros(16)]
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        large = bool(x.detach().abs().max() > LARGE)
        found = self.use(self, x)
        if large:
            self.leak(self)
        return self.out(torch.relu(found))  # type: ignore[no-any-return]


def hidden(model: Any, x: torch.Tensor) -> Any:
    return model.hidden(x)


def noisy(draw: Callable[[], Any]) -> Callable[[Any, torch.Tensor], Any]:
    return lambda model, x: model.hidden(x) + torch.as_tensor(draw(), dtype=torch.float32)


def with_autocast(**settings: Any) -> Callable[[Any, torch.Tensor], Any]:
    def use(model: Any, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", **settings):
            return model.hidden(x).float()  # type: ignore[no-any-return]

    return use


def fail(_: object) -> None:
    raise ZeroDivisionError


def twice_in_autocast(model: Any, x: torch.Tensor) -> torch.Tensor:
    use = with_autocast(dtype=torch.bfloat16)
    return use(model, x) + use(model, torch.sin(x))  # type: ignore[no-any-return]


def once_in_autocast(model: Any, x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return (model.hidden(x) + model.hidden(torch.sin(x))).float()  # type: ignore[no-any-return]


def enter(context: Any) -> None:
    context.__enter__()
    _entered.append(context)


def write(value: torch.Tensor) -> None:
    with torch.no_grad():
        value += 1.0


def split_sums(model: Any, x: torch.Tensor) -> Any:
    """Return what depends on the number of threads: sums of which each takes a part."""
    many = x.repeat(1, 2_000)
    sums = [(many * (1 + place)).sin().sum() for place in range(16)]
    return model.hidden(x) + torch.stack(sums)


def denormal(model: Any, x: torch.Tensor) -> Any:
    return model.hidden(x) + (x.sum() * 1e-39) * 1e39


Leak = tuple[Callable[[Any], Any], Callable[[Any, torch.Tensor], Any]]

#: What is set anew before each pass.
HARMLESS: dict[str, Leak] = {
    "gradients off": (lambda m: torch.set_grad_enabled(False), hidden),
    "autocast on": (lambda m: torch.set_autocast_enabled("cpu", True), hidden),
    "autocast entered": (lambda m: enter(torch.autocast("cpu", torch.bfloat16)), hidden),
    "autocast entered, with a cache": (
        lambda m: enter(torch.autocast("cpu", torch.bfloat16)),
        with_autocast(dtype=torch.bfloat16, cache_enabled=True),
    ),
    "autocast entered, twice after it": (
        lambda m: enter(torch.autocast("cpu", torch.bfloat16)),
        twice_in_autocast,
    ),
    "autocast's cache off": (
        lambda m: torch.set_autocast_cache_enabled(False),
        once_in_autocast,
    ),
    "autocast's dtype": (
        lambda m: torch.set_autocast_dtype("cpu", torch.float16),
        with_autocast(),
    ),
    "default dtype": (
        lambda m: torch.set_default_dtype(torch.float64),
        lambda m, x: (m.hidden(x) * torch.tensor([0.1])).float(),
    ),
    "denormal numbers": (lambda m: torch.set_flush_denormal(True), denormal),
    "threads": (lambda m: torch.set_num_threads(3), split_sums),
    "torch's seed": (lambda m: torch.manual_seed(7), noisy(lambda: torch.rand(1))),
    "numpy's seed": (lambda m: np.random.seed(7), noisy(np.random.random)),  # noqa: NPY002
    "python's seed": (lambda m: random.seed(7), noisy(random.random)),
    "one stream of dropout": (lambda m: torch.rand(3), lambda m, x: m.drop(m.hidden(x))),
    "an attribute": (
        lambda m: setattr(m, "centre", m.centre + 1),
        lambda m, x: m.hidden(x) + m.centre,
    ),
    "an attribute of a layer": (
        lambda m: setattr(m.hidden, "scale", 3.0),
        lambda m, x: m.hidden(x) * getattr(m.hidden, "scale", 1.0),
    ),
    "an attribute in place": (lambda m: m.centre.add_(1), lambda m, x: m.hidden(x) + m.centre),
    "a buffer": (lambda m: m.seen.add_(1), lambda m, x: m.hidden(x) + m.seen),
    "a buffer that is new": (
        lambda m: m.register_buffer("more", torch.ones(16)),
        lambda m, x: m.hidden(x) + dict(m.named_buffers()).get("more", 0.0),
    ),
    "weights in place": (lambda m: write(m.hidden.weight), hidden),
    "weights, and an error": (lambda m: fail(write(m.hidden.weight)), hidden),
    "weights, and an exit": (lambda m: sys.exit(write(m.hidden.weight)), hidden),
    "weights' data": (lambda m: setattr(m.out.weight, "data", m.out.weight.data * 2), hidden),
    "a weight's gradient": (
        lambda m: m.hidden(torch.ones(1, 33)).sum().backward(),
        lambda m, x: m.hidden(x) * (1.0 if m.hidden.weight.grad is None else 2.0),
    ),
    "a hook": (lambda m: m.hidden.register_forward_hook(lambda *a: a[2] * 2), hidden),
    "an entry of an attribute": (
        lambda m: m.memory.append(1.0),
        lambda m, x: m.hidden(x) + float(len(m.memory)),
    ),
    "another parameter": (lambda m: setattr(m.out, "bias", nn.Parameter(torch.ones(5))), hidden),
    "another layer": (lambda m: setattr(m, "out", nn.Linear(16, 5)), hidden),
    "frozen": (lambda m: m.hidden.requires_grad_(False), hidden),
    "evaluation mode": (lambda m: m.eval(), lambda m, x: m.drop(m.hidden(x))),
    "another forward": (lambda m: setattr(m, "forward", lambda x: 2 * m.out(m.hidden(x))), hidden),
}

_kept: list[float] = []


def _used(model: Any, x: torch.Tensor) -> Any:
    return model.hidden(x) + float(len(_kept))


#: What is not, and ends the plan, since the public row shows it.
KEPT: dict[str, Leak] = {
    "a closure": (lambda m: _kept.append(1.0), _used),
    "a tensor in a list": (
        lambda m: m.tensors[0].add_(1),
        lambda m, x: m.hidden(x) + m.tensors[0],
    ),
    "a weight's hook": (lambda m: m.hidden.weight.register_hook(lambda one: one * 2), hidden),
    "a weight's attribute": (
        lambda m: setattr(m.hidden.weight, "scale", 2.0),
        lambda m, x: m.hidden(x) * getattr(m.hidden.weight, "scale", 1.0),
    ),
    "another class": (
        lambda m: setattr(m.drop, "__class__", nn.ReLU),
        lambda m, x: m.drop(m.hidden(x)),
    ),
    "inference mode": (lambda m: enter(torch.inference_mode()), hidden),
}


def leaking(leak: Leak) -> Member:
    return Member("", lambda: Leaking(*leak), Form((33,)), LABEL, functional.cross_entropy)


@contextmanager
def put_back() -> Iterator[None]:
    """Put back what a test left behind itself, without the package."""
    threads, dtype = torch.get_num_threads(), torch.get_default_dtype()
    cast = torch.get_autocast_dtype("cpu")
    try:
        yield
    finally:
        while _entered:
            _entered.pop().__exit__(None, None, None)
        _kept.clear()
        torch.set_grad_enabled(True)
        torch.set_autocast_enabled("cpu", False)
        torch.set_autocast_dtype("cpu", cast)
        torch.set_autocast_cache_enabled(True)
        torch.clear_autocast_cache()
        torch.set_default_dtype(dtype)
        torch.set_flush_denormal(False)
        torch.set_num_threads(threads)
