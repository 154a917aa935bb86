"""Rows of any form, and losses of the model and one row."""

from __future__ import annotations

import re
from collections import UserDict, namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.training.gated import without_noise

pytest.importorskip("torch")
pytest.importorskip("scipy")

import numpy as np
import torch
from torch import nn

from flower_ldp.training import supervised
from flower_ldp.training.gradients import RowModel
from flower_ldp.training.row_form import batch_of_one, form_of, in_form
from flower_ldp.training.rows import Rows
from tests.unit.training.gated import LIKE, ROWS, Site, expected, found_of, squares, weights

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


@pytest.mark.parametrize(("name", "row"), ODD)
def test_a_row_of_another_form_counts_as_zero_and_changes_no_other(
    tmp_path: Path, name: str, row: Any
) -> None:
    make, loss = FORMS[name]
    rows = [make(*one) for one in ROWS]
    with pytest.raises(Exception, match=r"."):
        in_form(row, form_of(like_of(name)))
    found = [
        trained(tmp_path / str(place), some, loss, like_of(name)).tolist()
        for place, some in enumerate(([*rows[:3], row, *rows[4:]], rows[:3] + rows[4:]))
    ]
    assert found[0] == found[1]


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


# State that a loss keeps.


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


def own(loss: Any) -> Any:
    return lambda model, row: loss(model(row[0]), row[1])


@pytest.mark.parametrize(
    "loss",
    [
        supervised(Remembering()),
        own(Remembering()),
        own(partial(Remembering())),
        partial(_called, Remembering()),
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
