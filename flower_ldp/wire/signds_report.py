"""The bytes of one SignDS report: version, flags, subset.

====== ===== ===============================================================
offset bytes content
====== ===== ===============================================================
0      1     version, 1
1      1     flags: 1 = the sign is +1, 2 = a magnitude bit follows, 4 = that
             bit; all others zero
2      rest  the indices, see :mod:`~flower_ldp.wire.subset`
====== ===== ===============================================================

Dimension, number of indices and the presence of a magnitude bit are public, so the
length is too: it says nothing about the client. 238 indices of 61,706 take 300 bytes
(the entropy is 281), of 10,000,000, 517 bytes.

A report is accepted only if encoding what it says gives the very same bytes. Reasons of
:class:`~flower_ldp.errors.WireError`: ``VERSION``, ``FLAGS`` here, and from the subset
``LENGTH``, ``PADDING``, ``RANGE``, ``ORDER``.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flower_ldp.errors import WireError
from flower_ldp.wire import subset
from flower_ldp.wire.subset import LENGTH, ORDER, PADDING, RANGE

__all__ = [
    "FLAGS",
    "LENGTH",
    "ORDER",
    "PADDING",
    "RANGE",
    "VERSION",
    "decode_report",
    "encode_report",
    "report_length",
]

#: The first byte is no version that this code knows.
VERSION = "version"
#: An unknown flag is set, or the magnitude bit is missing or uncalled for.
FLAGS = "flags"

_VERSION = 1
_HEADER_BYTES = 2
_POSITIVE = 1
_HAS_BIT = 2
_BIT = 4


def report_length(*, dimension: int, dim_out: int) -> int:
    """Return the number of bytes of every report of ``dim_out`` indices.

    Parameters
    ----------
    dimension : int
        Number of coordinates of the update, in [1, 2**32 - 1].
    dim_out : int
        Number of indices, in [1, min(dimension, 4096)].

    Raises
    ------
    ValueError
        If a parameter is outside its interval.
    """
    return _HEADER_BYTES + subset.encoded_length(dimension, dim_out)


def encode_report(
    indices: NDArray[np.int64] | NDArray[np.uint32],
    sign: int,
    bit: int | None,
    *,
    dimension: int,
) -> bytes:
    """Encode one report.

    Parameters
    ----------
    indices : numpy.ndarray of int64 or uint32, shape (dim_out,)
        Strictly increasing, in [0, dimension), dim_out in [1, min(dimension, 4096)].
    sign : int
        1 or -1.
    bit : int or None
        Magnitude bit, 0 or 1; None if the round asks for none.
    dimension : int
        Number of coordinates of the update, in [1, 2**32 - 1].

    Returns
    -------
    bytes
        Of length ``report_length(dimension=dimension, dim_out=dim_out)``.

    Raises
    ------
    ValueError
        If an argument is not as described.
    """
    if sign not in (-1, 1):
        raise ValueError(f"sign must be -1 or 1, got {sign}")
    if bit not in (None, 0, 1):
        raise ValueError(f"bit must be None, 0 or 1, got {bit}")
    flags = _POSITIVE if sign == 1 else 0
    if bit is not None:
        flags |= _HAS_BIT | (_BIT if bit else 0)
    return bytes((_VERSION, flags)) + subset.encode(indices, dimension)


def decode_report(
    data: bytes, *, dimension: int, dim_out: int, has_bit: bool
) -> tuple[NDArray[np.int64], int, int | None]:
    """Decode one report, strictly.

    Parameters
    ----------
    data : bytes
        What :func:`encode_report` returned.
    dimension : int
        Number of coordinates of the update, in [1, 2**32 - 1].
    dim_out : int
        Number of indices, in [1, min(dimension, 4096)].
    has_bit : bool
        Whether a magnitude bit must be there; if not, it must not.

    Returns
    -------
    indices : numpy.ndarray of int64, shape (dim_out,)
        Strictly increasing, in [0, dimension).
    sign : int
        1 or -1.
    bit : int or None
        0 or 1 if ``has_bit``, else None.

    Raises
    ------
    WireError
        If ``data`` is no such report; ``reason`` is one of this module's constants.
    ValueError
        If ``dimension`` or ``dim_out`` is outside its interval.
    """
    expected = report_length(dimension=dimension, dim_out=dim_out)
    if data and data[0] != _VERSION:
        raise WireError(VERSION, f"version {data[0]}, expected {_VERSION}")
    if len(data) != expected:
        raise WireError(LENGTH, f"{len(data)} bytes, expected {expected}")
    flags = data[1]
    required = _HAS_BIT if has_bit else 0
    allowed = _POSITIVE | (_HAS_BIT | _BIT if has_bit else 0)
    if flags & required != required or flags & ~allowed:
        raise WireError(FLAGS, f"flags {flags:#04x} with has_bit = {has_bit}")
    indices = subset.decode(data[_HEADER_BYTES:], dimension, dim_out)
    sign = 1 if flags & _POSITIVE else -1
    bit = int(bool(flags & _BIT)) if has_bit else None
    return indices, sign, bit
