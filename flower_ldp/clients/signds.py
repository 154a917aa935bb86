"""SignDS on the client: the trained model goes in, a few packed bytes come out."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import RecordDict
from numpy.typing import NDArray

from flower_ldp.clients.arrays import read_update, single_model
from flower_ldp.clients.complaints import update_complaint
from flower_ldp.clients.health import with_health
from flower_ldp.clients.release import OpenRelease
from flower_ldp.errors import WireError
from flower_ldp.mechanisms.random import RandomSource
from flower_ldp.privacy import PrivacyEvent
from flower_ldp.wire.fields import PROPOSAL_KEY
from flower_ldp.wire.health import split_health
from flower_ldp.wire.layout import ModelLayout
from flower_ldp.wire.signds import SignDSProposal, decode_report, encode_report


@dataclass(frozen=True)
class SignDSRelease:
    """Releases a train reply as a SignDS report.

    The update is the trained model minus the model that the server sent, over all
    floating-point arrays in the record's order. What else the app replies (metrics,
    number of examples, configuration, integer arrays) is dropped.
    """

    def open(self, content: RecordDict) -> OpenSignDS:
        """Read the proposal and the model that the server sent.

        Raises
        ------
        WireError
            If the message holds no well-formed proposal or not exactly one model.
        ValueError
            If the model cannot be flattened or is too small for the proposal.
        """
        record = content.config_records.get(PROPOSAL_KEY)
        if record is None:
            raise WireError("record", f"the message has no {PROPOSAL_KEY!r} record")
        proposal = SignDSProposal.from_fields(record)
        sent = single_model(content)
        layout = ModelLayout.of(sent)
        proposal.selection.plan(layout.dimension, quiet=True)
        return OpenSignDS(proposal, layout, sent)


@dataclass(frozen=True)
class OpenSignDS(OpenRelease):
    """An accepted proposal, with the model to measure the update from."""

    proposal: SignDSProposal
    layout: ModelLayout
    sent: Mapping[str, NDArray[Any]]

    @property
    def events(self) -> tuple[PrivacyEvent, ...]:
        """Cost of the selection and of the bits that are asked for."""
        return self.proposal.events()

    @property
    def terms(self) -> str:
        """The proposal and the dimension, as canonical JSON."""
        fields = {**self.proposal.to_fields(), "dimension": self.layout.dimension}
        return json.dumps(fields, sort_keys=True, separators=(",", ":"))

    def privatize(self, reply: RecordDict, rng: RandomSource) -> bytes:
        """Return the packed report.

        A neutral one if the app's reply holds not exactly one model, another layout than the
        model sent, or a value that is not finite.
        """
        return self._report(read_update(reply, self.layout, self.sent), rng)

    def neutral(self, rng: RandomSource) -> bytes:
        """Return a packed report of a fair sign, uniform dimensions and, if asked, a fair bit.

        The health bit, where one is asked for, says yes before it is randomized.
        """
        return self._report(None, rng)

    def complaint(self, reply: RecordDict) -> str | None:
        """Return what makes a report of this reply neutral; None if nothing does."""
        return update_complaint(reply, self.layout, self.sent)

    def check_form(self, report: bytes) -> None:
        """Raise WireError unless some honest client could have sent these bytes."""
        dimension, proposal = self.layout.dimension, self.proposal
        report, _ = split_health(report, asked=proposal.health is not None)
        decode_report(
            report,
            dimension=dimension,
            dim_out=proposal.selection.plan(dimension, quiet=True).dim_out,
            has_bit=proposal.magnitude is not None,
        )

    def _report(self, update: NDArray[np.float32] | None, rng: RandomSource) -> bytes:
        dimension = self.layout.dimension
        selection, top = self.proposal.selection.randomize_with_top(update, rng, dimension)
        bit: int | None = None
        magnitude = self.proposal.magnitude
        if magnitude is not None and self.proposal.magnitude_threshold is not None:
            below = None if top is None else top.mean() < self.proposal.magnitude_threshold
            bit = magnitude.randomize(below, rng)
        report = encode_report(selection.indices, selection.sign, bit, dimension=dimension)
        return with_health(report, self.proposal.health, is_neutral=top is None, rng=rng)
