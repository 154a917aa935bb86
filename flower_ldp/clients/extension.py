"""An extension at the gate: the trained model goes in, the extension's own bytes come out.

All that can be refused is refused before the charge, by public facts: the policy, the proposal, and
the files of the distribution. A neutral report is drawn there too, so that one is there whatever
the extension does later.

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

from flower_ldp.clients.permit import Permit, Prepared, ReleaseRequest
from flower_ldp.clients.release import OpenRelease
from flower_ldp.clients.update import OpenUpdate, read_proposal
from flower_ldp.errors import ConfigError, RefusalError, ReleaseError
from flower_ldp.extensions.loading import Allowed, load_extension
from flower_ldp.mechanisms import name_complaint
from flower_ldp.mechanisms.inputs import note
from flower_ldp.mechanisms.random import RandomSource
from flower_ldp.policy import Policy
from flower_ldp.policy.listed import ExtensionEntry
from flower_ldp.refusals import REFUSED_POLICY
from flower_ldp.wire.extension import ExtensionReport
from flower_ldp.wire.part import Trainable, patterns_of


def prepare(policy: Policy, request: ReleaseRequest) -> tuple[ReleaseRequest, Prepared | None]:
    """Return a request at the price that the owner charges, and its extension if it is of one.

    Raises
    ------
    RefusalError
        With ``REFUSED_POLICY`` if the policy allows no such extension, it is not what is installed,
        or it does not take the proposal.
    """
    asked = request.extension
    if asked is None:
        for event in request.events:
            if event.mechanism in policy.extensions:
                raise _refusal(f"{event.mechanism} is an extension's name here, and no other's")
        return request, None
    entry = policy.extensions.get(asked.name)
    if entry is None:
        raise _refusal(f"the policy allows no extension {asked.name}")
    # The owner's least price, where the proposal states less.
    events = tuple(
        replace(one, epsilon=max(one.epsilon, entry.epsilon), delta=max(one.delta, entry.delta))
        if one.mechanism == asked.name
        else one
        for one in request.events
    )
    try:
        return replace(request, events=events), _prepared(asked, request.entries, entry)
    except KeyboardInterrupt:
        raise
    except ConfigError as error:
        raise _refusal(str(error)) from error
    except BaseException as error:  # the extension's own code
        name = type(error).__name__
        raise _refusal(f"the extension {asked.name} does not take the proposal: {name}") from error


def _prepared(asked: ExtensionReport, entries: int, entry: ExtensionEntry) -> Prepared:
    allowed = Allowed(asked.name, entry.distribution, entry.version, entry.digest)
    extension = load_extension(allowed)
    # Exactly the options that there are: the server's account is of the same mechanism.
    if asked.options.keys() != extension.options.keys():
        raise ConfigError(f"the proposal has not all options of {asked.name}, or others")
    chosen = extension.chosen(asked.epsilon, asked.delta, asked.options)
    mechanism = chosen.mechanism(entries)
    length = mechanism.report_bytes
    if length != asked.length:
        raise ConfigError(f"a report of {asked.name} has {length} bytes, not {asked.length}")
    prepared = Prepared(mechanism, length)
    return replace(prepared, neutral=prepared.report(None, RandomSource.from_os()))


def _refusal(detail: str) -> RefusalError:
    return RefusalError(REFUSED_POLICY, detail)


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
        asked, entries = super().request(metadata), self.layout.entries
        return replace(asked, extension=self.proposal.mechanism, entries=entries)

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
