"""The top set by its definition: what the law says, apart from how the sampler finds it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def top_by_sort(values: NDArray[np.floating[Any]], size: int, sign: int) -> NDArray[np.int64]:
    """Return the positions of the ``size`` largest entries of ``sign * values``.

    Imports nothing of :mod:`.topk` and must not: the law of a report is checked against reports,
    and code that both used would be wrong in both.

    Parameters
    ----------
    values : ndarray of float16, float32 or float64, shape (d,)
        The vector u.
    size : int
        K, in ``[1, d]``.
    sign : {-1, +1}
        The s in ``s*u``.

    Returns
    -------
    ndarray of int64, shape (size,)
        The best first; among equals the lower position first.

    Raises
    ------
    ValueError
        If an entry is NaN or infinite.
    """
    if not np.isfinite(values).all():
        raise ValueError("values must be finite")
    # A change of sign and no product, which would flush subnormals where the processor is set so.
    wide = values.astype(np.float64)
    falling = np.negative(wide) if sign > 0 else wide
    return np.argsort(falling, kind="stable")[:size]
