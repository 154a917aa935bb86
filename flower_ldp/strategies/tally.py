"""One round of a training mechanism, as its strategy sees it: what is asked, and the sum of it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol, TypeVar

import numpy as np
from flwr.app import Message
from numpy.typing import NDArray

from flower_ldp.strategies.health import HealthWatch
from flower_ldp.strategies.replies import ReplyFilter
from flower_ldp.strategies.rounds import Metrics
from flower_ldp.wire.proposal import UpdateProposal

ReportT = TypeVar("ReportT")


class Tally(Protocol[ReportT]):
    """One round of a mechanism: what it asks, and the sum of what came back."""

    @property
    def proposal(self) -> UpdateProposal[Any]:
        """What clients are asked for."""

    def decode(self, payload: bytes) -> ReportT:
        """Return a report without its health bit; raise WireError if it is none."""

    def add(self, report: ReportT) -> None:
        """Take in a report."""

    def close(self, reports: int) -> Metrics:
        """Learn from the whole round, and return the mechanism's own metrics.

        Called once, when all reports are in, before :meth:`step`.

        Parameters
        ----------
        reports : int
            How many there are; maybe none.
        """

    def summed(self) -> NDArray[Any]:
        """Return the sum of the reports as they came, shape (d,).

        Called for mechanisms that say what their reports are worth
        (:class:`~flower_ldp.strategies.forecast.Preview`).
        """

    def step(self, reports: int) -> NDArray[np.floating[Any]]:
        """Return the step that the reports say, shape (d,). It need not be finite.

        Parameters
        ----------
        reports : int
            How many there are; at least 1.
        """


def read_reports(
    replies: Iterable[Message], judge: ReplyFilter, health: HealthWatch, tally: Tally[ReportT]
) -> None:
    """Add up the reports of a round's good replies, each as soon as it was decoded.

    Parameters
    ----------
    replies : iterable of Message
        What the grid returned.
    judge : ReplyFilter
        Tells good replies from bad ones, and counts both.
    health : HealthWatch
        Counts the health bits.
    tally : Tally
        Of the round.
    """
    for report in judge.decode(replies, health.decoder(tally.decode)):
        tally.add(report)
