r"""Rows on the probability simplex: projection onto it, and what counts as being on it.

The projection of y is the nearest x with :math:`x_i \ge 0` and :math:`\sum_i x_i = 1`. It is
:math:`x_i = \max(y_i - \tau, 0)` with the one :math:`\tau` that makes the sum 1 (Held, Wolfe,
Crowder 1974): with y sorted in descending order,
:math:`\tau = (y_1 + \dots + y_r - 1)/r` for the largest r with :math:`y_r > \tau`.

It reads reports only, so it is post-processing and costs no privacy. No row on the simplex
is farther from the projection than from the report.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flower_ldp.mechanisms.inputs import as_double, real_array

#: How far from 1 the sum of a row may be; half precision needs most of it.
ROW_SUM_TOLERANCE = 1e-3


def project_to_simplex(rows: ArrayLike) -> NDArray[np.float64]:
    """Return the nearest row on the simplex for each row, in Euclidean distance.

    Parameters
    ----------
    rows : array_like of float, shape (n, k) or (k,)
        Any finite numbers; k at least 1.

    Returns
    -------
    ndarray of float64, same shape
        Not negative; each row adds up to 1.

    Raises
    ------
    ValueError
        If the shape is another or an entry is not finite.

    Examples
    --------
    >>> project_to_simplex([0.5, 1.0, -3.0]).tolist()
    [0.25, 0.75, 0.0]
    """
    given = np.asarray(rows, dtype=np.float64)
    if given.ndim not in (1, 2) or given.shape[-1] == 0:
        raise ValueError(f"rows must have shape (n, k) or (k,) with k >= 1, got {given.shape}")
    if not np.isfinite(given).all():
        raise ValueError("rows must be finite, got NaN or infinity")
    # The same multiple of ones on every entry changes nothing but large numbers' rounding.
    flat = given.reshape(-1, given.shape[-1])
    flat = flat - flat.max(axis=1, keepdims=True)
    falling = -np.sort(-flat, axis=1)
    shift = (np.cumsum(falling, axis=1) - 1.0) / np.arange(1, flat.shape[1] + 1)
    size = (falling > shift).sum(axis=1)
    tau = np.take_along_axis(shift, size[:, None] - 1, axis=1)
    return np.asarray(np.maximum(flat - tau, 0.0).reshape(given.shape))


def read_simplex_rows(
    value: object, shape: tuple[int, int]
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return private rows, the centre in place of those off the simplex, and which are on it.

    Parameters
    ----------
    value : object
        Class probabilities; each row is judged by itself.
    shape : (int, int)
        The public shape, n and k. A value of another one has no row.

    Returns
    -------
    rows : ndarray of float64, shape (n, k)
        A copy.
    good : ndarray of bool, shape (n,)
    """
    found = real_array(value)
    if found is None or found.shape != shape:
        return np.full(shape, 1.0 / shape[1]), np.zeros(shape[0], dtype=np.bool_)
    rows = as_double(found)
    with np.errstate(all="ignore"):
        good = (rows >= 0).all(axis=1) & (np.abs(rows.sum(axis=1) - 1.0) <= ROW_SUM_TOLERANCE)
    rows[~good] = 1.0 / shape[1]
    return rows, good


def check_simplex_rows(name: str, rows: NDArray[Any], classes: int | None) -> NDArray[np.float64]:
    """Return rows as float64, or raise unless they are on the simplex.

    Parameters
    ----------
    name : str
        What the error calls them; it shows no entry, since rows are private.
    rows : ndarray of float, shape (n, k)
        Class probabilities.
    classes : int, optional
        The width that is wanted, k.

    Raises
    ------
    ValueError
        If the shape or dtype is another, or a row is not finite, is negative anywhere or
        does not add up to 1 within 1e-3.
    """
    given = np.asarray(rows)
    if given.ndim != 2 or given.shape[1] < 2 or classes not in (None, given.shape[1]):
        wanted = "k >= 2" if classes is None else str(classes)
        raise ValueError(f"{name} must have shape (n, {wanted}), got {given.shape}")
    if given.dtype.kind != "f":
        raise ValueError(f"{name} must be an array of floats, got dtype {given.dtype}")
    found = given.astype(np.float64)
    if not np.isfinite(found).all():
        raise ValueError(f"{name} must be finite, got NaN or infinity")
    if (found < 0).any():
        raise ValueError(f"{name} must not be negative")
    if (np.abs(found.sum(axis=1) - 1.0) > ROW_SUM_TOLERANCE).any():
        raise ValueError(f"rows of {name} must add up to 1 within {ROW_SUM_TOLERANCE}")
    return found
