"""The server's proposal for a protected evaluation, as plain fields of a record.

It names the mechanism for rows of class probabilities with all its parameters, and each
scalar metric that may leave, with bounds and a cost of its own. A metric that is not named stays
on the client. As in training, the client accepts a proposal exactly or refuses it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import numpy as np

from flower_ldp.errors import WireError, quoted
from flower_ldp.mechanisms.bounded_mean import BoundedMean
from flower_ldp.mechanisms.codebook import CodebookResponse
from flower_ldp.mechanisms.laplace import Laplace
from flower_ldp.mechanisms.randomized_response import BinaryResponse
from flower_ldp.privacy import PrivacyEvent
from flower_ldp.wire.health import health_events, health_fields, health_response, without_health

ValueT = TypeVar("ValueT")
#: What a field of a record may hold here.
Field: TypeAlias = int | float | str | bytes | list[int] | list[float] | list[str]
#: Mechanisms for rows of class probabilities.
RowMechanism: TypeAlias = Laplace | CodebookResponse

_VERSION = 1
_COMMON = {"version", "mechanism", "epsilon", "classes", "rows"}
#: The field that a mechanism has beyond the common ones, by its name.
_OWN = {"laplace": "grid-bits", "codebook": "codebook"}
_METRICS = {
    "metric-names",
    "metric-epsilons",
    "metric-lowers",
    "metric-uppers",
    "metric-grid-bits",
}
_MOST_METRICS = 64
_MOST_NAME = 200
_MOST_ROWS = 1 << 20
#: Of all rows together: a client holds them several times over, as doubles.
_MOST_ENTRIES = 1 << 26


@dataclass(frozen=True)
class EvalProposal:
    """One protected evaluation: rows of class probabilities, and scalar metrics if named.

    Parameters
    ----------
    mechanism : Laplace or CodebookResponse
        What the rows go through.
    metrics : mapping of str to BoundedMean
        What each metric goes through, by its name in the app's reply; others never leave.
    health_epsilon : float or None
        Of the health bit (:mod:`flower_ldp.wire.health`); None if it is not asked for.
    """

    mechanism: RowMechanism
    metrics: Mapping[str, BoundedMean]
    health_epsilon: float | None = None

    def __post_init__(self) -> None:
        health_response(self.health_epsilon)  # its domain
        if self.mechanism.rows > _MOST_ROWS:
            raise ValueError(f"rows must be in [1, 2^20], got {self.mechanism.rows}")
        if self.mechanism.rows * self.mechanism.classes > _MOST_ENTRIES:
            raise ValueError(
                f"rows times classes must be at most 2^26, got {self.mechanism.rows} rows of "
                f"{self.mechanism.classes}"
            )
        if len(self.metrics) > _MOST_METRICS:
            raise ValueError(f"at most {_MOST_METRICS} metrics, got {len(self.metrics)}")
        for name in self.metrics:
            if not (0 < len(name) <= _MOST_NAME and name.isprintable()):
                raise ValueError(f"a metric's name must be printable text, got {quoted(name)}")

    @property
    def health(self) -> BinaryResponse | None:
        """What the health bit goes through, if one is asked for."""
        return health_response(self.health_epsilon)

    def events(self) -> tuple[PrivacyEvent, ...]:
        """Return what an answer costs one client: all rows, each metric, and the health bit."""
        metrics = (event for metric in self.metrics.values() for event in metric.events())
        return (*self.mechanism.events(), *metrics, *health_events(self.health_epsilon))

    def to_fields(self) -> dict[str, Field]:
        """Return the record's fields; grids are stated outright, defaults or not."""
        mechanism = self.mechanism
        fields: dict[str, Field] = {
            "version": _VERSION,
            "epsilon": float(mechanism.epsilon),
            "classes": mechanism.classes,
            "rows": mechanism.rows,
        }
        if isinstance(mechanism, Laplace):
            fields |= {"mechanism": "laplace", "grid-bits": mechanism.steps.bit_length() - 1}
        else:
            codes = mechanism.codebook.astype("<f8").tobytes()
            fields |= {"mechanism": "codebook", "codebook": codes}
        metrics = self.metrics.values()
        if metrics:
            fields["metric-names"] = list(self.metrics)
            fields["metric-epsilons"] = [float(metric.epsilon) for metric in metrics]
            fields["metric-lowers"] = [float(metric.lower) for metric in metrics]
            fields["metric-uppers"] = [float(metric.upper) for metric in metrics]
            fields["metric-grid-bits"] = [metric.steps.bit_length() - 1 for metric in metrics]
        return {**fields, **health_fields(self.health_epsilon)}

    @classmethod
    def from_fields(cls, fields: Mapping[str, object]) -> EvalProposal:
        """Parse the record's fields, refusing anything unknown.

        Raises
        ------
        WireError
            ``"version"`` for another version, ``"fields"`` for missing, unknown or
            ill-typed fields, ``"domain"`` for values outside their intervals.
        """
        version = fields.get("version")
        if type(version) is not int or version != _VERSION:  # True and 1.0 equal 1
            raise WireError("version", f"proposal version {quoted(version)}")
        fields, health = without_health(fields)
        names = set(fields)
        mechanism = fields.get("mechanism")
        own = _OWN.get(mechanism) if isinstance(mechanism, str) else None
        if own is None or names not in (_COMMON | {own}, _COMMON | {own} | _METRICS):
            raise WireError("fields", f"not a proposal of an evaluation: {quoted(sorted(names))}")
        try:
            metrics = _metrics(fields) if names >= _METRICS else {}
            return cls(_mechanism(fields), metrics, health)
        except WireError:
            raise
        except ValueError as error:
            raise WireError("domain", str(error)) from None


