"""The best model so far on disk, so that a run that ends early has not trained in vain."""

from __future__ import annotations

import math
import os
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, MetricRecord

from flower_ldp.files import replacing

Evaluate = Callable[[int, ArrayRecord], MetricRecord | None]


class BestModel:
    """An ``evaluate_fn`` for ``Strategy.start`` that saves the model whenever it is the best.

    The file is an ``npz`` of the model's arrays by their names. It is replaced as a whole, so
    it is complete at every moment.

    Parameters
    ----------
    path : path-like
        Of the file, ending in ``.npz``.
    evaluate : callable, optional
        The server's own evaluation. Without one, or in a round for which it returns None,
        the model counts as the best if no round was evaluated yet: the latest is kept.
    metric : str
        Which of its metrics decides.
    higher_is_better : bool
        Whether more of it is better.

    Attributes
    ----------
    server_round : int or None
        The round whose model is in the file; 0 is the initial model.
    value : float or None
        Its metric.

    Examples
    --------
    Given to ``strategy.start(grid, arrays, evaluate_fn=best)``, it is called after each round.

    >>> best = BestModel("best.npz", lambda server_round, arrays: MetricRecord({"accuracy": 0.9}))
    >>> best.server_round is None
    True
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        evaluate: Evaluate | None = None,
        *,
        metric: str = "accuracy",
        higher_is_better: bool = True,
    ) -> None:
        self.path = Path(path)
        if self.path.suffix != ".npz":
            raise ValueError(f"path must end in .npz, got {self.path}")
        self.server_round: int | None = None
        self.value: float | None = None
        self._evaluate = evaluate
        self._metric = metric
        self._sign = 1.0 if higher_is_better else -1.0

    def __call__(self, server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
        """Evaluate a round's model, save it if it is the best, and return its metrics.

        Raises
        ------
        ValueError
            If the evaluation does not return the metric that decides.
        """
        found = None if self._evaluate is None else self._evaluate(server_round, arrays)
        value = None if found is None else self._value_of(found)
        if self._is_best(value):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # numpy.savez takes names as keywords, and an array may be called "file".
            with replacing(self.path) as file, zipfile.ZipFile(file, "w") as archive:
                for name, array in arrays.items():
                    with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                        np.lib.format.write_array(member, array.numpy(), allow_pickle=False)
            self.server_round, self.value = server_round, value
        return found

    def _value_of(self, found: MetricRecord) -> float:
        value = found.get(self._metric)
        if not isinstance(value, int | float):
            raise ValueError(f"evaluate must return {self._metric!r}, got {dict(found)}")
        return float(value)

    def _is_best(self, value: float | None) -> bool:
        if value is None or self.value is None:
            return value is not None or self.value is None
        return not math.isnan(value) and (
            math.isnan(self.value) or self._sign * value > self._sign * self.value
        )
