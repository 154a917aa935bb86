"""An extension at the gate: what the owner's policy says of it, and its use for one message.

All that can be refused is refused before the charge, by public facts: the policy, the proposal, and
the files of the distribution. A neutral report is drawn there too, so that one is there whatever
the extension does later.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flower_ldp.clients.admission import ExtensionRequest, ReleaseRequest
from flower_ldp.errors import ConfigError, RefusalError, ReleaseError
from flower_ldp.extensions.contract import ExtensionMechanism
from flower_ldp.extensions.loading import Allowed, load_extension
from flower_ldp.mechanisms.random import RandomSource
from flower_ldp.policy import Policy
from flower_ldp.policy.listed import ExtensionEntry
from flower_ldp.privacy import PrivacyEvent
from flower_ldp.refusals import REFUSED_POLICY


@dataclass(frozen=True)
class Prepared:
    """An extension's mechanism for one message.

    Parameters
    ----------
    mechanism : ExtensionMechanism
        At the message's public parameters.
    length : int
        Bytes of every report.
    neutral : bytes
        A report by the neutral law, for this message alone.
    """

    mechanism: ExtensionMechanism
    length: int
    neutral: bytes

    def report(self, update: NDArray[np.floating[Any]] | None, rng: RandomSource) -> bytes:
        """Return a report of an update.

        Parameters
        ----------
        update : ndarray of floats, shape (entries,), or None
            **Private**. The extension gets a copy that cannot be written to.
        rng : RandomSource
            Of this message.

        Raises
        ------
        ReleaseError
            If what comes back is not bytes of the stated length. A neutral report leaves then.
        """
        return checked_report(self.mechanism, self.length, update, rng)


def checked_report(
    mechanism: ExtensionMechanism,
    length: int,
    update: NDArray[np.floating[Any]] | None,
    rng: RandomSource,
) -> bytes:
    """Return what a mechanism makes of an update, if it is bytes of this length and no subclass."""
    given = None
    if update is not None:
        given = np.array(update, copy=True)
        given.setflags(write=False)
    found = mechanism.randomize(given, rng)
    if type(found) is not bytes or len(found) != length:
        raise ReleaseError(f"the extension's report is not {length} bytes")
    return found


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
    entry = next((one for name, one in policy.extensions.items() if name == asked.name), None)
    if entry is None:
        raise _refusal(f"the policy allows no extension {asked.name}")
    priced = replace(request, events=_priced(request, asked, entry))
    try:
        return priced, _prepared(asked, entry)
    except KeyboardInterrupt:
        raise
    except ConfigError as error:
        raise _refusal(str(error)) from error
    except BaseException as error:  # the extension's own code
        name = type(error).__name__
        raise _refusal(f"the extension {asked.name} does not take the proposal: {name}") from error


def _priced(
    request: ReleaseRequest, asked: ExtensionRequest, entry: ExtensionEntry
) -> tuple[PrivacyEvent, ...]:
    """Return the events, with the owner's least price where the proposal states less."""
    return tuple(
        replace(
            event,
            epsilon=max(event.epsilon, entry.epsilon),
            delta=max(event.delta, entry.delta),
        )
        if event.mechanism == asked.name
        else event
        for event in request.events
    )


def _prepared(asked: ExtensionRequest, entry: ExtensionEntry) -> Prepared:
    allowed = Allowed(asked.name, entry.distribution, entry.version, entry.digest)
    extension = load_extension(allowed)
    # Exactly the options that there are: the server's account is of the same mechanism.
    if asked.options.keys() != extension.options.keys():
        raise ConfigError(f"the proposal has not all options of {asked.name}, or others")
    chosen = extension.chosen(asked.epsilon, asked.delta, asked.options)
    mechanism = chosen.mechanism(asked.entries)
    length = mechanism.report_bytes
    if length != asked.length:
        raise ConfigError(f"a report of {asked.name} has {length} bytes, not {asked.length}")
    neutral = checked_report(mechanism, length, None, RandomSource.from_os())
    return Prepared(mechanism, length, neutral)


def _refusal(detail: str) -> RefusalError:
    return RefusalError(REFUSED_POLICY, detail)
