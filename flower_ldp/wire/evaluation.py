"""A protected evaluation on the wire: the server's proposal, and the bytes of a report.

A report is the version, 1; the kind of the rows (1 = Laplace, grid steps; 2 = numbers of codes);
their entries, row by row, as integers of w bytes; and metrics in the proposal's order, of 8 bytes:
two's complement, lowest byte first. w is the least number of bytes for G plus 64 noise scales, or
the largest code, so the proposal decides the length.

The client clamps an entry or metric more than 64 noise scales outside of its interval (a chance
below e^-64), which is post-processing; the server refuses it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from flower_ldp.errors import WireError, quoted
from flower_ldp.mechanisms.base import REPORT_VERSION, check_report_length, typed
from flower_ldp.mechanisms.codebook import CodebookResponse
from flower_ldp.mechanisms.example_sums import BoundedMean
from flower_ldp.mechanisms.laplace import Laplace
from flower_ldp.parameter_bounds import check_in
from flower_ldp.privacy import PrivacyEvent
from flower_ldp.wire.proposal import (
    AsksHealth,
    Field,
    check_version,
    health_events,
    health_fields,
    in_domain,
    many,
    without_health,
)

_VERSION = 1
_COMMON = {"version", "mechanism", "epsilon", "classes", "rows"}
#: Lists with an entry for each metric, and the types of their entries.
_METRICS: dict[str, type[Any]] = {
    "metric-names": str,
    "metric-epsilons": float,
    "metric-lowers": float,
    "metric-uppers": float,
    "metric-grid-bits": int,
}
_MOST_NAME = 200

_HEADER_BYTES = 2
_METRIC_BYTES = 8


#: Mechanisms for rows of class probabilities.
RowMechanism: TypeAlias = Laplace | CodebookResponse


#: Their names in a proposal, each with the field that it has beyond those of all.
ROWS: Mapping[str, str] = MappingProxyType({"laplace": "grid-bits", "codebook": "codebook"})
#: The second byte of their reports.
_KINDS = {"laplace": 1, "codebook": 2}


def _name(mechanism: RowMechanism) -> str:
    return "laplace" if isinstance(mechanism, Laplace) else "codebook"


def _own_field(mechanism: RowMechanism) -> Field:
    if isinstance(mechanism, Laplace):
        return _grid_bits(mechanism)
    return mechanism.codebook.astype("<f8").tobytes()


def _read(name: str, fields: Mapping[str, object]) -> RowMechanism:
    epsilon = typed(fields, "epsilon", float)
    classes, rows = typed(fields, "classes", int), typed(fields, "rows", int)
    if name == "laplace":
        return Laplace(epsilon, classes, rows, typed(fields, ROWS[name], int))
    codes = typed(fields, ROWS[name], bytes)
    if classes < 2 or not codes or len(codes) % (8 * classes):
        raise WireError("fields", f"codebook of {len(codes)} bytes for {classes} classes")
    codebook = np.frombuffer(codes, dtype="<f8").astype(np.float64).reshape(-1, classes)
    return CodebookResponse(codebook, epsilon, rows)


def _entries(mechanism: RowMechanism) -> tuple[tuple[int, ...], tuple[int, int]]:
    """Return the shape of a report's entries, the least and the largest one (in magnitude)."""
    if isinstance(mechanism, Laplace):
        far = mechanism.noise.farthest
        return (mechanism.rows, mechanism.classes), (-far, mechanism.steps + far)
    return (mechanism.rows,), (0, mechanism.codes - 1)


@dataclass(frozen=True)
class EvalProposal(AsksHealth):
    """One protected evaluation: rows of class probabilities, and named scalar metrics.

    Parameters
    ----------
    mechanism : Laplace or CodebookResponse
        Of the rows.
    metrics : mapping of str to BoundedMean
        By the name in the app's reply; others never leave.
    health_epsilon : float or None
        Of the health bit (:mod:`flower_ldp.wire.proposal`); None for no bit.
    """

    mechanism: RowMechanism
    metrics: Mapping[str, BoundedMean]
    health_epsilon: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_in("[1, 2^20]", "rows", self.mechanism.rows, int)
        # Of all rows together: a client holds them several times over, as doubles.
        entries = self.mechanism.rows * self.mechanism.classes
        check_in("[1, 2^26]", "rows times classes", entries, int)
        check_in("[0, 64]", "the number of metrics", len(self.metrics), int)
        for name in self.metrics:
            if not (0 < len(name) <= _MOST_NAME and name.isprintable()):
                raise ValueError(f"a metric's name must be printable text, got {quoted(name)}")

    def events(self) -> tuple[PrivacyEvent, ...]:
        """Return the cost for one client: all rows, each metric, and the health bit."""
        metrics = (event for metric in self.metrics.values() for event in metric.events())
        return (*self.mechanism.events(), *metrics, *health_events(self.health_epsilon))

    def to_fields(self) -> dict[str, Field]:
        """Return the record's fields; grids are stated outright."""
        mechanism, name = self.mechanism, _name(self.mechanism)
        fields: dict[str, Field] = {
            "version": _VERSION,
            "epsilon": float(mechanism.epsilon),
            "classes": mechanism.classes,
            "rows": mechanism.rows,
            "mechanism": name,
            ROWS[name]: _own_field(mechanism),
        }
        if self.metrics:
            settings = [
                (name, float(one.epsilon), float(one.lower), float(one.upper), _grid_bits(one))
                for name, one in self.metrics.items()
            ]
            fields.update(zip(_METRICS, map(list, zip(*settings, strict=True)), strict=True))
        return {**fields, **health_fields(self.health_epsilon)}

    @classmethod
    def from_fields(cls, fields: Mapping[str, object]) -> EvalProposal:
        """Parse the record's fields; WireError as an UpdateProposal does."""
        check_version(fields, _VERSION)
        fields, health = without_health(fields)
        names = set(fields)
        name = typed(fields, "mechanism", str) if "mechanism" in names else ""
        own = _COMMON | {ROWS.get(name, "")}
        if name not in ROWS or names not in (own, own | _METRICS.keys()):
            raise WireError("fields", f"not a proposal of an evaluation: {quoted(sorted(names))}")
        with in_domain():
            metrics = _metrics(fields) if names >= _METRICS.keys() else {}
            return cls(_read(name, fields), metrics, health)


