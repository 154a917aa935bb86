"""What every mechanism offers: a randomizer and its price.

A mechanism is a frozen dataclass of public parameters. Its ``randomize`` is the only
place where private data and noise meet; ``events`` states the cost of one release
without asking an accountant; where the output space is finite, ``log_prob`` gives the
exact law of the sampler, so that privacy is tested by enumeration and not by faith.
The server's half is called ``estimate``, and it sees reports only.
"""

from __future__ import annotations

from typing import Protocol, TypeVar

from flower_ldp.mechanisms.random import RandomSource
from flower_ldp.privacy import PrivacyEvent

ValueT = TypeVar("ValueT", contravariant=True)
ReportT = TypeVar("ReportT")


class Mechanism(Protocol[ValueT, ReportT]):
    """A local randomizer with an exactly known law."""

    def events(self) -> tuple[PrivacyEvent, ...]:
        """Return what one release costs one client."""

    def randomize(self, value: ValueT, rng: RandomSource) -> ReportT:
        """Return a private report of ``value``."""

    def log_prob(self, report: ReportT, value: ValueT) -> float:
        """Return the natural logarithm of P(report | value)."""
