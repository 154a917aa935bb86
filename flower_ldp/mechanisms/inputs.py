"""Reading private values of any kind, and a note in the log for those that cannot be read.

An unreadable value gets the mechanism's *neutral law*: a valid value from a public distribution,
which prefers none, randomized as any other. Every bound on the ratio of two laws holds for such a
mixture. Nothing here raises or warns because of a private value, whatever numpy's error state is.
Reports and counts are public, and malformed ones are refused.
"""

import logging
import math
import operator
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, SupportsIndex, TypeGuard, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flower_ldp.errors import quoted, say
from flower_ldp.mechanisms.random import Floats, Ints, RandomSource, uniform

_log = logging.getLogger("flower_ldp")
#: Stands for a category that could not be read.
INVALID = -1

LabelT = TypeVar("LabelT", bound=np.signedinteger[Any])


_notes: ContextVar[list[str] | None] = ContextVar("flower_ldp_notes", default=None)


@contextmanager
def noted() -> Iterator[list[str]]:
    """Collect the names of mechanisms that use the neutral law meanwhile, in this thread.

    For the client's own count of failures: the names must not leave.
    """
    found: list[str] = []
    token = _notes.set(found)
    try:
        yield found
    finally:
        _notes.reset(token)


def note(mechanism: str, why: str) -> None:
    """Log that a value got the neutral law, and why."""
    notes = _notes.get()
    if notes is not None:
        notes.append(mechanism)
    text = "%s: %s; a neutral report takes the place of it"
    say(_log, logging.WARNING, text, mechanism, why)


def plain_array(value: object) -> NDArray[Any]:
    """Return an array of real numbers, or of objects if one entry is none."""
    try:
        found = np.asarray(value)
        if found.dtype.kind in "biufO":
            return found
    except Exception:
        # Ragged lists, tensors that need a gradient, anything with an __array__ that fails.
        pass
    try:
        # NumPy has one type for all entries, such as text: each is read by itself instead.
        listed = isinstance(value, list | tuple | np.ndarray)
        return np.array(value if listed else None, dtype=object)
    except Exception:
        return np.array(None)


def _is_sequence(value: object) -> TypeGuard[Sequence[object]]:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray)


def plain_vector(value: object) -> NDArray[Any]:
    """Return a copy as :func:`plain_array`; of a list, one axis whose entries are as given."""
    if not _is_sequence(value):
        return plain_array(value).copy()
    vector = np.empty(len(value), dtype=object)
    for place, entry in enumerate(value):
        vector[place] = entry
    return vector


def real_array(value: object) -> NDArray[np.floating[Any]]:
    """Return a value as an array of float16, 32 or 64; NaN where an entry is no real number.

    Beyond the doubles an entry becomes infinite.
    """
    found = plain_array(value)
    if found.dtype.kind == "O":
        return np.array([_real(entry) for entry in found.reshape(-1)]).reshape(found.shape)
    return found if found.dtype.kind == "f" and found.dtype.itemsize <= 8 else as_double(found)


def _real(entry: object) -> float:
    try:
        # What has axes or text may still pass for a number: float("1") is one.
        found = np.asarray(entry)
        return float(entry) if found.shape == () and found.dtype.kind in "biufO" else math.nan  # type: ignore[arg-type]
    except Exception:
        return math.nan


def read_vector(value: object, dimension: int | None) -> tuple[NDArray[Any] | None, int]:
    """Return a vector of float16, 32 or 64 without a copy, or None; and the public dimension.

    ``dimension`` is the required number of entries; None takes the value's own as public.
    """
    found = real_array(value)
    if dimension is None:
        dimension = found.size
    return (found if found.shape == (dimension,) else None), dimension


@np.errstate(all="ignore")
def over_largest(update: NDArray[Any] | None, dimension: int) -> tuple[Floats, float]:
    """Return a private update over its largest magnitude, and that magnitude.

    Zeros and NaN if it is no vector of finite numbers. Sums of squares of the result are finite.
    """
    largest = math.nan if update is None else float(np.abs(update).max())
    if update is None or not 0 < largest < math.inf:
        return np.zeros(dimension), 0.0 if largest == 0 else math.nan
    return update.astype(np.float64) / largest, largest


def read_records(
    value: object, width: int, shape: tuple[int, ...] | None
) -> tuple[NDArray[Any] | None, tuple[int, ...]]:
    """Return one record or a table of them as real numbers, or None; and the public shape.

    ``shape`` is ``(width,)`` or ``(n, width)``, or ValueError; None takes an array's own number of
    rows as public. What a list is would be told by its private entries.
    """
    if shape is None:
        if _is_sequence(value):
            raise ValueError(f"shape must be given for a list: ({width},) or (n, {width})")
        found = real_array(value)
        shape = (*(found.shape[:-1] if found.ndim == 2 else ()), width)
        return (found if found.shape == shape else None), shape
    if len(shape) not in (1, 2) or shape[-1] != width:
        raise ValueError(f"shape must be ({width},) or (n, {width}), got {shape}")
    return read_rows(value, shape), shape


