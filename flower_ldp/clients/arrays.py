"""The arrays of a message or a reply; and in words, why a reply is answered by a neutral report.

The words say which array it is, what was expected and what was found. They are as private as the
app's reply is. They are for a rehearsal, whose reply is made of public data, and for the log of a
simulation, where nothing is protected.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np
from flwr.app import Array, ArrayRecord, RecordDict
from numpy.typing import NDArray

from flower_ldp.clients.diagnostics import cause_of
from flower_ldp.errors import WireError, quoted
from flower_ldp.mechanisms.laplace import read_simplex_rows
from flower_ldp.own_log import say
from flower_ldp.wire.embedding import EmbeddingMechanism, codec_of
from flower_ldp.wire.layout import ModelLayout

_log = logging.getLogger("flower_ldp")

ReadT = TypeVar("ReadT")


def single_model(content: RecordDict) -> dict[str, NDArray[Any]]:
    """Return the arrays of a message's only ArrayRecord.

    Raises
    ------
    WireError
        If there is none, or more than one, or something else than arrays is in it.
    """
    return {name: open_array(array) for name, array in _single_record(content).items()}


def trained_model(reply: RecordDict, layout: ModelLayout) -> dict[str, NDArray[Any]]:
    """Return the arrays of a reply's only ArrayRecord, as far as the update is made of them.

    Where the layout wants the arrays of the update alone, others are not opened: they can be of
    any bytes.

    Raises
    ------
    WireError
        As :func:`single_model`, of the arrays that are opened.
    ValueError
        As :meth:`~flower_ldp.wire.layout.ModelLayout.check_names`, before one is opened.
    """
    found = _single_record(reply)
    layout.check_names(found)  # before one is opened: a record may name an array very many times
    return {spec.name: open_array(found[spec.name]) for spec in layout.required}


def _single_record(content: RecordDict) -> ArrayRecord:
    records: list[ArrayRecord] = list(content.array_records.values())
    if len(records) != 1:
        raise WireError("record", f"expected one ArrayRecord, found {len(records)}")
    return records[0]


def open_array(array: Array) -> NDArray[Any]:
    """Return an array of a record.

    Raises
    ------
    WireError
        If its bytes are anything else.
    """
    try:
        found: object = array.numpy()
    except Exception as error:  # by no type of its own: of archives, headers, memory, pickles
        raise WireError("array", f"{type(error).__name__}: {error}") from error
    if not isinstance(found, np.ndarray):  # numpy opens whatever its bytes say that it is
        raise WireError("array", f"expected an array, found {type(found).__name__}")
    return found


def read_update(
    reply: RecordDict, layout: ModelLayout, sent: Mapping[str, NDArray[Any]]
) -> NDArray[np.float32] | None:
    """Return the trained model minus the model sent, or None if the reply has no such model.

    Whatever the app put into its reply is private, also that it put nothing there. So nothing is
    raised; the client's own log says what was wrong.

    Parameters
    ----------
    reply : RecordDict
        The app's.
    layout : ModelLayout
        Of the model sent.
    sent : mapping of str to ndarray
        The model sent.

    Returns
    -------
    ndarray of float32, shape (d,), or None
        With infinities where a difference is beyond float32.
    """
    return _or_none(
        lambda: layout.difference(trained_model(reply, layout), sent),
        "the app's reply holds no model like the one sent: %s",
    )


def read_array(reply: RecordDict) -> NDArray[Any] | None:
    """Return the only array of a reply, or None if it does not hold one, or more.

    Raises nothing, as :func:`read_update`.
    """
    return _or_none(lambda: only_array(reply)[1], "the app's reply does not hold one array: %s")


def _or_none(read: Callable[[], ReadT], text: str) -> ReadT | None:
    try:
        return read()
    except Exception as error:
        say(_log, logging.WARNING, text, cause_of(error))
        return None


def only_array(reply: RecordDict) -> tuple[str, NDArray[Any]]:
    """Return the name of a reply's only array, and the array.

    Raises
    ------
    WireError
        If there is none, or more than one, or its bytes are anything else.
    """
    found = [item for record in reply.array_records.values() for item in record.items()]
    if len(found) != 1:
        names = quoted([name for name, _ in found]) if found else "none"
        raise WireError("record", f"expected one array, found {names}")
    name, array = found[0]
    return name, open_array(array)


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
