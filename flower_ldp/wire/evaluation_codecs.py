"""How each mechanism for rows of class probabilities travels: its field, and its entries.

A table for the proposals and reports of :mod:`flower_ldp.wire.evaluation`, which hold what all of
them share.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Protocol, TypeAlias, TypeVar

import numpy as np

from flower_ldp.errors import WireError
from flower_ldp.mechanisms.base import row_of
from flower_ldp.mechanisms.codebook import CodebookResponse
from flower_ldp.mechanisms.laplace import Laplace
from flower_ldp.wire.fields import Field, one

#: Mechanisms for rows of class probabilities.
RowMechanism: TypeAlias = Laplace | CodebookResponse
RowT = TypeVar("RowT")


class RowCodec(Protocol[RowT]):
    """What is special about one mechanism of rows on the wire."""

    mechanism: ClassVar[str]
    """Its name in a proposal."""
    field: ClassVar[str]
    """The field of a proposal that it has beyond those of all."""
    number: ClassVar[int]
    """The second byte of its reports."""

    def own_field(self, mechanism: RowT) -> Field:
        """Return the value of its own field."""

    def read(self, fields: Mapping[str, object], epsilon: float, classes: int, rows: int) -> RowT:
        """Return the mechanism that a proposal names; raise WireError or ValueError."""

    def shape(self, mechanism: RowT) -> tuple[int, ...]:
        """Return the shape of a report's entries."""

    def limits(self, mechanism: RowT) -> tuple[int, int]:
        """Return the least and the largest entry; the largest has the largest magnitude."""


class LaplaceRows:
    """Noisy rows: steps of a grid, and noise."""

    mechanism: ClassVar[str] = "laplace"
    field: ClassVar[str] = "grid-bits"
    number: ClassVar[int] = 1

    def own_field(self, mechanism: Laplace) -> int:
        """Return how fine the grid is, default or not."""
        return mechanism.steps.bit_length() - 1

    def read(
        self, fields: Mapping[str, object], epsilon: float, classes: int, rows: int
    ) -> Laplace:
        """Return the mechanism on the grid that the proposal states."""
        return Laplace(epsilon, classes, rows, one(fields, self.field, int))

    def shape(self, mechanism: Laplace) -> tuple[int, ...]:
        """Return rows and classes."""
        return mechanism.rows, mechanism.classes

    def limits(self, mechanism: Laplace) -> tuple[int, int]:
        """Return 64 noise scales below 0 and above G."""
        return -mechanism.noise.farthest, mechanism.steps + mechanism.noise.farthest


class CodebookRows:
    """Numbers of codes, of a codebook that travels with the proposal."""

    mechanism: ClassVar[str] = "codebook"
    field: ClassVar[str] = "codebook"
    number: ClassVar[int] = 2

    def own_field(self, mechanism: CodebookResponse) -> bytes:
        """Return the codebook: doubles, code by code, lowest byte first."""
        return mechanism.codebook.astype("<f8").tobytes()

    def read(
        self, fields: Mapping[str, object], epsilon: float, classes: int, rows: int
    ) -> CodebookResponse:
        """Return the mechanism over the codebook that the proposal brings along."""
        codes = one(fields, self.field, bytes)
        if classes < 2 or not codes or len(codes) % (8 * classes):
            raise WireError("fields", f"codebook of {len(codes)} bytes for {classes} classes")
        codebook = np.frombuffer(codes, dtype="<f8").astype(np.float64).reshape(-1, classes)
        return CodebookResponse(codebook, epsilon, rows)

    def shape(self, mechanism: CodebookResponse) -> tuple[int, ...]:
        """Return the number of rows."""
        return (mechanism.rows,)

    def limits(self, mechanism: CodebookResponse) -> tuple[int, int]:
        """Return the first and the last code."""
        return 0, mechanism.codes - 1


_BY_CLASS: Mapping[type, RowCodec[Any]] = MappingProxyType(
    {Laplace: LaplaceRows(), CodebookResponse: CodebookRows()}
)
#: Every codec by its mechanism's name in a proposal.
ROWS: Mapping[str, RowCodec[Any]] = MappingProxyType(
    {codec.mechanism: codec for codec in _BY_CLASS.values()}
)


def rows_of(mechanism: RowMechanism) -> RowCodec[Any]:
    """Return how a mechanism's rows travel."""
    return row_of(_BY_CLASS, mechanism)
