"""The Gaussian mechanism on the client: the trained model goes in, one byte an entry comes out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from flwr.app import RecordDict
from numpy.typing import NDArray

from flower_ldp.clients.update import OpenUpdate, read_proposal
from flower_ldp.mechanisms.random import RandomSource
from flower_ldp.wire.gaussian import GaussianProposal, encode_gaussian


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
        return OpenGaussian(*read_proposal(content, GaussianProposal.from_fields))


@dataclass(frozen=True)
class OpenGaussian(OpenUpdate[GaussianProposal]):
    """An accepted proposal of the Gaussian mechanism; a neutral report is of an update of zeros."""

    def _report(self, update: NDArray[np.float32] | None, rng: RandomSource) -> bytes:
        return encode_gaussian(
            self.proposal.mechanism.randomize(update, rng, self.layout.dimension)
        )
