"""Codewords on the wire: the proposal's fields and a report's bytes.

A report is the version, 1, and one number in big-endian order: twice the row, plus 1 for the
opposite sign, plus 2n for each code before its own. It takes as many bytes as the largest such
number, so the length is public: 1 + 3 bytes for 64 codes of 2,048 rows. A proposal without
``blocks`` is one of a single block. The health bit, where one
was asked for, follows (:mod:`flower_ldp.wire.health`). Every number below the largest is a report
of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from flower_ldp.errors import WireError, quoted
from flower_ldp.mechanisms.codeword import Codeword
from flower_ldp.mechanisms.codeword_plan import CodewordPlan
from flower_ldp.mechanisms.codeword_report import NamedCodeword, check_report
from flower_ldp.privacy import PrivacyEvent
from flower_ldp.wire.fields import check_version, float_field, one
from flower_ldp.wire.health import (
    AsksHealth,
    health_events,
    health_fields,
    health_length,
    without_health,
)

_VERSION = 1
_FIELDS = {"version", "mechanism", "epsilon", "favoured", "rotations", "seed"}
_BLOCKS = "blocks"


@dataclass(frozen=True)
class CodewordProposal(AsksHealth):
    """One round of the codeword mechanism.

    Parameters
    ----------
    mechanism : Codeword
        Epsilon, codes and their seed; to be sent, with K written out (``sized``).
    health_epsilon : float or None
        Of the health bit (:mod:`flower_ldp.wire.health`); None if it is not asked for.
    """

    mechanism: Codeword
    health_epsilon: float | None = None

    def events(self) -> tuple[PrivacyEvent, ...]:
        """Return what an answer costs one client."""
        return (*self.mechanism.events(), *health_events(self.health_epsilon))

    def report_bytes(self, dimension: int) -> int:
        """Return the number of bytes of every report of so many entries, health bit included."""
        return codeword_length(self.mechanism.plan(dimension)) + health_length(self.health_epsilon)

    def encode(self, report: NamedCodeword) -> bytes:
        """Return the bytes of a report, without the health bit."""
        return encode_codeword(report, self.mechanism.plan(report.order))

    def decode(self, data: bytes, dimension: int) -> NamedCodeword:
        """Decode a report without the health bit, strictly; see :func:`decode_codeword`."""
        return decode_codeword(data, self.mechanism.plan(dimension))

    def to_fields(self) -> dict[str, int | float | str]:
        """Return the record's fields.

        Raises
        ------
        ValueError
            If K is left open: a proposal states it.
        """
        if not self.mechanism.favoured:
            raise ValueError("a proposal states K: use mechanism.sized(dimension)")
        return {
            "version": _VERSION,
            "mechanism": "codeword",
            "epsilon": float(self.mechanism.epsilon),
            "favoured": self.mechanism.favoured,
            "rotations": self.mechanism.rotations,
            "seed": self.mechanism.seed,
            **({_BLOCKS: self.mechanism.blocks} if self.mechanism.blocks > 1 else {}),
            **health_fields(self.health_epsilon),
        }

    @classmethod
    def from_fields(cls, fields: Mapping[str, object]) -> CodewordProposal:
        """Parse the record's fields, refusing anything unknown.

        Raises
        ------
        WireError
            ``"version"`` for another version, ``"fields"`` for missing, unknown or
            ill-typed fields, ``"domain"`` for values outside their intervals.
        """
        check_version(fields, _VERSION)
        fields, health = without_health(fields)
        if set(fields) - {_BLOCKS} != _FIELDS or fields["mechanism"] != "codeword":
            raise WireError("fields", f"not a codeword proposal: {quoted(sorted(fields))}")
        epsilon = float_field(fields, "epsilon")
        favoured, rotations, seed = (
            one(fields, name, int) for name in ("favoured", "rotations", "seed")
        )
        blocks = one(fields, _BLOCKS, int) if _BLOCKS in fields else 1
        if favoured == 0:
            raise WireError("domain", "favoured must be stated, got 0")
        try:
            return cls(Codeword(epsilon, favoured, rotations, seed, blocks), health)
        except ValueError as error:
            raise WireError("domain", str(error)) from None


def codeword_length(plan: CodewordPlan) -> int:
    """Return the number of bytes of every report of a plan."""
    return 1 + -(-plan.bits // 8)


def encode_codeword(report: NamedCodeword, plan: CodewordPlan) -> bytes:
    """Return the bytes of a report."""
    check_report(report, plan)
    number = report.rotation * plan.codewords + 2 * report.row + (report.sign < 0)
    return bytes((_VERSION,)) + number.to_bytes(codeword_length(plan) - 1, "big")


def decode_codeword(data: bytes, plan: CodewordPlan) -> NamedCodeword:
    """Decode a report, strictly.

    Parameters
    ----------
    data : bytes
        What :func:`encode_codeword` returned.
    plan : CodewordPlan
        Of the proposal, for the model's dimension.

    Raises
    ------
    WireError
        ``"version"``, ``"length"``, or ``"range"`` for a number that names no codeword.
    """
    if data and data[0] != _VERSION:
        raise WireError("version", f"version {data[0]}, expected {_VERSION}")
    if len(data) != codeword_length(plan):
        raise WireError("length", f"{len(data)} bytes, expected {codeword_length(plan)}")
    number = int.from_bytes(data[1:], "big")
    if number >= plan.rotations * plan.codewords:
        raise WireError("range", f"{number} names none of the codewords")
    rotation, position = divmod(number, plan.codewords)
    return NamedCodeword(plan.order, rotation, position >> 1, -1 if position & 1 else 1)
