"""Codewords on the client: the trained model goes in, the name of one public vector comes out."""

from __future__ import annotations

from dataclasses import dataclass, field

from flwr.app import RecordDict

from flower_ldp.clients.update import OpenPlain, UpdateRelease
from flower_ldp.wire.codeword import CodewordProposal
from flower_ldp.wire.part import Trainable, patterns_of


@dataclass(frozen=True)
class CodewordRelease:
    """Releases a train reply as one codeword near the update's direction.

    The update is the trained model minus the model that the server sent, over **all**
    floating-point arrays. What else the app replies (metrics, number of examples, integer and
    boolean arrays) is dropped. A proposal may be about fewer arrays, or a projection of the update.

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
            If the model cannot be flattened, or has too few or too many weights for the proposal.
        """
        return UpdateRelease(CodewordProposal.from_fields, self.trainable).open(content)