def read_rows(value: object, shape: tuple[int, ...]) -> NDArray[Any] | None:
    """Return real numbers of the public shape, or None. Each row of a list is read by itself."""
    if len(shape) == 2 and _is_sequence(value) and len(value) == shape[0]:
        rows = [real_array(row) for row in value]
        blank = np.full(shape[1], math.nan)
        value = np.array([as_double(row) if row.shape == shape[1:] else blank for row in rows])
    found = real_array(value)
    return found if found.shape == shape else None


def as_double(values: NDArray[Any]) -> Floats:
    """Return real numbers as float64; infinite beyond its range."""
    with np.errstate(all="ignore"):
        return values.astype(np.float64)


@np.errstate(all="ignore")
def read_labels(values: object, categories: int, dtype: type[LabelT]) -> NDArray[LabelT]:
    """Return a copy of categories as integers of ``dtype``, with -1 for each entry that names none.

    Integers, booleans and whole floats are read. Without axes if ``values`` is no array.
    """
    found = plain_vector(values)
    if found.dtype.kind == "O":
        entries = [read_label(entry, categories) for entry in found.reshape(-1)]
        return np.array(entries, dtype=dtype).reshape(found.shape)
    if found.dtype.kind == "f":
        found = as_double(found)
        good = (found >= 0) & (found < categories) & (np.floor(found) == found)
    else:
        good = (found >= 0) & (found < categories)
    read = np.where(good, found, 0).astype(dtype, order="C")
    read[~good] = INVALID
    return read


def read_label(value: object, categories: int) -> int:
    """Return one category, or -1."""
    try:
        found = np.asarray(value)
        entry = found.item() if found.dtype.kind in "biu" else value
        if found.dtype.kind in "fc" and found.imag == 0:
            entry = float(found.real)
        if isinstance(entry, float) and entry.is_integer():
            entry = int(entry)
        label = operator.index(entry)  # type: ignore[arg-type]
    except Exception:
        return INVALID
    return label if found.shape == () and 0 <= label < categories else INVALID


def refuse_prior(mechanism: str, prior: ArrayLike | None) -> None:
    """Raise ValueError if a prior is given."""
    if prior is not None:
        raise ValueError(f"prior must be left out for {mechanism}, which uses none")


def read_prior(
    mechanism: str, prior: ArrayLike | None, categories: int, shape: tuple[int, ...]
) -> Floats:
    """Return public priors as rows: one row for all values, or one for each; ValueError for others.

    Entries are at least 0 and need not add up to 1.
    """
    if prior is None:
        raise ValueError(f"prior must be given for {mechanism}")
    rows = np.asarray(prior)
    if rows.dtype.kind not in "iuf":
        raise ValueError(f"prior must be numbers, got dtype {rows.dtype}")
    if rows.shape not in ((categories,), (*shape, categories)):
        wanted = f"({categories},) or {(*shape, categories)}"
        raise ValueError(f"prior must have shape {wanted}, got {rows.shape}")
    rows = rows.astype(np.float64)
    if not (np.isfinite(rows) & (rows >= 0)).all():
        raise ValueError("prior must be finite and at least 0")
    return rows.reshape(-1, categories)


def fill_labels(
    labels: NDArray[LabelT], categories: int, rng: RandomSource, mechanism: str
) -> NDArray[LabelT]:
    """Replace -1 by uniform categories in place."""
    wrong = labels < 0
    count = int(np.count_nonzero(wrong))
    if count:
        note(mechanism, f"{count} of {labels.size} values are none of {categories} categories")
        labels[wrong] = uniform(categories, count, rng)
    return labels


def check_category(name: str, value: SupportsIndex, categories: int) -> int:
    """Return ``value`` as an int, or raise ValueError unless it is in [0, categories)."""
    try:
        found = operator.index(value)
    except TypeError:
        found = -1
    if not 0 <= found < categories:
        raise ValueError(f"{name} must be an integer in [0, {categories}), got {quoted(value)}")
    return found


def check_counts(counts: ArrayLike, categories: int) -> NDArray[np.integer[Any]]:
    """Return the reports of each category, or raise ValueError."""
    found = np.asarray(counts)
    if found.shape != (categories,):
        raise ValueError(f"counts must have shape ({categories},), got {found.shape}")
    if found.dtype.kind not in "iu" or (found < 0).any():
        raise ValueError("counts must be integers of at least 0")
    return found


def check_labels(name: str, values: ArrayLike, categories: int) -> Ints:
    """Return ``values`` as int64, or raise ValueError unless all are in [0, categories)."""
    found = np.asarray(values)
    if found.dtype.kind not in "biu" and found.size > 0:
        raise ValueError(f"{name} must be integers, got dtype {found.dtype}")
    if found.size and not (found.min() >= 0 and found.max() < categories):
        # The entries are private, so the text does not name them.
        raise ValueError(f"{name} must be integers in [0, {categories})")
    return found.astype(np.int64, order="C")
