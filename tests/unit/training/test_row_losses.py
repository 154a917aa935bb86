"""Rows of any form, and losses of the model and one row."""

from __future__ import annotations

import functools
import re
from collections import UserDict, namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.training.gated import MODEL, arrays_of, state_of, without_noise

pytest.importorskip("torch")
pytest.importorskip("scipy")

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from flower_ldp.training import supervised
from flower_ldp.training.gradients import RowModel, StepSum
from flower_ldp.training.row_form import batch_of_one, form_of, in_form
from flower_ldp.training.rows import Rows
from tests.unit.training.gated import LIKE, ROWS, Site, expected, found_of, linear, squares, weights

_silent = pytest.fixture(autouse=True)(without_noise)


@dataclass(frozen=True)
class Scan:
    """A row as an object."""

    image: Any
    label: Any


class Slotted:
    """A row without a dict of attributes."""

    __slots__ = ("image", "label")

    def __init__(self, image: Any, label: Any) -> None:
        self.image, self.label = image, label


Pair = namedtuple("Pair", ["image", "label"])
Make = Callable[[Any, Any], Any]
#: How a row is made, and the loss of a model and such a row.
FORMS: dict[str, tuple[Make, Callable[[Any, Any], Any]]] = {
    "tuple": (lambda x, y: (x, y), lambda m, row: squares(m(row[0]), row[1])),
    "list": (lambda x, y: [x, y], lambda m, row: squares(m(row[0]), row[1])),
    "dict": (
        lambda x, y: {"image": x, "label": y, "of": object()},
        lambda m, row: squares(m(row["image"]), row["label"]),
    ),
    "mapping": (
        lambda x, y: UserDict(image=x.numpy(), label=y.numpy()),
        lambda m, row: squares(m(row["image"]), row["label"]),
    ),
    "numbers": (
        lambda x, y: {"image": x.tolist(), "label": float(y), "text": "a scan"},
        lambda m, row: squares(m(row["image"]), row["label"][:, None]) * len(row["text"]),
    ),
    "dataclass": (Scan, lambda m, row: squares(m(row.image), row.label)),
    "slots": (Slotted, lambda m, row: squares(m(row.image), row.label)),
    "namedtuple": (Pair, lambda m, row: squares(m(row.image), row.label)),
    "nested": (
        lambda x, y: {"parts": [(x[0], x[1]), Scan("left", y)]},
        lambda m, row: squares(m(torch.stack(row["parts"][0], dim=1)), row["parts"][1].label),
    ),
    "tensor": (lambda x, y: torch.cat([x, y]), lambda m, row: squares(m(row[:, :2]), row[:, 2:])),
}


def like_of(name: str) -> Any:
    like = FORMS[name][0](*LIKE)
    if isinstance(like, dict):
        like.pop("of", None)
    return like


def trained(folder: Path, rows: Any, loss: Any, like: Any, **more: Any) -> Any:
    """Return the weights that private training makes of these rows."""
    folder.mkdir(exist_ok=True)
    given = {"data": rows, "row_loss": loss, "like": like, **more}
    return weights(Site(folder, arguments=given).ask())


@pytest.mark.parametrize("name", FORMS)
def test_rows_of_any_form_train_as_pairs_do(tmp_path: Path, name: str) -> None:
    make, loss = FORMS[name]
    found = trained(tmp_path, [make(*row) for row in ROWS], loss, like_of(name))
    assert found == pytest.approx(expected([[row] for row in ROWS]), rel=1e-5)


class Hostile(dict[str, Any]):
    """Exits when an entry is read."""

    def __getitem__(self, name: str) -> Any:
        raise SystemExit(3)


class Empty(torch.Tensor):
    """Copies nothing where it is copied, so that memory stays as it was."""

    @staticmethod
    def __new__(cls, like: torch.Tensor) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, like.shape, dtype=like.dtype)  # type: ignore[attr-defined]

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), _: Any = None) -> Any:
        views = (torch.ops.aten.detach.default, torch.ops.aten.alias.default)
        return cls(args[0]) if function in views else args[0]


