"""The Gaussian mechanism on the client: the trained model goes in, one byte an entry comes out."""

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
from flower_ldp.clients.release import OpenRelease, check_storable
from flower_ldp.errors import WireError
from flower_ldp.mechanisms.random import RandomSource
from flower_ldp.privacy import PrivacyEvent
from flower_ldp.wire.fields import PROPOSAL_KEY
from flower_ldp.wire.gaussian import (
    GaussianProposal,
    decode_gaussian,
    encode_gaussian,
    gaussian_length,
)
from flower_ldp.wire.health import health_length, split_health
from flower_ldp.wire.layout import ModelLayout


@dataclass(frozen=True)
class GaussianRelease:
    """Releases a train reply as a clipped and noised update.

    The update is the trained model minus the model that the server sent, over **all**
    floating-point arrays, BatchNorm's running averages and arrays without axes included. They
    are clipped as one vector, and every entry is noised. Integer and boolean arrays and what
    else the app replies (metrics, number of examples) are dropped.
    """

    def open(self, content: RecordDict) -> OpenGaussian:
        """Read the proposal and the model that the server sent.

        Raises
        ------
        WireError
            If the message holds no well-formed proposal or not exactly one model.
        ValueError
            If the model cannot be flattened, or no ledger could keep the report.
        """
        record = content.config_records.get(PROPOSAL_KEY)
        if record is None:
            raise WireError("record", f"the message has no {PROPOSAL_KEY!r} record")
        proposal = GaussianProposal.from_fields(record)
        sent = single_model(content)
        layout = ModelLayout.of(sent)
        check_storable(gaussian_length(layout.dimension) + health_length(proposal.health_epsilon))
        return OpenGaussian(proposal, layout, sent)


@dataclass(frozen=True)
class OpenGaussian(OpenRelease):
    """An accepted proposal, with the model to measure the update from."""

    proposal: GaussianProposal
    layout: ModelLayout
    sent: Mapping[str, NDArray[Any]]

    @property
    def events(self) -> tuple[PrivacyEvent, ...]:
        """Epsilon and delta of the report, and the cost of the health bit if it is asked for."""
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
        """Return a packed report of an update of zeros.

        The health bit, where one is asked for, says yes before it is randomized.
        """
        return self._report(None, rng)

    def complaint(self, reply: RecordDict) -> str | None:
        """Return what makes a report of this reply neutral; None if nothing does."""
        return update_complaint(reply, self.layout, self.sent)

    def check_form(self, report: bytes) -> None:
        """Raise WireError unless some honest client could have sent these bytes."""
        report, _ = split_health(report, asked=self.proposal.health is not None)
        decode_gaussian(
            report,
            dimension=self.layout.dimension,
            largest=self.proposal.mechanism.largest,
        )

    def _report(self, update: NDArray[Any] | None, rng: RandomSource) -> bytes:
        mechanism = self.proposal.mechanism
        report = encode_gaussian(mechanism.randomize(update, rng, self.layout.dimension))
        response = self.proposal.health
        if response is None:
            return report
        is_neutral = update is None or not np.isfinite(update).all()
        return with_health(report, response, is_neutral=is_neutral, rng=rng)
