"""Linear estimators of scikit-learn, trained within the charge of the message.

A fit minimizes the estimator's own objective by noisy gradient steps. Each row's loss is that of
the estimator; its penalty depends on no row.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from flwr.app import Context, RecordDict
from numpy.typing import ArrayLike, NDArray
from torch import nn
from torch.nn import functional

from flower_ldp.clients.session import CountSession, TrainingSession, current_session
from flower_ldp.parameter_bounds import check_in
from flower_ldp.training.losses import supervised
from flower_ldp.training.private import private_accuracy, private_training

#: What is trained by another estimator than the one that was given.
_INSTEAD = {
    "LinearRegression": "Ridge(alpha=0.0)",
    "SGDClassifier": "LogisticRegression()",
    "SGDRegressor": "Ridge()",
    "LinearSVC": "LogisticRegression()",
}


def private_fit(
    context: Context,
    estimator: Any,
    features: ArrayLike,
    target: ArrayLike,
    *,
    rate: float,
    classes: Sequence[Any] | None = None,
    scale: float = 1.0,
    groups: Iterable[Hashable] | None = None,
    max_rows: int = 1,
) -> RecordDict:
    """Fit an estimator for one round by the charged plan, and return the app's reply.

    The round starts from the coefficients that the server sent. Afterwards the estimator has
    ``coef_``, ``intercept_``, and ``classes_`` where it predicts classes.

    Parameters
    ----------
    context, groups, max_rows
        As for :func:`~flower_ldp.training.private_training`.
    estimator : LogisticRegression, Ridge or HuberRegressor
        Of scikit-learn. The server sends its ``coef_``, then its ``intercept_`` if it fits one, as
        float arrays of these shapes.
    features : array_like, shape (n, d)
        **Private** rows, scaled by **public** numbers to about [-1, 1]: an array, a list of rows or
        a data frame. A row that has no d numbers counts as zero.
    target : array_like, shape (n,)
        **Private**. Classes, or numbers that are scaled likewise. A row with another class counts
        as zero.
    rate : float
        Of a step against the mean gradient; positive.
    classes : sequence, optional
        All **public** classes, ascending, for LogisticRegression. A site may lack some.
    scale : float
        **Public** scale of a residual, for HuberRegressor, which does not fit it then; positive.

    Raises
    ------
    TypeError
        If the estimator is another one, or there is no target.
    ValueError
        If classes or settings do not fit the estimator, or arrays of other shapes were sent.
    ReleaseError
        As for :func:`~flower_ldp.training.private_training`.
    """
    check_in("(0, inf)", "rate", rate)
    check_in("(0, inf)", "scale", scale)
    session = current_session(TrainingSession)
    kind = _kind_of(estimator, classes, scale)
    model = _Linear(session.sent, kind.outputs, fits_intercept=estimator.fit_intercept)
    decay = kind.penalty / session.granted.examples

    def optimizer(weights: list[nn.Parameter]) -> torch.optim.Optimizer:
        settings: list[dict[str, Any]] = [{"params": [one]} for one in weights]
        settings[0]["weight_decay"] = decay  # of the coefficients alone
        return torch.optim.SGD(settings, lr=rate)

    reply = private_training(
        context,
        model,
        _Rows(features, target, kind.encode),
        supervised(kind.loss),
        optimizer=optimizer,
        like=_like(model, kind),
        groups=groups,
        max_rows=max_rows,
    )
    found = [one.detach().numpy().copy() for one in model.parameters()]
    estimator.coef_ = found[0]
    estimator.intercept_ = found[1] if estimator.fit_intercept else np.zeros(kind.outputs or ())
    estimator.n_features_in_ = model.inputs
    if classes is not None:
        estimator.classes_ = np.asarray(classes)
    return reply


class _Linear(nn.Module):
    """A linear model whose parameters have the names and shapes of the arrays sent."""

    def __init__(
        self, sent: Mapping[str, NDArray[Any]], outputs: int, *, fits_intercept: bool
    ) -> None:
        super().__init__()
        shapes = [array.shape for array in sent.values()]
        inputs = shapes[0][-1] if shapes and shapes[0] else 0
        wanted: list[tuple[int, ...]] = [(outputs, inputs) if outputs else (inputs,)]
        wanted += [(outputs,) if outputs else ()] if fits_intercept else []
        if not inputs or shapes != wanted:
            raise ValueError(
                f"the server must send coef_ and then intercept_, of shapes {wanted}, got {shapes}"
            )
        for name, array in sent.items():
            self.register_parameter(name, nn.Parameter(torch.from_numpy(np.array(array))))
        self.inputs, self._fits_intercept = inputs, fits_intercept

    @property
    def coefficients(self) -> nn.Parameter:
        return next(self.parameters())

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        coefficients, *intercept = self.parameters()
        output = functional.linear(features, coefficients)
        return output + intercept[0] if intercept else output


class _Rows:
    """Rows that are read one by one: as one array, an odd row would change how others are read."""

    def __init__(self, features: Any, target: Any, encode: Callable[[Any], Any]) -> None:
        if target is None:
            raise TypeError("target must be given: rows without one take private_training")
        self._features, self._target, self._encode = _indexed(features), _indexed(target), encode

    def __len__(self) -> int:
        return len(self._features)

    def __getitem__(self, index: int) -> tuple[NDArray[np.float64], Any]:
        row, target = self._features[index], self._target[index]
        if isinstance(row, Mapping):
            raise TypeError("a row must be numbers, not a dict: [row[name] for name in COLUMNS]")
        if np.ndim(target):
            raise TypeError("a target must be one value: several outputs take private_training")
        return np.asarray(row, dtype=np.float64), self._encode(target)


def _indexed(table: Any) -> Any:
    """Return a data frame's array, and anything else as it is."""
    return table.to_numpy() if hasattr(table, "to_numpy") else table


