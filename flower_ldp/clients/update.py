"""What releases of training updates share: the proposal, the model sent, and a report always.

The update is the trained model minus the model that the server sent, over all floating-point
arrays in the record's order. What else the app replies (metrics, number of examples,
configuration, integer and boolean arrays) is dropped. A release for a mechanism states how its
proposal is read, and how an update becomes the bytes of a report.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
from flwr.app import RecordDict
from numpy.typing import NDArray

from flower_ldp.clients.arrays import read_update, single_model
from flower_ldp.clients.complaints import update_complaint
from flower_ldp.clients.health import with_health
from flower_ldp.clients.release import OpenRelease, check_storable
from flower_ldp.errors import WireError
from flower_ldp.mechanisms.random import RandomSource
from flower_ldp.privacy import PrivacyEvent
from flower_ldp.wire.fields import PROPOSAL_KEY
from flower_ldp.wire.health import split_health
from flower_ldp.wire.layout import ModelLayout
from flower_ldp.wire.update import PlainProposal, UpdateProposal

ProposalT = TypeVar("ProposalT", bound=UpdateProposal)


def read_proposal(
    content: RecordDict, parse: Callable[[Mapping[str, object]], ProposalT]
) -> tuple[ProposalT, ModelLayout, dict[str, NDArray[Any]]]:
    """Return the proposal of a message, the layout of the model that came with it, and the model.

    Parameters
    ----------
    content : RecordDict
        Of the server's message.
    parse : callable
        Reads the proposal's fields, or raises WireError.

    Raises
    ------
    WireError
        If the message holds no well-formed proposal or not exactly one model.
    ValueError
        If the model cannot be flattened or is too small for the proposal, or no ledger could keep
        the report.
    """
    record = content.config_records.get(PROPOSAL_KEY)
    if record is None:
        raise WireError("record", f"the message has no {PROPOSAL_KEY!r} record")
    proposal = parse(record)
    sent = single_model(content)
    layout = ModelLayout.of(sent)
    check_storable(proposal.report_bytes(layout.dimension))
    return proposal, layout, sent


@dataclass(frozen=True)
class OpenUpdate(OpenRelease, Generic[ProposalT]):
    """An accepted proposal, with the model to measure the update from."""

    proposal: ProposalT
    layout: ModelLayout
    sent: Mapping[str, NDArray[Any]]

    @property
    def events(self) -> tuple[PrivacyEvent, ...]:
        """Cost of the report, with all the bits that are asked for."""
        return self.proposal.events()

    @property
    def parameters(self) -> str:
        """The proposal and the dimension, as canonical JSON."""
        fields = {**self.proposal.to_fields(), "dimension": self.layout.dimension}
        return json.dumps(fields, sort_keys=True, separators=(",", ":"))

    def privatize(self, reply: RecordDict, rng: RandomSource) -> bytes:
        """Return the packed report.

        A neutral one if the app's reply holds not exactly one model, another layout than the
        model sent, or a value that is not finite.
        """
        return self._answer(read_update(reply, self.layout, self.sent), rng)

    def neutral(self, rng: RandomSource) -> bytes:
        """Return a packed report by the mechanism's neutral law.

        The health bit, where one is asked for, says yes before it is randomized.
        """
        return self._answer(None, rng)

    def complaint(self, reply: RecordDict) -> str | None:
        """Return what makes a report of this reply neutral; None if nothing does."""
        return update_complaint(reply, self.layout, self.sent)

    def check_form(self, report: bytes) -> None:
        """Raise WireError unless some honest client could have sent these bytes."""
        report, _ = split_health(report, asked=self.proposal.health is not None)
        self.proposal.decode(report, self.layout.dimension)

    def _answer(self, update: NDArray[np.float32] | None, rng: RandomSource) -> bytes:
        report, response = self._report(update, rng), self.proposal.health
        if response is None:
            return report
        is_neutral = update is None or not np.isfinite(update).all()
        return with_health(report, response, is_neutral=is_neutral, rng=rng)

    @abstractmethod
    def _report(self, update: NDArray[np.float32] | None, rng: RandomSource) -> bytes:
        """Return the packed report without the health bit, always of one length.

        Parameters
        ----------
        update : ndarray of float32, shape (d,), or None
            **Private**. The neutral law answers for None and for what is not finite.
        rng : RandomSource
            Source of the mechanism's randomness.
        """


@dataclass(frozen=True)
class UpdateRelease:
    """Releases a train reply as the report that one mechanism makes of the update.

    Parameters
    ----------
    parse : callable
        Reads the fields of a proposal, or raises WireError: the proposal's ``from_fields``.
    """

    parse: Callable[[Mapping[str, object]], PlainProposal]

    def open(self, content: RecordDict) -> OpenPlain:
        """Read the proposal and the model that the server sent.

        Raises
        ------
        WireError, ValueError
            As :func:`read_proposal`.
        """
        return OpenPlain(*read_proposal(content, self.parse))


@dataclass(frozen=True)
class OpenPlain(OpenUpdate[PlainProposal]):
    """An accepted proposal whose mechanism takes the update as it is, and is the whole report."""

    def _report(self, update: NDArray[np.float32] | None, rng: RandomSource) -> bytes:
        report = self.proposal.mechanism.randomize(update, rng, self.layout.dimension)
        return self.proposal.encode(report)
