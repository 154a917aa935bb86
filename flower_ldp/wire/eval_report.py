"""The bytes of one evaluation report: version, kind, rows, metrics.

====== ===== ===============================================================
offset bytes content
====== ===== ===============================================================
0      1     version, 1
1      1     kind of the rows: 1 = Laplace, grid steps; 2 = numbers of codes
2      n k w kind 1: entries of the rows, row by row: integers of w bytes,
             two's complement, lowest byte first
2      n w   kind 2: the number of each row's code, likewise
...    8 m   metrics in the proposal's order: integers of 8 bytes, likewise
====== ===== ===============================================================

w is the least number of bytes that holds G plus 64 noise scales, or the largest code; so the
length follows from the proposal and says nothing about the client. An entry beyond that (a chance
below e^-64) becomes the nearest integer that fits: post-processing of a private report.
Every string of bytes of the right length and head, with codes in their range, is the
encoding of exactly one report.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from flower_ldp.errors import WireError
from flower_ldp.mechanisms.laplace import Laplace
from flower_ldp.wire.eval_proposal import EvalProposal, RowMechanism

_VERSION = 1
_LAPLACE, _CODES = 1, 2
_HEADER_BYTES = 2
_METRIC_BYTES = 8
_SCALES = 64


def entry_bytes(mechanism: RowMechanism) -> int:
    """Return w, the bytes of an entry of the rows' report."""
    if isinstance(mechanism, Laplace):
        largest = mechanism.steps + math.ceil(_SCALES / mechanism.noise.rate)
    else:
        largest = mechanism.codes - 1
    return largest.bit_length() // 8 + 1


def _shape(mechanism: RowMechanism) -> tuple[int, ...]:
    if isinstance(mechanism, Laplace):
        return mechanism.rows, mechanism.classes
    return (mechanism.rows,)


def _kind(mechanism: RowMechanism) -> int:
    return _LAPLACE if isinstance(mechanism, Laplace) else _CODES


def eval_report_length(proposal: EvalProposal) -> int:
    """Return the number of bytes of every report that answers ``proposal``."""
    entries = math.prod(_shape(proposal.mechanism)) * entry_bytes(proposal.mechanism)
    return _HEADER_BYTES + entries + _METRIC_BYTES * len(proposal.metrics)


def encode_eval_report(
    proposal: EvalProposal, rows: NDArray[np.int64], metrics: Sequence[int]
) -> bytes:
    """Encode one report.

    Parameters
    ----------
    proposal : EvalProposal
        What it answers.
    rows : ndarray of int64, shape (rows, classes) or, of codes, (rows,)
        Report of the rows' mechanism.
    metrics : sequence of int
        Reports of the metrics, in the proposal's order.

    Raises
    ------
    ValueError
        If the shape or the number of metrics is not the proposal's.
    """
    mechanism = proposal.mechanism
    if rows.shape != _shape(mechanism):
        raise ValueError(f"rows must have shape {_shape(mechanism)}, got {rows.shape}")
    if len(metrics) != len(proposal.metrics):
        raise ValueError(f"expected {len(proposal.metrics)} metrics, got {len(metrics)}")
    head = bytes((_VERSION, _kind(mechanism)))
    numbers = np.array(metrics, dtype=np.int64)
    return head + _pack(rows, entry_bytes(mechanism)) + _pack(numbers, _METRIC_BYTES)


def decode_eval_report(
    data: bytes, proposal: EvalProposal
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Decode one report, strictly.

    Returns
    -------
    rows : ndarray of int64, shape (rows, classes) or, of codes, (rows,)
        Report of the rows' mechanism.
    metrics : ndarray of int64, shape (number of metrics,)
        Reports of the metrics, in the proposal's order.

    Raises
    ------
    WireError
        ``"version"``, ``"length"``, ``"kind"`` or, for a code that does not exist, ``"range"``
        if ``data`` is no answer to ``proposal``.
    """
    mechanism = proposal.mechanism
    if data and data[0] != _VERSION:
        raise WireError("version", f"version {data[0]}, expected {_VERSION}")
    expected = eval_report_length(proposal)
    if len(data) != expected:
        raise WireError("length", f"{len(data)} bytes, expected {expected}")
    if data[1] != _kind(mechanism):
        raise WireError("kind", f"rows of kind {data[1]}, expected {_kind(mechanism)}")
    end = expected - _METRIC_BYTES * len(proposal.metrics)
    rows = _unpack(data[_HEADER_BYTES:end], entry_bytes(mechanism)).reshape(_shape(mechanism))
    if not isinstance(mechanism, Laplace) and ((rows < 0) | (rows >= mechanism.codes)).any():
        raise WireError("range", f"a code outside [0, {mechanism.codes})")
    return rows, _unpack(data[end:], _METRIC_BYTES)


def _pack(values: NDArray[np.int64], width: int) -> bytes:
    limit = 1 << (8 * width - 1)
    fitting = np.clip(values, -limit, limit - 1).astype("<i8")
    return np.ascontiguousarray(fitting.reshape(-1, 1).view(np.uint8)[:, :width]).tobytes()


def _unpack(data: bytes, width: int) -> NDArray[np.int64]:
    given = np.frombuffer(data, dtype=np.uint8).reshape(-1, width)
    whole = np.empty((len(given), 8), dtype=np.uint8)
    whole[:, :width] = given
    whole[:, width:] = np.where(given[:, -1:] & 0x80, 0xFF, 0)
    return whole.view("<i8").ravel().astype(np.int64, copy=False)
