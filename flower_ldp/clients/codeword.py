"""Codewords on the client: the trained model goes in, the name of one public vector comes out."""

from __future__ import annotations

from dataclasses import dataclass

from flwr.app import RecordDict

from flower_ldp.clients.update import OpenPlain, UpdateRelease
from flower_ldp.wire.codeword import CodewordProposal

_RELEASE = UpdateRelease(CodewordProposal.from_fields)


@dataclass(frozen=True)
class CodewordRelease:
    """Releases a train reply as one codeword near the update's direction.

    The update is the trained model minus the model that the server sent, over **all**
    floating-point arrays. What else the app replies (metrics, number of examples, integer and
    boolean arrays) is dropped.
    """

    def open(self, content: RecordDict) -> OpenPlain:
        """Read the proposal and the model that the server sent.

        Raises
        ------
        WireError
            If the message holds no well-formed proposal or not exactly one model.
        ValueError
            If the model cannot be flattened, or has too few or too many weights for the proposal.
        """
        return _RELEASE.open(content)