def private_score(
    context: Context,
    estimator: Any,
    features: ArrayLike,
    target: ArrayLike,
    *,
    classes: Sequence[Any] | None = None,
    worst: float = 1.0,
    groups: Iterable[Hashable] | None = None,
    max_rows: int = 1,
) -> RecordDict:
    """Score the coefficients that the server sent, and return the app's reply.

    The score is the share of right classes, or for numbers that of the mean absolute error: 0 is an
    error of ``worst`` or more, and 1 is none. Parameters and errors are those of
    :func:`private_fit`, and of :func:`~flower_ldp.training.private_accuracy`.

    Parameters
    ----------
    worst : float
        **Public** bound that a row's absolute error is clipped to; positive.
    """
    check_in("(0, inf)", "worst", worst)
    kind = _kind_of(estimator, classes, 1.0)
    sent = current_session(CountSession).sent
    model = _Linear(sent, kind.outputs, fits_intercept=estimator.fit_intercept)
    is_error = classes is None
    return private_accuracy(
        context,
        model,
        _Rows(features, target, kind.encode),
        like=_like(model, kind),
        right=supervised(_error if is_error else _is_class),
        worst=worst if is_error else 0.0,
        best=0.0 if is_error else 1.0,
        groups=groups,
        max_rows=max_rows,
    )


@dataclass(frozen=True)
class _Kind:
    """What an estimator minimizes: the mean of ``loss``, and half of ``penalty`` / n times w²."""

    #: Rows of ``coef_``, or 0 where it is a vector.
    outputs: int
    penalty: float
    #: Of a target; None for the coefficients'.
    dtype: torch.dtype | None
    encode: Callable[[Any], Any]
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def _kind_of(estimator: Any, classes: Sequence[Any] | None, scale: float) -> _Kind:
    name = type(estimator).__name__
    if name not in ("LogisticRegression", "Ridge", "HuberRegressor"):
        instead = _INSTEAD.get(name, "LogisticRegression, Ridge or HuberRegressor")
        raise TypeError(f"{name} is not trained by DP-SGD here: take {instead}")
    if name == "LogisticRegression":
        if classes is None or len(classes) < 2 or list(classes) != sorted(set(classes)):
            raise ValueError("classes must be two or more, ascending, each once: the public labels")
        others = estimator.l1_ratio or estimator.class_weight is not None
        if others or getattr(estimator, "penalty", "l2") not in ("l2", "deprecated"):
            why = "only L2 is penalized. C=numpy.inf has no penalty"
            raise ValueError(f"penalty, l1_ratio and class_weight must be left out: {why}")
        check_in("(0, inf]", "C", estimator.C)
        places = {label: place for place, label in enumerate(classes)}
        return _Kind(
            1 if len(classes) == 2 else len(classes),
            1.0 / estimator.C,
            torch.int64,
            lambda label: places[getattr(label, "item", lambda: label)()],
            _of_classes,
        )
    if classes is not None:
        raise ValueError(f"classes belong to LogisticRegression, not to {name}: leave them out")
    if getattr(estimator, "positive", False):
        raise ValueError("positive must be False: noise makes coefficients of either sign")
    check_in("[0, inf)", "alpha", estimator.alpha)
    if name == "Ridge":
        return _Kind(0, estimator.alpha, None, float, lambda o, t: functional.mse_loss(o, t) / 2)
    huber = partial(functional.huber_loss, delta=estimator.epsilon * scale)
    return _Kind(0, estimator.alpha * scale, None, float, huber)


def _like(model: _Linear, kind: _Kind) -> tuple[torch.Tensor, torch.Tensor]:
    dtype = model.coefficients.dtype
    return torch.zeros(model.inputs, dtype=dtype), torch.tensor(0, dtype=kind.dtype or dtype)


def _error(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (output - target).abs()


def _is_class(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    found = output[:, 0] > 0 if output.shape[-1] == 1 else output.argmax(dim=-1)
    return (found == target).to(torch.float64)


def _of_classes(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    if output.shape[-1] == 1:
        return functional.binary_cross_entropy_with_logits(output[:, 0], target.to(output.dtype))
    return functional.cross_entropy(output, target)
