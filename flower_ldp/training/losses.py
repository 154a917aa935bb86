"""Losses of a model and one row, for the forms in which libraries have models and rows.

No library is imported: adapters use names of their classes' methods and attributes. A row is a
batch of one here (:mod:`~flower_ldp.training.row_form`).
"""

import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from inspect import signature
from typing import Any

import torch
from torch import nn

from flower_ldp.clients.session import Data
from flower_ldp.training.gradients import RowLoss

#: Hooks of Lightning between rows and the optimizer's step, where private training has noise.
_HOOKS = re.compile(
    "backward|configure_gradient_clipping|lr_scheduler_step|optimizer_(step|zero_grad)"
    "|on_(before|after)_(backward|batch_transfer|optimizer_step|zero_grad)"
    "|on_train_batch_(start|end)|transfer_batch_to_device"
)


def supervised(loss: Callable[..., Any]) -> RowLoss:
    """Return the loss of rows ``(features, target)``: ``loss(model(features), target)``.

    A row may have several targets or none; the loss takes as many.
    """

    def of_row(model: Any, row: Any) -> Any:
        if not isinstance(row, (tuple, list)):
            raise ValueError(
                f"rows must be (features, target), found {type(row).__name__}: for others give "
                "loss= or right= as lambda model, row: ..."
            )
        return loss(model(row[0]), *row[1:])

    return of_row


def _right_class(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    if output.shape[-1] < 2 or target.is_floating_point():
        raise ValueError(
            "the default of right= needs an output per class and whole numbers as targets: give "
            "right=lambda model, row: ..., a number in [0, 1]"
        )
    return (output.argmax(dim=-1) == target).to(torch.float64)


#: 1 where the largest output is the target, else 0.
is_right: RowLoss = supervised(_right_class)


def hugging_face(model: Any, row: Any) -> Any:
    """Return ``model(**row).loss`` of a row with the entry ``labels``."""
    found = model(**row).loss
    if found is None:
        raise ValueError("the model returns no loss: a row, and like, need the entry labels")
    return found


@dataclass(frozen=True)
class Collated:
    """Rows that a collator of transformers pads, each by itself.

    Parameters
    ----------
    rows : Data
        Rows as dicts, read by index.
    collator : callable
        Makes a batch of a list of rows. It must pad to a fixed length and have no generator of its
        own.
    """

    rows: Data
    collator: Callable[[list[Any]], Mapping[str, Any]]

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Return a row without the batch axis."""
        batch = self.collator([self.rows[index]])
        return {name: part[0] for name, part in batch.items()}


def lightning(module: nn.Module) -> dict[str, Any]:
    """Return the arguments ``loss`` and ``optimizer`` of a LightningModule.

    The loss is ``training_step``. Each round makes the optimizer of ``configure_optimizers``.
    What is logged is dropped. Hooks of epochs, validation, callbacks and a Trainer's settings are
    not used.

    Raises
    ------
    ValueError
        If the module uses what has no meaning under noise: manual optimization, several optimizers,
        a scheduler, or a hook between rows and the optimizer's step.
    """
    if not getattr(module, "automatic_optimization", True):
        raise ValueError("automatic_optimization must be True: noise is added before each step")
    kind = type(module)
    base = next((one for one in kind.__mro__ if one.__name__ == "LightningModule"), object)
    for name in filter(_HOOKS.fullmatch, dir(kind)):
        if getattr(kind, name) is not getattr(base, name, None):
            raise ValueError(f"private training does not call the module's {name}: remove it")
    _one_optimizer(module)

    def optimizer(weights: list[nn.Parameter]) -> torch.optim.Optimizer:
        found = _one_optimizer(module)
        learning = (p for p in module.parameters() if p.requires_grad)
        place: dict[Any, nn.Parameter] = dict(zip(learning, weights, strict=True))
        for group in found.param_groups:
            group["params"] = [place[p] for p in group["params"] if p in place]
        found.state = defaultdict(dict, {place[p]: s for p, s in found.state.items() if p in place})
        return found

    return {"loss": _training_step, "optimizer": optimizer}


def _training_step(model: Any, row: Any) -> Any:
    vars(model).update(log=_drop, log_dict=_drop)  # for this pass
    step = model.training_step
    found = step(*(row, 0)[: len(signature(step).parameters)])
    return found["loss"] if isinstance(found, Mapping) else found


def _drop(*_: object, **__: object) -> None:
    """Drop what a module logs: no noise covers it."""


def _one_optimizer(module: Any) -> torch.optim.Optimizer:
    found = module.configure_optimizers()
    if isinstance(found, Mapping) and found.get("lr_scheduler") is None:
        found = found["optimizer"]
    if isinstance(found, (list, tuple)) and len(found) == 1:
        (found,) = found
    if not isinstance(found, torch.optim.Optimizer):
        raise ValueError(
            "configure_optimizers must return one optimizer and no lr_scheduler: each round makes "
            "a new one, whose rate may follow from the round's number"
        )
    return found


def fastai(learner: Any) -> dict[str, Any]:
    """Return the arguments ``loss`` and ``optimizer`` of a fastai Learner.

    The loss is ``loss_func`` of rows ``(*inputs, *targets)``. The optimizer is ``opt_func`` at the
    learner's ``lr`` and ``wd``. Callbacks, metrics, splitters and batch transforms are not used.
    """
    # Named here, so that its state is each row's own (flower_ldp.isolation).
    inputs, measure = getattr(learner.dls, "n_inp", 1), learner.loss_func

    def loss(model: Any, row: Any) -> Any:
        return measure(model(*row[:inputs]), *row[inputs:])

    def optimizer(weights: list[nn.Parameter]) -> Any:
        found = learner.opt_func(weights, lr=learner.lr)
        if learner.wd is not None:
            found.set_hypers(wd=learner.wd)
        return found

    return {"loss": loss, "optimizer": optimizer}