X, Y = torch.ones(2), torch.ones(1)
#: Rows that have another form than the public row of their name.
ODD: list[tuple[str, Any]] = [
    ("dict", {"image": X}),
    ("dict", {"image": X, "Label": Y}),
    ("dict", {"image": X, "label": None}),
    ("dict", {"image": X, "label": "1.0"}),
    ("dict", {"image": X, "label": [Y, Y]}),
    ("dict", {"image": torch.ones(3), "label": Y}),
    ("dict", {"image": X.to_sparse(), "label": Y}),
    ("dict", (X, Y)),
    ("dict", Scan(X, Y)),
    ("dict", X),
    ("dict", "scan"),
    ("dict", None),
    ("dict", Hostile(image=X, label=Y)),
    ("dict", {"image": Empty(X), "label": Y}),
    ("tuple", {0: X, 1: Y}),
    ("tuple", X),
    ("tuple", (X,)),
    ("tuple", (X, Y, Y)),
    ("dataclass", {"image": X, "label": Y}),
    ("dataclass", (X, Y)),
    ("dataclass", SimpleNamespace(image=X)),
    ("numbers", {"image": [1.0, 1.0], "label": 1.0}),
    ("numbers", {"image": [1.0, 1.0], "label": 1.0, "text": 7}),
    ("numbers", {"image": [1.0, [1.0]], "label": 1.0, "text": ""}),
    ("nested", {"parts": [(1.0, 1.0)]}),
    ("nested", {"parts": [(1.0, 1.0), Scan(0.0, Y)]}),
    ("nested", {"parts": ([1.0, 1.0, 1.0], Scan("left", Y))}),
    ("tensor", (X, Y)),
    ("tensor", torch.ones(4)),
    ("tensor", {"image": X}),
]


@functools.cache
def without_the_fourth(name: str, folder: Path) -> list[float]:
    make, loss = FORMS[name]
    rows = [make(*one) for one in ROWS]
    found: list[float] = trained(folder, rows[:3] + rows[4:], loss, like_of(name)).tolist()
    return found


@pytest.mark.parametrize(("name", "row"), ODD)
def test_a_row_of_another_form_counts_as_zero_and_changes_no_other(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, name: str, row: Any
) -> None:
    make, loss = FORMS[name]
    rows = [make(*one) for one in ROWS]
    with pytest.raises((Exception, SystemExit)):
        in_form(row, form_of(like_of(name)))
    found = trained(tmp_path / "site", [*rows[:3], row, *rows[4:]], loss, like_of(name))
    assert found.tolist() == without_the_fourth(name, tmp_path_factory.getbasetemp() / name)


def test_a_loss_gets_copies_of_what_the_public_row_has_and_nothing_else() -> None:
    image, label = np.ones(2, dtype=np.float64), torch.ones(1)

    class Text(str):
        __slots__ = ("memory",)

    word = Text("left")
    row = {"image": image, "label": label, "text": word, "other": object(), "view": [label, label]}
    like = {"image": X, "label": Y, "text": "", "view": [Y, Y]}
    found = batch_of_one(in_form(row, form_of(like)))
    assert list(found) == ["image", "label", "text", "view"]
    assert type(found["text"][0]) is str
    tensors = [found["image"], found["label"], *found["view"]]
    assert [tuple(one.shape) for one in tensors] == [(1, 2), (1, 1), (1, 1), (1, 1)]
    assert all(one.dtype == torch.float32 and type(one) is torch.Tensor for one in tensors)
    for one in tensors:
        one.fill_(9.0)
    found["view"].clear()
    assert image.tolist() == [1.0, 1.0]
    assert label.tolist() == X[:1].tolist() == [1.0]
    assert len(row["view"]) == len(like["view"]) == 2


