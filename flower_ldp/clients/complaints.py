"""What makes a report neutral, in words: which array, what was expected, what was found.

The words are as private as the app's reply is. They are for a rehearsal, whose reply is made of
public data, and for the log of a simulation, where nothing is protected.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from flwr.app import RecordDict
from numpy.typing import NDArray

from flower_ldp.clients.arrays import only_array, trained_model
from flower_ldp.errors import WireError, quoted
from flower_ldp.mechanisms.simplex import read_simplex_rows
from flower_ldp.wire.embedding import EmbeddingMechanism, codec_of
from flower_ldp.wire.layout import ModelLayout

_MOST_ARRAYS = 8


def update_complaint(
    reply: RecordDict, layout: ModelLayout, sent: Mapping[str, NDArray[Any]]
) -> str | None:
    """Return in words why no update can be read from a reply; None if one can.

    Parameters
    ----------
    reply : RecordDict
        The app's.
    layout : ModelLayout
        Of the model sent.
    sent : mapping of str to ndarray
        The model sent.
    """
    try:
        update = layout.difference(trained_model(reply, layout), sent)
    except Exception as error:
        return f"the reply holds no model like the one sent: {error}"
    spoiled, start = [], 0
    for spec in layout.updated:
        piece = update[start : start + spec.size]
        start += spec.size
        if not np.isfinite(piece).all():
            spoiled.append(f"of array {quoted(spec.name)}, shape {spec.shape}, {_odd(piece)}")
    return f"the update is not finite: {'; '.join(spoiled[:_MOST_ARRAYS])}" if spoiled else None


def are_rows(found: NDArray[Any], classes: int) -> bool:
    """Return whether an array has one row or more of so many real numbers."""
    shape = found.ndim == 2 and len(found) > 0 and found.shape[1] == classes
    return shape and found.dtype.kind in "biuf"


def rows_complaint(reply: RecordDict, classes: int) -> str | None:
    """Return in words why not all rows of class probabilities can be read; None if all can.

    Parameters
    ----------
    reply : RecordDict
        The app's.
    classes : int
        Entries of a row. How many rows there are does not matter, as long as there is one.
    """
    try:
        name, found = only_array(reply)
    except WireError as error:
        return f"no rows of class probabilities: {error}"
    if not are_rows(found, classes):
        return (
            f"array {quoted(name)}: expected rows of class probabilities, shape (n, {classes}) "
            f"with at least one, found {found.dtype} {found.shape}"
        )
    wrong = int(np.count_nonzero(~read_simplex_rows(found, (len(found), classes))[1]))
    if not wrong:
        return None
    return (
        f"array {quoted(name)}, shape {found.shape}: {wrong:,} of {len(found):,} rows are off the "
        f"simplex (negative somewhere, or not adding up to 1), with {_odd(found)}"
    )


def embeddings_complaint(
    reply: RecordDict, mechanism: EmbeddingMechanism, shape: tuple[int, int]
) -> str | None:
    """Return in words why not all embeddings of a block can be read; None if all can.

    Parameters
    ----------
    reply : RecordDict
        The app's.
    mechanism : UnaryEncoding or CodebookEmbedding
        What randomizes them.
    shape : (int, int)
        Records of the block, and the embedding's width.
    """
    try:
        name, found = only_array(reply)
    except WireError as error:
        return f"no embeddings: {error}"
    if found.shape != shape or found.dtype.kind not in "biuf":
        return (
            f"array {quoted(name)}: expected embeddings of shape {shape}, found {found.dtype} "
            f"{found.shape}"
        )
    wrong = int(mechanism.unread(found).sum())
    if not wrong:
        return None
    one_hot = codec_of(mechanism).is_one_hot(mechanism)
    kind = "are not one-hot" if one_hot else "cannot be read"
    return (
        f"array {quoted(name)}, shape {found.shape}: {wrong:,} of {len(found):,} records {kind}, "
        f"with {_odd(found)}"
    )


def _odd(values: NDArray[Any]) -> str:
    """Say how many real numbers are not finite."""
    nan = int(np.count_nonzero(np.isnan(values)))
    infinite = int(np.count_nonzero(np.isinf(values)))
    return f"{nan:,} NaN and {infinite:,} infinite of {values.size:,} entries"
