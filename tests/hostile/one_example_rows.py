"""Rows, weights and gradients of the models of the zoo, the same in each process."""

from __future__ import annotations

import hashlib
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from flower_ldp import generators
from flower_ldp.training import supervised
from flower_ldp.training.gradients import RowModel
from flower_ldp.training.rows import Rows
from tests.hostile.one_example_zoo import Form, Member

Row = tuple[torch.Tensor, ...]
Tensors = dict[str, torch.Tensor]
#: What the entropy of passes is in these tests, so that masks can be compared.
ENTROPY = bytes(range(100, 116))
#: Rows that have a gradient, unless weights overflow.
GOOD = ("plain", "constant", "huge", "late")
#: Rows that have none, the first by what it holds, the others by what they do.
FAILING = ("beyond", "raises", "exits", "misshapen")
ROWS = (*GOOD, *FAILING)
#: "cancelling" are of 1e8 and nearly cancel in pairs. In "residues", what a layer gives for equal
#: entries is what rounding leaves, so ReLU and pooling choose by it.
WEIGHTS = ("ones", "thousands", "cancelling", "residues")
#: What is computed in fresh processes.
FRESH = (
    ("ones", "plain"),
    ("cancelling", "constant"),
    ("residues", "constant"),
)


def drawn(form: Form, seed: int) -> torch.Tensor:
    rng = torch.Generator().manual_seed(seed)
    if form.below:
        return torch.randint(form.below, form.shape, generator=rng)
    return torch.randn(form.shape, generator=rng, dtype=form.dtype)


def row_of(member: Member, kind: str) -> Row:
    """Return a row; raises for some."""
    form = member.features
    features, target = drawn(form, ROWS.index(kind) + 10), drawn(member.target, 20)
    if kind == "raises":
        raise OSError("no such scan")
    if kind == "exits":
        raise SystemExit(3)
    if kind == "misshapen":
        return torch.zeros(2, 2, 2, 2, 2), target
    if kind == "constant":
        features = torch.full_like(features, 1 if form.below else 0.1)
    elif kind == "huge":
        features = features if form.below else features * 1e8
    elif kind == "beyond":
        features.reshape(-1)[0] = form.below if form.below else float("nan")
    elif kind == "late":
        time.sleep(0.001)
    return features, target


class Data:
    """The private rows of a model, by the places of their kinds."""

    def __init__(self, member: Member) -> None:
        self._member = member

    def __len__(self) -> int:
        return len(ROWS)

    def __getitem__(self, index: int) -> Row:
        return row_of(self._member, ROWS[index])


def like(member: Member) -> Row:
    return drawn(member.features, 30), drawn(member.target, 30)


def made(member: Member) -> nn.Module:
    torch.manual_seed(1)
    return member.make()


def weights_of(model: nn.Module, kind: str, seed: int = 2) -> Tensors:
    """Return weights as a server may pick them."""
    rng = torch.Generator().manual_seed(seed)
    found: Tensors = {}
    for name, p in model.named_parameters():
        if not p.requires_grad:
            continue
        value = torch.randn(p.shape, generator=rng, dtype=p.dtype)
        if kind == "thousands":
            value *= 1e4
        elif kind != "ones":
            flat = value.reshape(-1)
            places = torch.randperm(len(flat), generator=rng)
            half = len(flat) // 2
            flat[places[half : 2 * half]] = -flat[places[:half]]
            value *= 1e8 if kind == "cancelling" else float(p.ndim > 1)
        found[name] = value
    return found


def row_model(
    member: Member, model: nn.Module, make: Callable[..., RowModel] = RowModel, data: Any = None
) -> RowModel:
    """Return what gives the gradients of a model's rows."""
    learning = tuple(weights_of(model, "ones"))
    fixed = {name: value for name, value in model.state_dict().items() if name not in learning}
    rows = Rows(Data(member) if data is None else data, like(member))
    return make(model, supervised(member.loss), rows, fixed, learning)


def digest(gradient: torch.Tensor | None) -> str:
    """Return what tells gradients apart that count; those that do not are all the same."""
    if gradient is None or not gradient.isfinite().all():
        return "none"
    return hashlib.sha256(gradient.view(torch.uint8).numpy().tobytes()).hexdigest()[:16]


@contextmanager
def known_entropy() -> Iterator[None]:
    """Give each pass the same entropy, and no one else."""
    found = generators.os
    generators.os = SimpleNamespace(urandom=lambda size: ENTROPY[:size])  # type: ignore[assignment]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        generators.os = found


def first_digest(member: Member, weights: str, row: str) -> str:
    """Return a row's digest, where nothing was computed before."""
    model = made(member)
    asked = row_model(member, model)
    with known_entropy(), asked.passes() as passes:
        return digest(asked.row(passes, weights_of(model, weights), ROWS.index(row)))