@pytest.mark.parametrize(
    ("like", "said"),
    [
        ((), "like must be a public row"),
        ({}, "like must be a public row"),
        (None, "like is NoneType, which no row may hold"),
        ({"image": X, "id": None}, "like['id'] is NoneType, which no row may hold: leave it out"),
        ((X, Scan(X, b"")), "like[1].label is bytes"),
        ((X, Scan), "like[1] is type"),
        ((X, print), "like[1] is builtin_function_or_method"),
        ((X, torch.ones(2, dtype=torch.complex64)), "like[1] is Tensor"),
    ],
)
def test_what_is_no_public_row_is_refused_by_name(like: Any, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        Rows(ROWS, like)


def test_a_row_of_another_form_is_named_in_a_rehearsal() -> None:
    rows = Rows([{"image": X, "label": torch.ones(3)}], {"image": X, "label": Y}, strict=True)
    with pytest.raises(ValueError, match=re.escape("row['label']: expected shape (1,)")):
        rows.read(0)


@pytest.mark.parametrize("name", FORMS)
def test_what_one_row_adds_changes_no_bit_of_what_the_others_do(name: str) -> None:
    make, loss = FORMS[name]
    model, rows = nn.Linear(2, 1), [make(*row) for row in ROWS]
    for one in [*rows, make(torch.tensor([1e6, -1e6]), torch.tensor([9.0])), None]:
        alone, others, both = (
            total(model, loss, like_of(name), some) for some in ([one], rows, [*rows, one])
        )
        assert both.equal(others + alone)


def total(model: nn.Module, loss: Any, like: Any, rows: list[Any]) -> torch.Tensor:
    """Return the sum of these rows' clipped gradients."""
    at = {name: p.detach().clone() for name, p in model.named_parameters()}
    asked = RowModel(model, loss, Rows(rows, like), {}, list(at))
    asked.check(at)
    return StepSum(asked, 0.5, 2.0**-40)(at, [[row] for row in range(len(rows))])


# State that a loss keeps.


def test_what_a_loss_does_to_model_and_row_is_gone_with_it() -> None:
    model = nn.Sequential(nn.Linear(2, 1))

    def wild(model: Any, row: Any) -> Any:
        value = squares(model(row["image"]), row["label"])
        if float(row["image"][0, 0]) > 2:
            model[0].weight.data.mul_(9)
            model.register_buffer("seen", row["image"].clone())
            model.append(nn.Linear(1, 1))
            model.forward = lambda x: x
            row["image"].zero_()
            row.clear()
        return value

    rows = [{"image": x, "label": y} for x, y in ROWS]
    parts = [total(model, wild, rows[0], [row]) for row in rows]
    assert total(model, wild, rows[0], rows).equal(torch.stack(parts).sum(0))
    assert len(model) == 1
    assert rows[3]["image"].any()


def test_a_loss_that_keeps_rows_ends_the_plan(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kept: list[Any] = []

    def keeping(model: Any, row: Any) -> Any:
        kept.append(row["image"].clone())
        return squares(model(torch.stack(kept[-3:]).sum(0)), row["label"])

    rows = [{"image": x, "label": y} for x, y in ROWS]
    given = {"data": rows, "row_loss": keeping, "like": {"image": X, "label": Y}}
    site = Site(tmp_path, arguments=given)
    assert not site.ask(arrays={**MODEL, "weight": np.ones((1, 2), np.float32)}).has_error()
    assert "keep something of a row" in caplog.text
    assert site.ask("m-2").error.reason == "ldp:refused:budget"


class Remembering(nn.Module):
    """A loss that keeps a running mean of outputs in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(1))

    def forward(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.mean = 0.5 * self.mean + output[0] * (output[0] != 0)
        return squares(output - self.mean, target)


REMEMBERED = Remembering()


def of_the_file(model: Any, row: Any) -> Any:
    return _called(REMEMBERED, model, row)


def _called(loss: Any, model: Any, row: Any) -> Any:
    return loss(model(row[0]), row[1])


class Criterion(Remembering):
    """A loss whose method is of the model and a row."""

    def of_row(self, model: Any, row: Any) -> Any:
        return _called(self, model, row)


def own(loss: Any) -> Any:
    return lambda model, row: loss(model(row[0]), row[1])


@pytest.mark.parametrize(
    "loss",
    [
        supervised(Remembering()),
        own(Remembering()),
        own(partial(Remembering())),
        partial(_called, Remembering()),
        Criterion().of_row,
        of_the_file,
        supervised(lambda output, target: REMEMBERED(output, target)),
    ],
)
def test_modules_that_a_loss_names_keep_nothing_of_a_row(loss: Any) -> None:
    rows = [(torch.full((2,), 9.0), Y), (X, Y)]
    model = nn.Linear(2, 1)
    at = {name: p.detach() for name, p in model.named_parameters()}
    asked = RowModel(model, loss, Rows(rows, LIKE), {}, list(at))
    first, _, last = found_of(asked, at, 1, 0, 1)
    assert first is not None
    assert first.equal(last)  # type: ignore[arg-type]


# Targets.


class Heads(nn.Module):
    """A class and a number from the same features."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.kind, self.size = nn.Linear(2, 3), nn.Linear(3, 4), nn.Linear(3, 1)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        hidden = self.body(x)
        return {"kind": self.kind(hidden), "size": self.size(hidden)[:, 0]}


def of_heads(model: Any, row: Any) -> Any:
    found = model(row["x"])
    size = functional.mse_loss(found["size"], row["size"])
    return functional.cross_entropy(found["kind"], row["kind"]) + 0.1 * size


def binary(model: Any, row: Any) -> Any:
    return functional.binary_cross_entropy_with_logits(model(row["x"])[:, 0], row["ill"])


def rebuilt(model: Any, row: Any) -> Any:
    return functional.mse_loss(model(row), row)


BINARY = {"x": LIKE[0], "ill": 0.0}
CLASSES = supervised(functional.cross_entropy)
TARGETS: dict[str, tuple[Callable[[], nn.Module], Any, Any, list[Any]]] = {
    "binary": (linear, binary, BINARY, [{"x": x, "ill": bool(y)} for x, y in ROWS]),
    "a class is missing": (linear, binary, BINARY, [{"x": x, "ill": 0} for x, _ in ROWS]),
    "classes, of which this client has two": (
        lambda: nn.Linear(2, 5),
        CLASSES,
        (LIKE[0], 0),
        [(x, int(y) % 2) for x, y in ROWS],
    ),
    "one row": (linear, binary, BINARY, [{"x": ROWS[0][0], "ill": True}]),
    "several outputs": (
        Heads,
        of_heads,
        {"x": LIKE[0], "kind": 0, "size": 0.0},
        [{"x": x, "kind": int(y), "size": float(x[0])} for x, y in ROWS],
    ),
    "numbers": (
        linear,
        supervised(lambda output, target: functional.mse_loss(output[:, 0], target)),
        (LIKE[0], 0.0),
        [(x, float(y) / 3) for x, y in ROWS],
    ),
    "none": (lambda: nn.Linear(2, 2), rebuilt, LIKE[0], [x for x, _ in ROWS]),
    "none, of the output alone": (
        linear,
        supervised(lambda output: (output - 1).square().mean()),
        LIKE[:1],
        [(x,) for x, _ in ROWS],
    ),
    "no row": (linear, binary, BINARY, []),
}


@pytest.mark.parametrize("name", TARGETS)
def test_targets_of_each_kind_train(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """And a client that lacks a class, or has one row or none."""
    make, loss, like, rows = TARGETS[name]
    model = make()
    given = {"model": lambda: model, "data": rows, "row_loss": loss, "like": like}
    sent = state_of(model)
    site = Site(tmp_path, arguments=given, examples=max(1, len(rows)))
    found = arrays_of(site.ask(arrays=sent))
    assert site.counts()["failed"] == 0
    assert "counts as zero" not in caplog.text
    assert any((found[key] != sent[key]).any() for key in sent) == bool(rows)


@pytest.mark.parametrize(
    ("loss", "like", "said"),
    [
        (CLASSES, {"x": LIKE[0], "y": 0}, "rows must be (features, target), found dict"),
        (CLASSES, LIKE[0], "rows must be (features, target), found Tensor"),
        (squares, LIKE, "fails on the public row"),  # a loss of output and target
        (lambda model, row: row["z"], {"x": LIKE[0]}, "fails on the public row: KeyError: 'z'"),
        (lambda model, row: None, LIKE, "fails on the public row"),
    ],
)
def test_a_loss_that_does_not_fit_the_public_row_is_refused(
    tmp_path: Path, loss: Any, like: Any, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    given = {"row_loss": loss, "like": like}
    site = Site(tmp_path, mode="simulation", arguments=given)
    assert site.ask().error.reason == "ldp:failed"
    assert said in caplog.text