def _one(fields: Mapping[str, object], name: str, kind: type[ValueT]) -> ValueT:
    value = fields[name]
    if type(value) is not kind:  # a bool is no integer here
        raise WireError("fields", f"{name} must be of type {kind.__name__}, got {quoted(value)}")
    return value


def _many(fields: Mapping[str, object], name: str, kind: type[ValueT]) -> list[ValueT]:
    values = fields[name]
    if not isinstance(values, list) or not all(type(value) is kind for value in values):
        raise WireError("fields", f"{name} must be a list of {kind.__name__}, got {quoted(values)}")
    return values


def _mechanism(fields: Mapping[str, object]) -> RowMechanism:
    epsilon = _one(fields, "epsilon", float)
    classes, rows = _one(fields, "classes", int), _one(fields, "rows", int)
    if fields["mechanism"] == "laplace":
        return Laplace(epsilon, classes, rows, _one(fields, "grid-bits", int))
    codes = _one(fields, "codebook", bytes)
    if classes < 2 or not codes or len(codes) % (8 * classes):
        raise WireError("fields", f"codebook of {len(codes)} bytes for {classes} classes")
    codebook = np.frombuffer(codes, dtype="<f8").astype(np.float64).reshape(-1, classes)
    return CodebookResponse(codebook, epsilon, rows)


def _metrics(fields: Mapping[str, object]) -> dict[str, BoundedMean]:
    names = _many(fields, "metric-names", str)
    columns = (
        _many(fields, "metric-epsilons", float),
        _many(fields, "metric-lowers", float),
        _many(fields, "metric-uppers", float),
        _many(fields, "metric-grid-bits", int),
    )
    if len(set(names)) != len(names) or not names:
        raise WireError("fields", f"metric-names must be distinct and some, got {quoted(names)}")
    if any(len(column) != len(names) for column in columns):
        raise WireError("fields", "the lists about metrics must have one entry for each name")
    return {
        name: BoundedMean(*setting)
        for name, setting in zip(names, zip(*columns, strict=True), strict=True)
    }
