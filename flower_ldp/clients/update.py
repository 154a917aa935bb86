"""What releases of training updates share: the proposal, the model sent, and a report always.

The update is the trained model minus the model that the server sent, over all floating-point
arrays in the record's order, or over those that the proposal names (:mod:`flower_ldp.wire.part`).
What else the app replies (metrics, number of examples, configuration, other arrays) is dropped.
Where the proposal states a subspace, the update's projection takes its place. A release for a
mechanism states how its proposal is read, and how an update becomes the bytes of a report.
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
from flower_ldp.clients.release import OpenRelease, check_storable, proposed
from flower_ldp.errors import WireError, quoted
from flower_ldp.mechanisms.random import RandomSource
from flower_ldp.privacy import PrivacyEvent
from flower_ldp.wire.health import split_health
from flower_ldp.wire.layout import ModelLayout
from flower_ldp.wire.part import Trainable, named_by, patterns_of, without_part
from flower_ldp.wire.update import PlainProposal, UpdateProposal

ProposalT = TypeVar("ProposalT", bound=UpdateProposal)


def read_proposal(
    content: RecordDict,
    parse: Callable[[Mapping[str, object]], ProposalT],
    trainable: Trainable | None,
) -> tuple[ProposalT, ModelLayout, dict[str, NDArray[Any]]]:
    """Return the proposal of a message, the layout of the model that came with it, and the model.

    Parameters
    ----------
    content : RecordDict
        Of the server's message.
    parse : callable
        Reads the proposal's fields, or raises WireError.
    trainable : str or sequence of str, optional
        Arrays that the app trains; None for whatever the proposal names.

    Raises
    ------
    RefusalError
        If the message holds no proposal.
    WireError
        If the message holds no well-formed proposal or not exactly one model, or the proposal is
        about other arrays than ``trainable`` names.
    ValueError
        If the model cannot be flattened or is too small for the proposal, has no array that
        ``trainable`` names, or no ledger could keep the report.
    """
    fields, part = without_part(proposed(content))
    proposal = parse(fields)
    sent = single_model(content)
    # An app that names what it trains may reply with that alone, also where it is all there is
    # to train and the proposal names nothing: counters and arrays without entries are not of it.
    layout = ModelLayout.of(sent, part, alone=trainable is not None)
    _check_trainable(patterns_of(trainable), layout, sent)
    check_storable(proposal.report_bytes(layout.entries))
    return proposal, layout, sent


def _check_trainable(
    patterns: tuple[str, ...] | None, layout: ModelLayout, sent: Mapping[str, NDArray[Any]]
) -> None:
    """Refuse a proposal about other arrays than the app trains: public facts, before the charge."""
    if patterns is None:
        return
    own = set(named_by(patterns, sent))
    asked = {spec.name for spec in layout.updated if spec.size}
    if own != asked:
        raise WireError(
            "trainable",
            f"arrays of trainable alone: {quoted(sorted(own - asked))}, "
            f"of the server alone: {quoted(sorted(asked - own))}",
        )


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
        """The proposal, its part of the model and the dimension, as canonical JSON."""
        fields = {
            **self.proposal.to_fields(),
            **self.layout.part.to_fields(),
            "dimension": self.layout.dimension,
        }
        return json.dumps(fields, sort_keys=True, separators=(",", ":"))

    def privatize(self, reply: RecordDict, rng: RandomSource) -> bytes:
        """Return the packed report.

        A neutral one if the app's reply holds not exactly one model, another layout than the
        model sent, or a value that is not finite; about a part, only that part is looked at.
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
        self.proposal.decode(report, self.layout.entries)

    def _answer(self, update: NDArray[np.float32] | None, rng: RandomSource) -> bytes:
        is_neutral = update is None or not np.isfinite(update).all()
        report = self._report(self._projected(update, is_neutral=is_neutral), rng)
        response = self.proposal.health
        if response is None:
            return report
        return with_health(report, response, is_neutral=is_neutral, rng=rng)

    def _projected(
        self, update: NDArray[np.float32] | None, *, is_neutral: bool
    ) -> NDArray[np.floating[Any]] | None:
        """Return what the report is about; in a subspace None for what the neutral law answers.

        It is decided before the projection: entries that are not finite need not show behind it.
        The work is done all the same, so that time does not tell.
        """
        if self.layout.part.subspace is None:
            return update
        none = np.zeros(self.layout.dimension, dtype=np.float32)
        projected = self.layout.project(none if update is None or is_neutral else update)
        return None if is_neutral else projected

    @abstractmethod
    def _report(self, update: NDArray[np.floating[Any]] | None, rng: RandomSource) -> bytes:
        """Return the packed report without the health bit, always of one length.

        Parameters
        ----------
        update : ndarray of floats, shape (entries,), or None
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
    trainable : str or sequence of str, optional
        Names or patterns of the arrays that the app trains, and may reply with alone. A proposal
        about others is refused; without it the proposal decides.
    """

    parse: Callable[[Mapping[str, object]], PlainProposal]
    trainable: Trainable | None = None

    def __post_init__(self) -> None:
        patterns_of(self.trainable)  # its type

    def open(self, content: RecordDict) -> OpenPlain:
        """Read the proposal and the model that the server sent.

        Raises
        ------
        RefusalError, WireError, ValueError
            As :func:`read_proposal`.
        """
        return OpenPlain(*read_proposal(content, self.parse, self.trainable))


@dataclass(frozen=True)
class OpenPlain(OpenUpdate[PlainProposal]):
    """An accepted proposal whose mechanism takes the update as it is, and is the whole report."""

    def _report(self, update: NDArray[np.floating[Any]] | None, rng: RandomSource) -> bytes:
        report = self.proposal.mechanism.randomize(update, rng, self.layout.entries)
        return self.proposal.encode(report)
