"""Which part of a model is few enough to be trained: what ``trainable`` would be for it.

A verdict that asks for fewer weights is a number. The server knows the model, so it can say which
of its last layers have no more, in the words of the strategy's own argument.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from itertools import groupby
from typing import Any

from numpy.typing import NDArray

from flower_ldp.advice.outlook import Outlook
from flower_ldp.errors import quoted
from flower_ldp.wire.layout import ArraySpec, ModelLayout
from flower_ldp.wire.part import perhaps_statistics, running_statistics

_log = logging.getLogger("flwr")
_Layer = tuple[ArraySpec, ...]
#: Of more layers the names are not looked for.
_MOST_LAYERS = 4


def tell_of_part(layout: ModelLayout, outlook: Outlook) -> None:
    """Log what a verdict says nothing of, and which part of the model would make it a good one.

    Parameters
    ----------
    layout : ModelLayout
        Of the model, with what of it reports are about.
    outlook : Outlook
        Of the run.
    """
    within, remedies = layout.part.subspace, outlook.remedies
    if within is not None:
        _log.info(
            "these cosines are within the %d public dimensions: of what updates have outside them "
            "nothing is learned",
            within.dimension,
        )
    elif remedies is not None and remedies.weights is not None:
        _log.warning("%s", fewer_weights(layout, remedies.weights))
    elif remedies is None and layout.part.names is not None:
        _log.info(
            "these cosines are of the trained arrays alone: how much a model can learn by them is "
            "a matter of the others, which stay as they are"
        )


def tell_of_statistics(model: Mapping[str, NDArray[Any]]) -> None:
    """Log which arrays are BatchNorm's running statistics, and which may be and are trained."""
    statistics, perhaps = sorted(running_statistics(model)), perhaps_statistics(model)
    if statistics:
        _log.info("BatchNorm's running statistics stay as they are: %s", ", ".join(statistics))
    if perhaps:
        _log.warning(
            "these arrays look like running statistics (BatchNorm's) and are trained as weights: "
            "%s. If they are none of the weights, name those to train by trainable= (docs/part.md)",
            quoted(perhaps),
        )


def fewer_weights(layout: ModelLayout, most: int) -> str:
    """Return, for the log, which last layers are so few weights, or that none are.

    Parameters
    ----------
    layout : ModelLayout
        Of the model, with what of it reports are about now.
    most : int
        Weights that they may be about.
    """
    layers = _layers(layout)
    for count in range(min(_MOST_LAYERS, len(layers)), 0, -1):
        chosen = layers[-count:]
        if _size(chosen) <= most and _is_matrix(chosen[0]):
            words = [word for layer in chosen for word in _words(layer, layout)]
            shown = repr(words[0] if len(words) == 1 else words)
            return (
                f"Of this model trainable={shown} is so few, {_size(chosen):,} weights. The rest "
                "stays as it is: begin with one that was trained on public data (docs/part.md)."
            )
    last = next((layer for layer in reversed(layers) if _is_matrix(layer)), layers[-1])
    named = " and ".join(repr(word) for word in _words(last, layout))
    return (
        f"No last layer of this model is so few: {named} has {_size([last]):,} weights. It takes a "
        "smaller one, over features that stay as they are (docs/asked_once.md)."
    )


def _layers(layout: ModelLayout) -> list[_Layer]:
    """Return the trained arrays, those side by side whose names differ in the last part as one."""
    arrays = [spec for spec in layout.updated if spec.size]
    return [tuple(group) for _, group in groupby(arrays, key=_place)]


def _place(spec: ArraySpec) -> str:
    before, dot, _ = spec.name.rpartition(".")
    return before if dot else spec.name


def _words(layer: _Layer, layout: ModelLayout) -> list[str]:
    """Return a pattern that means these arrays and no others, or their names."""
    names = [spec.name for spec in layer]
    pattern = f"{_place(layer[0])}.*"
    matched = [s.name for s in layout.specs if s.is_float and fnmatchcase(s.name, pattern)]
    return [pattern] if matched == names else names


def _is_matrix(layer: _Layer) -> bool:
    """Tell whether a layer has more than biases and scales."""
    return any(len(spec.shape) > 1 for spec in layer)


def _size(layers: Iterable[_Layer]) -> int:
    return sum(spec.size for layer in layers for spec in layer)
