"""An extension on the client: the trained model goes in, the extension's own bytes come out.

The extension sees the update and a source of randomness, and nothing else of the message, the
reply or the context. What leaves has the stated length, whatever it does: a report that is none, or
an error, is replaced by a neutral report that was drawn before the app was called.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from flwr.app import Metadata, RecordDict
from numpy.typing import NDArray

from flower_ldp.clients.admission import ExtensionRequest, ReleaseRequest
from flower_ldp.clients.extension_use import Prepared
from flower_ldp.clients.permit import Permit
from flower_ldp.clients.release import OpenRelease
from flower_ldp.clients.update import OpenUpdate, read_proposal
from flower_ldp.errors import ReleaseError
from flower_ldp.mechanisms import name_complaint
from flower_ldp.mechanisms.inputs import note
from flower_ldp.mechanisms.random import RandomSource
from flower_ldp.wire.extension import ExtensionReport
from flower_ldp.wire.part import Trainable, patterns_of


@dataclass(frozen=True)
class ExtensionRelease:
    """Releases a train reply as the report of one extension (``docs/extensions.md``).

    The owner's policy must allow the extension, by its distribution, version and digest; it is
    loaded where the release is admitted, and nowhere else.

    Parameters
    ----------
    name : str
        Of the extension. A server that proposes another one is refused.
    trainable : str or sequence of str, optional
        Names or patterns (``"head.*"``) of the arrays that the app trains, and may reply with
        alone. A proposal about others is refused; without it the proposal decides.

    Raises
    ------
    ValueError
        If the name is none, or a built-in mechanism's.
    """

    name: str
    trainable: Trainable | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        complaint = name_complaint(self.name)
        if complaint is not None:
            raise ValueError(complaint)
        patterns_of(self.trainable)  # its type

    def open(self, content: RecordDict) -> OpenExtension:
        """Read the proposal and the model that the server sent; nothing is loaded.

        Raises
        ------
        WireError
            If the message holds no well-formed proposal of this extension, or not exactly one
            model.
        ValueError
            If the model cannot be flattened, or no ledger could keep the report.
        """
        known = {self.name: partial(ExtensionReport.named, self.name)}
        return OpenExtension(*read_proposal(content, known, self.trainable))


@dataclass(frozen=True)
class OpenExtension(OpenUpdate[ExtensionReport]):
    """An accepted proposal of an extension; with a permit it has the extension too."""

    prepared: Prepared | None = None

    def request(self, metadata: Metadata) -> ReleaseRequest:
        """Return what the admission is asked: with what it is to load."""
        stated = self.proposal.mechanism
        asked = ExtensionRequest(
            stated.name,
            stated.epsilon,
            stated.delta,
            stated.options,
            self.layout.entries,
            stated.length,
        )
        return replace(super().request(metadata), extension=asked)

    def granted(self, permit: Permit) -> OpenExtension:
        """Return the release with the extension that was admitted.

        Raises
        ------
        TypeError
            If the admission knows of no extensions.
        """
        if permit.prepared is None:
            raise TypeError("the admission has loaded no extension")
        return replace(self, prepared=permit.prepared)

    def check_form(self, report: bytes) -> None:
        """Raise TypeError: a node lets no report of an extension out."""
        OpenRelease.check_form(self, report)

    def _report(self, update: NDArray[np.floating[Any]] | None, rng: RandomSource) -> bytes:
        if self.prepared is None:
            raise ReleaseError("the extension was not admitted")
        if update is None or not np.isfinite(update).all():
            note(self.proposal.mechanism.name, "the update cannot be read")
            return self.prepared.neutral
        return self.prepared.report(update, rng)
