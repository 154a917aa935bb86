"""Losses of other libraries' models, by classes with the same methods and attributes."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.training.gated import without_noise

pytest.importorskip("torch")
pytest.importorskip("scipy")

import torch
from torch import nn

from flower_ldp.training import Collated, fastai, hugging_face, lightning
from tests.unit.training.gated import LIKE, ROWS, Site, linear, squares, weights

_silent = pytest.fixture(autouse=True)(without_noise)


def of_pairs(folder: Path, **given: Any) -> list[float]:
    """Return the weights by a loss of output and target."""
    folder.mkdir()
    return weights(Site(folder, arguments=given).ask()).tolist()  # type: ignore[no-any-return]


def of_rows(folder: Path, model: nn.Module, loss: Any, **given: Any) -> list[float]:
    """Return the weights by a loss of model and row."""
    return of_pairs(folder, model=lambda: model, row_loss=loss, **given)


# Lightning.


class LightningModule(nn.Linear):
    """What modules of Lightning are derived from; it has no trainer."""

    automatic_optimization = True

    def log(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError("log needs a trainer")

    log_dict = on_train_batch_end = optimizer_step = on_train_epoch_end = log


class Module(LightningModule):
    def __init__(self) -> None:
        super().__init__(2, 1)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        features, target = batch
        loss = squares(self(features), target)
        self.log("train_loss", loss, prog_bar=True)
        self.log_dict({"train_loss": loss})
        return loss

    def on_train_epoch_end(self) -> None:
        raise RuntimeError("no epoch ends")

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class OfDict(Module):
    def training_step(self, batch: Any) -> Any:  # type: ignore[override]
        return {"loss": super().training_step((batch["x"], batch["y"]), 0)}

    def configure_optimizers(self) -> Any:
        return {"optimizer": super().configure_optimizers(), "lr_scheduler": None}


def test_a_lightning_module_trains_by_its_step_and_optimizer(tmp_path: Path) -> None:
    expected, module, other = of_pairs(tmp_path / "pairs"), Module(), OfDict()
    assert of_rows(tmp_path / "rows", module, **lightning(module)) == expected
    rows, like = [{"x": x, "y": y} for x, y in ROWS], {"x": LIKE[0], "y": LIKE[1]}
    found = of_rows(tmp_path / "dicts", other, **lightning(other), data=rows, like=like)
    assert found == expected
    assert not {"log", "log_dict"} & vars(module).keys()


def test_an_optimizer_keeps_groups_and_its_first_state_without_frozen_weights(
    tmp_path: Path,
) -> None:
    class Grouped(Module):
        def configure_optimizers(self) -> Any:
            groups = [{"params": [self.bias], "lr": 9.0}, {"params": [self.weight], "lr": 0.05}]
            return [torch.optim.Adagrad(groups, initial_accumulator_value=0.5)]

    def frozen(model: nn.Module) -> Any:
        model.bias.requires_grad_(False)  # type: ignore[operator,union-attr]
        return model

    def made(learning: Any) -> torch.optim.Optimizer:
        return torch.optim.Adagrad(learning, lr=0.05, initial_accumulator_value=0.5)

    module = frozen(Grouped())
    found = of_rows(tmp_path / "rows", module, **lightning(module))
    assert found == of_pairs(tmp_path / "pairs", model=lambda: frozen(linear()), optimizer=made)


def scheduled(self: Any) -> Any:
    found = torch.optim.SGD(self.parameters(), lr=0.1)
    return [found], [torch.optim.lr_scheduler.ConstantLR(found)]


def by_metric(self: Any) -> Any:
    return {"optimizer": torch.optim.SGD(self.parameters(), lr=0.1), "lr_scheduler": object()}


def nothing(*_: Any) -> None:
    """Do nothing, as a hook."""


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("automatic_optimization", False, "automatic_optimization must be True"),
        ("configure_optimizers", scheduled, "one optimizer and no lr_scheduler"),
        ("configure_optimizers", by_metric, "one optimizer and no lr_scheduler"),
        ("configure_optimizers", nothing, "one optimizer and no lr_scheduler"),
        ("on_train_batch_end", nothing, "does not call the module's on_train_batch_end: remove"),
        ("optimizer_step", nothing, "does not call the module's optimizer_step: remove it"),
        ("on_before_zero_grad", nothing, "does not call the module's on_before_zero_grad"),
        ("configure_gradient_clipping", nothing, "module's configure_gradient_clipping"),
    ],
)
def test_what_has_no_meaning_under_noise_is_refused_by_name(
    name: str, value: Any, said: str
) -> None:
    module = type("Own", (Module,), {name: value})()
    with pytest.raises(ValueError, match=re.escape(said)):
        lightning(module)


def test_the_statistics_of_a_batch_are_refused_by_name(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    module = Module()
    module.add_module("norm", nn.BatchNorm1d(2, affine=False, track_running_stats=False))
    found = lightning(module)
    given = {"model": lambda: module, "row_loss": found["loss"], "optimizer": found["optimizer"]}
    reply = Site(tmp_path, mode="simulation", arguments=given).ask()
    assert reply.error.reason == "ldp:failed"
    assert "layer 'norm' uses the statistics of a batch" in caplog.text


# Hugging Face.


class Pretrained(nn.Linear):
    """Returns its loss, if there are labels."""

    def __init__(self) -> None:
        super().__init__(2, 1)

    def forward(self, pixels: Any, labels: Any = None) -> Any:  # type: ignore[override]
        output = super().forward(pixels)
        return SimpleNamespace(loss=None if labels is None else squares(output, labels))


DICTS = [{"pixels": x.tolist(), "labels": y.tolist(), "path": object()} for x, y in ROWS]
FORM = {"pixels": [0.0, 0.0], "labels": [0.0]}


def padded(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """Return a batch, as collators do, of two pixels a row."""
    pixels = [[*row["pixels"], 1.0][:2] for row in rows]
    labels = [row["labels"] for row in rows]
    return {"pixels": torch.tensor(pixels), "labels": torch.tensor(labels)}


def test_a_model_with_a_loss_of_its_own_trains_with_and_without_a_collator(tmp_path: Path) -> None:
    expected = of_pairs(tmp_path / "pairs")
    found = of_rows(tmp_path / "dicts", Pretrained(), hugging_face, data=DICTS, like=FORM)
    assert found == expected
    short = [{**row, "pixels": row["pixels"][:1]} for row in DICTS]  # type: ignore[index]
    given = {"data": Collated(short, padded), "like": Collated([FORM], padded)[0]}
    assert of_rows(tmp_path / "collated", Pretrained(), hugging_face, **given) == expected
    assert len(given["data"]) == 8


def test_a_row_without_labels_is_told_what_it_needs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    given = {"model": Pretrained, "row_loss": hugging_face, "data": DICTS}
    like = {"pixels": LIKE[0]}
    reply = Site(tmp_path, mode="simulation", arguments={**given, "like": like}).ask()
    assert reply.error.reason == "ldp:failed"
    assert "a row, and like, need the entry labels" in caplog.text


# fastai.


class Optimizer:
    """Steps weights by hyperparameters, as optimizers of fastai do."""

    def __init__(self, weights: list[nn.Parameter], lr: float) -> None:
        self.weights, self.lr, self.wd = weights, lr, 0.0

    def set_hypers(self, wd: float) -> None:
        self.wd = wd

    def step(self) -> None:
        with torch.no_grad():
            for one in self.weights:
                assert one.grad is not None
                one -= self.lr * (one.grad + self.wd * one)


class TwoInputs(nn.Linear):
    def forward(self, first: Any, second: Any) -> Any:  # type: ignore[override]
        return super().forward(torch.cat([first, second], dim=1))


class Counting(nn.Module):
    """A loss that grows with the rows that it has seen."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        self.seen += 1
        return squares(output, target) * self.seen


@pytest.mark.parametrize("decay", [None, 0.25])
def test_a_learner_trains_by_its_loss_and_optimizer(tmp_path: Path, decay: float | None) -> None:
    def made(learning: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(learning, lr=0.1, weight_decay=decay or 0.0)

    expected = of_pairs(tmp_path / "pairs", optimizer=made)
    learner = SimpleNamespace(
        dls=SimpleNamespace(n_inp=2), loss_func=squares, opt_func=Optimizer, lr=0.1, wd=decay
    )
    rows: list[Any] = [(x[:1], x[1:], y) for x, y in ROWS]
    given: Callable[..., Any] = lambda: {"data": rows, "like": rows[0], **fastai(learner)}  # noqa: E731
    found = of_rows(tmp_path / "two", TwoInputs(2, 1), **given())
    assert found == pytest.approx(expected, rel=1e-6)
    learner.loss_func = Counting()
    assert of_rows(tmp_path / "counting", TwoInputs(2, 1), **given()) == pytest.approx(expected)
    learner.dls, rows = SimpleNamespace(), ROWS
    assert of_rows(tmp_path / "one", linear(), **given()) == pytest.approx(expected, rel=1e-6)
