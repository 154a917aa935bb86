"""SignDS on the wire: the server's proposal of a round, and the bytes of a report.

The proposal is plain fields of a record. It states every public parameter that the randomizers
use, so that client and server compute the same h, v_th and keeping probability. The client accepts
it exactly or refuses; nothing is clamped. The bytes of a report are version, flags and subset:

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

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flower_ldp.errors import WireError, quoted
from flower_ldp.mechanisms.magrr import MagRR
from flower_ldp.mechanisms.signds import SignDS
from flower_ldp.privacy import PrivacyEvent
from flower_ldp.wire import subset
from flower_ldp.wire.fields import check_version, float_field
from flower_ldp.wire.health import (
    AsksHealth,
    health_events,
    health_fields,
    health_length,
    without_health,
)
from flower_ldp.wire.subset import LENGTH, ORDER, PADDING, RANGE

__all__ = [
    "FLAGS",
    "LENGTH",
    "ORDER",
    "PADDING",
    "RANGE",
    "VERSION",
    "SignDSProposal",
    "decode_report",
    "encode_report",
    "report_length",
]

_VERSION = 1
_REQUIRED = {"version", "mechanism", "epsilon", "k", "threshold-ratio", "dim-out"}
_MAGNITUDE = {"magnitude-epsilon", "magnitude-threshold"}

#: The first byte is no version that this code knows.
VERSION = "version"
#: An unknown flag is set, or the magnitude bit is missing or uncalled for.
FLAGS = "flags"

_REPORT_VERSION = 1
_HEADER_BYTES = 2
_POSITIVE = 1
_HAS_BIT = 2
_BIT = 4


@dataclass(frozen=True)
class SignDSProposal(AsksHealth):
    """One round of SignDS, with or without a magnitude bit.

    Parameters
    ----------
    selection : SignDS
        The dimension selection; to be sent, with k written out (``sized``).
    magnitude_epsilon : float or None
        Per bit, per client; None if no bit is asked for.
    magnitude_threshold : float or None
        What the client compares its magnitude with; None together with the epsilon.
    health_epsilon : float or None
        Of the health bit (:mod:`flower_ldp.wire.health`); None if it is not asked for.
    """

    selection: SignDS
    magnitude_epsilon: float | None = None
    magnitude_threshold: float | None = None
    health_epsilon: float | None = None

    def __post_init__(self) -> None:
        if (self.magnitude_epsilon is None) != (self.magnitude_threshold is None):
            raise ValueError("magnitude_epsilon and magnitude_threshold go together")
        if self.magnitude_threshold is not None and not (0 < self.magnitude_threshold < math.inf):
            raise ValueError(
                f"magnitude_threshold must be in (0, inf), got {self.magnitude_threshold}"
            )
        if self.magnitude_epsilon is not None:
            MagRR(self.magnitude_epsilon)  # its domain
        super().__post_init__()

    @property
    def magnitude(self) -> MagRR | None:
        """The mechanism of the magnitude bit, if one is asked for."""
        return None if self.magnitude_epsilon is None else MagRR(self.magnitude_epsilon)

    def events(self) -> tuple[PrivacyEvent, ...]:
        """Return what an answer costs one client: the selection and the bits asked for."""
        magnitude = () if self.magnitude is None else self.magnitude.events()
        return (*self.selection.events(), *magnitude, *health_events(self.health_epsilon))

    def report_bytes(self, dimension: int) -> int:
        """Return the number of bytes of every report about so many entries, health bit included.

        Raises
        ------
        ValueError
            If there are fewer entries than the selection reports, or too many.
        """
        dim_out = self.selection.plan(dimension, quiet=True).dim_out
        length = report_length(dimension=dimension, dim_out=dim_out)
        return length + health_length(self.health_epsilon)

    def decode(self, data: bytes, dimension: int) -> tuple[NDArray[np.int64], int, int | None]:
        """Decode a report without the health bit, strictly; see :func:`decode_report`."""
        dim_out = self.selection.plan(dimension, quiet=True).dim_out
        has_bit = self.magnitude is not None
        return decode_report(data, dimension=dimension, dim_out=dim_out, has_bit=has_bit)

    def to_fields(self) -> dict[str, int | float | str]:
        """Return the record's fields.

        Raises
        ------
        ValueError
            If the selection leaves k open: a proposal states it.
        """
        if self.selection.k is None:
            raise ValueError("a proposal states k: use selection.sized(dimension)")
        fields: dict[str, int | float | str] = {
            "version": _VERSION,
            "mechanism": "signds",
            "epsilon": float(self.selection.epsilon),
            "k": float(self.selection.k),
            "threshold-ratio": float(self.selection.threshold_ratio),
            "dim-out": self.selection.dim_out,
        }
        if self.magnitude_epsilon is not None and self.magnitude_threshold is not None:
            fields["magnitude-epsilon"] = float(self.magnitude_epsilon)
            fields["magnitude-threshold"] = float(self.magnitude_threshold)
        return {**fields, **health_fields(self.health_epsilon)}

    @classmethod
    def from_fields(cls, fields: Mapping[str, object]) -> SignDSProposal:
        """Parse the record's fields, refusing anything unknown.

        Raises
        ------
        WireError
            ``"version"`` for another version, ``"fields"`` for missing, unknown or
            ill-typed fields, ``"domain"`` for values outside their intervals.
        """
        check_version(fields, _VERSION)
        fields, health = without_health(fields)
        names = set(fields)
        if names not in (_REQUIRED, _REQUIRED | _MAGNITUDE) or fields["mechanism"] != "signds":
            raise WireError("fields", f"not a SignDS proposal: {quoted(sorted(names))}")
        dim_out = fields["dim-out"]
        if not isinstance(dim_out, int) or isinstance(dim_out, bool):
            raise WireError("fields", f"dim-out must be an integer, got {quoted(dim_out)}")
        try:
            selection = SignDS(
                epsilon=float_field(fields, "epsilon"),
                k=float_field(fields, "k"),
                threshold_ratio=float_field(fields, "threshold-ratio"),
                dim_out=dim_out,
            )
            if not names >= _MAGNITUDE:
                return cls(selection, health_epsilon=health)
            epsilon, threshold = (float_field(fields, name) for name in sorted(_MAGNITUDE))
            return cls(selection, epsilon, threshold, health)
        except WireError:
            raise
        except ValueError as error:
            raise WireError("domain", str(error)) from None


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
    return bytes((_REPORT_VERSION, flags)) + subset.encode(indices, dimension)


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
    if data and data[0] != _REPORT_VERSION:
        raise WireError(VERSION, f"version {data[0]}, expected {_REPORT_VERSION}")
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
