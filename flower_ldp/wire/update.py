"""What every proposal about training updates states, whatever mechanism it asks for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from flower_ldp.mechanisms.random import RandomSource
from flower_ldp.mechanisms.randomized_response import BinaryResponse
from flower_ldp.privacy import PrivacyEvent
from flower_ldp.wire.fields import Field


class UpdateProposal(Protocol):
    """One round of one mechanism, with or without a health bit."""

    @property
    def health_epsilon(self) -> float | None:
        """Of the health bit (:mod:`flower_ldp.wire.health`); None if it is not asked for."""

    @property
    def health(self) -> BinaryResponse | None:
        """What the health bit goes through, if one is asked for."""

    def events(self) -> tuple[PrivacyEvent, ...]:
        """Return what an answer costs one client."""

    def to_fields(self) -> Mapping[str, Field]:
        """Return the record's fields."""

    def report_bytes(self, dimension: int) -> int:
        """Return the number of bytes of every report, the health bit included.

        Parameters
        ----------
        dimension : int
            d, entries of the update.

        Raises
        ------
        ValueError
            If no update of so many entries can be reported.
        """

    def decode(self, data: bytes, dimension: int) -> object:
        """Decode a report without its health bit, strictly.

        Raises
        ------
        WireError
            If no client can have sent these bytes in answer to the proposal.
        """


class UpdateMechanism(Protocol):
    """What randomizes a whole update."""

    def randomize(self, value: object, rng: RandomSource, dimension: int | None = None) -> Any:
        """Return a private report of an update of ``dimension`` entries, whatever it is."""


class PlainProposal(UpdateProposal, Protocol):
    """A proposal whose reports are what one mechanism makes of the update, and no more."""

    @property
    def mechanism(self) -> UpdateMechanism:
        """What the update goes through."""

    def encode(self, report: Any) -> bytes:
        """Return the bytes of a report of the mechanism, without the health bit."""
