"""SignDS on the client: the trained model goes in, a few packed bytes come out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from flwr.app import RecordDict
from numpy.typing import NDArray

from flower_ldp.clients.update import OpenUpdate, read_proposal
from flower_ldp.mechanisms.random import RandomSource
from flower_ldp.wire.part import Trainable, patterns_of
from flower_ldp.wire.signds import SignDSProposal, encode_report


@dataclass(frozen=True)
class SignDSRelease:
    """Releases a train reply as a SignDS report.

    The update is the trained model minus the model that the server sent, over all
    floating-point arrays in the record's order. What else the app replies (metrics,
    number of examples, configuration, integer arrays) is dropped. A proposal may be about fewer
    arrays, or a projection of the update.

    Parameters
    ----------
    trainable : str or sequence of str, optional
        Names or patterns (``"head.*"``) of the arrays that the app trains. The app may then reply
        with these alone. A proposal about others is refused before anything is charged; without
        it the proposal decides. Others that the app replies never leave.
    """

    trainable: Trainable | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        patterns_of(self.trainable)  # its type

    def open(self, content: RecordDict) -> OpenSignDS:
        """Read the proposal and the model that the server sent.

        Raises
        ------
        WireError
            If the message holds no well-formed proposal or not exactly one model.
        ValueError
            If the model cannot be flattened or is too small for the proposal.
        """
        return OpenSignDS(*read_proposal(content, SignDSProposal.from_fields, self.trainable))


@dataclass(frozen=True)
class OpenSignDS(OpenUpdate[SignDSProposal]):
    """An accepted proposal of SignDS.

    A neutral report has a fair sign, uniform dimensions and, if asked, a fair bit.
    """

    def _report(self, update: NDArray[np.floating[Any]] | None, rng: RandomSource) -> bytes:
        dimension = self.layout.entries
        selection, top = self.proposal.selection.randomize_with_top(update, rng, dimension)
        bit: int | None = None
        magnitude = self.proposal.magnitude
        if magnitude is not None and self.proposal.magnitude_threshold is not None:
            below = None if top is None else top.mean() < self.proposal.magnitude_threshold
            bit = magnitude.randomize(below, rng)
        return encode_report(selection.indices, selection.sign, bit, dimension=dimension)
