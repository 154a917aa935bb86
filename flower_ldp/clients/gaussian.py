"""The Gaussian mechanism on the client: the trained model goes in, one byte an entry comes out."""

from __future__ import annotations

from dataclasses import dataclass, field

from flwr.app import RecordDict

from flower_ldp.clients.update import OpenPlain, read_proposal
from flower_ldp.wire.gaussian import GaussianProposal
from flower_ldp.wire.part import Trainable, patterns_of


@dataclass(frozen=True)
class GaussianRelease:
    """Releases a train reply as a clipped and noised update.

    The update is the trained model minus the model that the server sent, over **all**
    floating-point arrays that the proposal is about, arrays without axes included. They are
    clipped as one vector, and every entry is noised. Integer and boolean arrays and what else the
    app replies (metrics, number of examples) are dropped. A proposal may be about a projection of
    the update.

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

    def open(self, content: RecordDict) -> OpenPlain:
        """Read the proposal and the model that the server sent.

        Raises
        ------
        WireError
            If the message holds no well-formed proposal or not exactly one model.
        ValueError
            If the model cannot be flattened, or no ledger could keep the report.
        """
        return OpenPlain(*read_proposal(content, GaussianProposal.from_fields, self.trainable))