def _grid_bits(mechanism: Laplace | BoundedMean) -> int:
    return mechanism.steps.bit_length() - 1


def _metrics(fields: Mapping[str, object]) -> dict[str, BoundedMean]:
    names, *columns = (many(fields, name, kind) for name, kind in _METRICS.items())
    if len(set(names)) != len(names) or not names:
        raise WireError("fields", f"metric-names must be distinct and some, got {quoted(names)}")
    if any(len(column) != len(names) for column in columns):
        raise WireError("fields", "the lists about metrics must have one entry for each name")
    return {
        name: BoundedMean(*setting)
        for name, setting in zip(names, zip(*columns, strict=True), strict=True)
    }


def entry_bytes(mechanism: RowMechanism) -> int:
    """Return w."""
    return _entries(mechanism)[1][1].bit_length() // 8 + 1


def eval_report_length(proposal: EvalProposal) -> int:
    """Return the number of bytes of every report."""
    shape, _ = _entries(proposal.mechanism)
    entries = math.prod(shape) * entry_bytes(proposal.mechanism)
    return _HEADER_BYTES + entries + _METRIC_BYTES * len(proposal.metrics)


def encode_eval_report(
    proposal: EvalProposal, rows: NDArray[np.int64], metrics: Sequence[int]
) -> bytes:
    """Encode one report: int64 rows of the mechanism, and metrics in the proposal's order.

    ValueError if the shape or the number of metrics is not the proposal's.
    """
    mechanism = proposal.mechanism
    shape, limits = _entries(mechanism)
    if rows.shape != shape:
        raise ValueError(f"rows must have shape {shape}, got {rows.shape}")
    if len(metrics) != len(proposal.metrics):
        raise ValueError(f"expected {len(proposal.metrics)} metrics, got {len(metrics)}")
    head = bytes((REPORT_VERSION, _KINDS[_name(mechanism)]))
    packed = _pack(np.clip(rows, *limits), entry_bytes(mechanism))
    numbers = np.clip(np.array(metrics, dtype=np.int64), *_metric_limits(proposal))
    return head + packed + _pack(numbers, _METRIC_BYTES)


def decode_eval_report(
    data: bytes, proposal: EvalProposal
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Decode one report, strictly, into int64 rows, shape (rows, classes) or (rows,), and metrics.

    Raises
    ------
    WireError
        ``"version"``, ``"length"``, ``"kind"``, or ``"range"`` for an unknown code or a value
        beyond 64 noise scales.
    """
    mechanism = proposal.mechanism
    shape, of_rows = _entries(mechanism)
    expected = eval_report_length(proposal)
    check_report_length(data, expected)
    kind = _KINDS[_name(mechanism)]
    if data[1] != kind:
        raise WireError("kind", f"rows of kind {data[1]}, expected {kind}")
    end = expected - _METRIC_BYTES * len(proposal.metrics)
    rows = _unpack(data[_HEADER_BYTES:end], entry_bytes(mechanism))
    metrics = _unpack(data[end:], _METRIC_BYTES)
    for values, (least, most) in ((rows, of_rows), (metrics, _metric_limits(proposal))):
        if ((values < least) | (values > most)).any():
            raise WireError("range", "no such code, or more than 64 noise scales off")
    return rows.reshape(shape), metrics


def _metric_limits(proposal: EvalProposal) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    limits = [metric.limits for metric in proposal.metrics.values()]
    least, most = np.array(limits, dtype=np.int64).reshape(-1, 2).T
    return least, most


def _pack(values: NDArray[np.int64], width: int) -> bytes:
    plain = values.astype("<i8").reshape(-1, 1)
    return np.ascontiguousarray(plain.view(np.uint8)[:, :width]).tobytes()


def _unpack(data: bytes, width: int) -> NDArray[np.int64]:
    whole = np.zeros((len(data) // width, 8), dtype=np.uint8)
    whole[:, 8 - width :] = np.frombuffer(data, dtype=np.uint8).reshape(-1, width)
    # Bytes are put to the upper end, so that the shift repeats the sign.
    return whole.view("<i8").ravel().astype(np.int64, copy=False) >> 8 * (8 - width)
