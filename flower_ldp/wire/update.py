"""What every proposal about training updates states, whatever mechanism it asks for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

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
