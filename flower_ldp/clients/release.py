"""Releases: open the server's proposal, then build a private report.

:meth:`Release.open` sees public data only, so a refusal reveals nothing. **A report is always
made**, because no epsilon would cover a refusal afterwards: unreadable replies are answered by the
neutral law (:mod:`flower_ldp.mechanisms.base`), record by record where epsilon is about an example
or a label.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import replace
from typing import Any, TypeVar, cast

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, Metadata, RecordDict
from numpy.typing import NDArray

from flower_ldp.accounting.ledger.charges import MOST_REPORT
from flower_ldp.clients.diagnostics import cause_of
from flower_ldp.clients.permit import Permit, PriorCharge, ReleaseRequest, ReplyTiming
from flower_ldp.errors import RefusalError, ReleaseError, WireError, quoted, say
from flower_ldp.mechanisms.random import RandomSource
from flower_ldp.privacy import PrivacyEvent
from flower_ldp.refusals import FAILED, NO_PROPOSAL, REFUSED_MESSAGE, REFUSED_PROPOSAL
from flower_ldp.wire.proposal import PAYLOAD_KEY, PROPOSAL_KEY, REPORT_KEY

_log = logging.getLogger("flower_ldp")

ReadT = TypeVar("ReadT")


class IncompleteError(ReleaseError):
    """The app failed for some records; ``content`` has NaN for these."""

    def __init__(self, detail: str, content: RecordDict) -> None:
        super().__init__(detail)
        self.content = content


class NoAnswerError(ReleaseError):
    """The app answered with an error or with nothing."""


class OpenRelease(ABC):
    """An accepted proposal, waiting for the app's reply. A base class.

    The default methods fit a release about all of the client's data.
    """

    @property
    @abstractmethod
    def events(self) -> tuple[PrivacyEvent, ...]:
        """Cost of the report for this client."""

    @property
    @abstractmethod
    def parameters(self) -> str:
        """The whole proposal as canonical JSON."""

    @abstractmethod
    def privatize(self, reply: RecordDict, rng: RandomSource) -> bytes:
        """Return the private report of any reply; its length is constant."""

    @abstractmethod
    def neutral(self, rng: RandomSource) -> bytes:
        """Return a report by the neutral law."""

    def request(self, metadata: Metadata) -> ReleaseRequest:
        """Return the request to the authorizer."""
        message = metadata.run_id, metadata.message_id, metadata.message_type
        return ReleaseRequest(*message, self.events, self.parameters)

    def with_permit(self, permit: Permit) -> OpenRelease:
        """Return the release to use with this permit."""
        return self

    def reply(self, ask: Callable[[], RecordDict], timing: ReplyTiming) -> RecordDict:
        """Call the app; exceptions are failures of the app."""
        return ask()

    def rehearsed(self, ask: Callable[[], RecordDict]) -> tuple[RecordDict, OpenRelease]:
        """Return the reply on public data, and the release that judges it."""
        return ask(), self

    def content(self, report: bytes) -> RecordDict:
        """Return the records for a kept report."""
        return RecordDict({REPORT_KEY: ConfigRecord({PAYLOAD_KEY: report})})

    def complaint(self, reply: RecordDict) -> str | None:
        """Return why a report would be neutral, or None; on public data or in a simulation only."""
        return None

    def check_form(self, report: bytes) -> None:
        """Raise unless an honest client could have sent these bytes; called by the guarded node.

        WireError if they do not answer the proposal; TypeError if their form is unknown.
        """
        raise TypeError(f"the form of the reports of {type(self).__name__} is not known")


class KeptRelease(OpenRelease):
    """A release about one part of the data, whose report is kept and answers the question again.

    Each part has its own ledger account. Parts of a layout must not share a record, and must be cut
    by index, never by content.
    """

    @property
    @abstractmethod
    def part(self) -> str:
        """``layout/part``: digest of how the data is cut, and the part's name."""

    @property
    @abstractmethod
    def memo(self) -> str:
        """Equal for two messages that one report may answer."""

    @property
    def basis(self) -> PriorCharge | None:
        """A one-time charge to all of the data that it rests on, or None."""
        return None

    def request(self, metadata: Metadata) -> ReleaseRequest:
        """Return the request, with part, question and basis."""
        whole = super().request(metadata)
        return replace(whole, part=self.part, memo=self.memo, basis=self.basis)


class Release(ABC):
    """Privatizes the replies to one type of message."""

    @abstractmethod
    def open(self, content: RecordDict) -> OpenRelease:
        """Read the proposal; raise RefusalError if it cannot be followed exactly."""


def open_proposal(releases: Mapping[str, Release], message: Message) -> OpenRelease:
    """Return a message's proposal, or refuse it."""
    kind = message.metadata.message_type
    release = releases.get(kind)
    if release is None:
        raise RefusalError(REFUSED_MESSAGE, f"no release for {kind!r}: {_instead(kind)}")
    try:
        return release.open(message.content)
    except (WireError, ValueError) as error:
        raise RefusalError(REFUSED_PROPOSAL, str(error)) from error


def _instead(kind: str) -> str:
    if kind == "train":
        return "name one, as LdpMod(train=SignDSRelease())"
    if kind == "evaluate":
        return "evaluate on the server, or name LdpMod(evaluate=ProtectedEvalRelease())"
    known = "an app answers 'train' and 'evaluate' messages (docs/combines.md)"
    return f"{known}; for embeddings, actions= or split_client_app (docs/embedding.md)"


def proposed(content: RecordDict) -> ConfigRecord:
    """Return the proposal's record; RefusalError ``NO_PROPOSAL`` without one."""
    record = content.config_records.get(PROPOSAL_KEY)
    if record is None:
        raise RefusalError(NO_PROPOSAL, f"the message has no {PROPOSAL_KEY!r} record")
    return record


def check_storable(report_bytes: int, advice: str = "") -> None:
    """Raise ValueError for a report too long for a ledger."""
    if report_bytes > MOST_REPORT:
        told = f"a report of up to {report_bytes} bytes: a ledger takes {MOST_REPORT}"
        raise ValueError(told + (f". {advice}" if advice else ""))


#: Code of every error that this package sends; the reason tells them apart.
ERROR_CODE = 1_000
#: Names of records that are for the gate begin with this.
GATES_OWN = "ldp."


def report(payload: bytes, message: Message) -> Message:
    """Return a reply with a packed report."""
    record = ConfigRecord({PAYLOAD_KEY: payload})
    return Message(RecordDict({REPORT_KEY: record}), reply_to=message)


def content_of(reply: object) -> RecordDict:
    """Return the app's answer or raise NoAnswerError."""
    if not isinstance(reply, Message):
        raise NoAnswerError(f"the app answered with a {type(reply).__name__}, not a message")
    if reply.has_error():
        raise NoAnswerError(f"the app answered with an error: {reply.error.reason}")
    return reply.content


def constant(reason: str, message: Message) -> Message:
    """Return an error reply with a constant reason."""
    return Message(Error(code=ERROR_CODE, reason=reason), reply_to=message)


def failed(message: Message, error: BaseException, what: str = "") -> Message:
    """Log why no report leaves, and return an error without it."""
    say(_log, logging.ERROR, "no report leaves%s: %s", what and f" ({what})", cause_of(error))
    return constant(FAILED, message)


def for_app(message: Message, *, released: bool) -> Message:
    """Copy a message, without the gate's records if ``released``."""
    left_out = GATES_OWN if released else ()
    kept = {name: one for name, one in message.content.items() if not name.startswith(left_out)}
    # Outside of a run Flower makes messages only from metadata that are complete.
    make = cast(Callable[..., Message], cast(Any, Message))
    return make(content=RecordDict(kept), metadata=copy(message.metadata))


def single_model(content: RecordDict) -> dict[str, NDArray[Any]]:
    """Return the only model's arrays."""
    return {name: open_array(array) for name, array in single_record(content).items()}


def single_record(content: RecordDict) -> ArrayRecord:
    """Return the only ArrayRecord, or raise WireError."""
    records: list[ArrayRecord] = list(content.array_records.values())
    if len(records) != 1:
        raise WireError("record", f"expected one ArrayRecord, found {len(records)}")
    return records[0]


def open_array(array: Array) -> NDArray[Any]:
    """Return an array, or raise WireError."""
    try:
        found: object = array.numpy()
    except Exception as error:  # by no type of its own: of archives, headers, memory, pickles
        raise WireError("array", f"{type(error).__name__}: {error}") from error
    if not isinstance(found, np.ndarray):  # numpy opens whatever its bytes say that it is
        raise WireError("array", f"expected an array, found {type(found).__name__}")
    return found


def only_array(reply: RecordDict) -> tuple[str, NDArray[Any]]:
    """Return name and value of the only array, or raise WireError."""
    found = [item for record in reply.array_records.values() for item in record.items()]
    if len(found) != 1:
        names = quoted([name for name, _ in found]) if found else "none"
        raise WireError("record", f"expected one array, found {names}")
    name, array = found[0]
    return name, open_array(array)


def array_or_none(reply: RecordDict) -> NDArray[Any] | None:
    """Return the only array, or None."""
    return or_none(lambda: only_array(reply)[1], "the app's reply does not hold one array: %s")


def or_none(read: Callable[[], ReadT], text: str) -> ReadT | None:
    """Return ``read()``, or None if it raises: the state of a reply is private."""
    try:
        return read()
    except Exception as error:
        say(_log, logging.WARNING, text, cause_of(error))
        return None


def rows_complaint(
    reply: RecordDict, expected: str, wrong: Callable[[NDArray[Any]], int | None], fault: str
) -> str | None:
    """Return why rows of the only array are unreadable, or None; as private as the reply.

    ``wrong`` counts unreadable rows, or returns None for another form.
    """
    try:
        name, found = only_array(reply)
    except WireError as error:
        return f"no {expected}: {error}"
    unread = wrong(found)
    if unread is None:
        return f"array {quoted(name)}: expected {expected}, found {found.dtype} {found.shape}"
    if not unread:
        return None
    place = f"array {quoted(name)}, shape {found.shape}"
    return f"{place}: {unread:,} of {len(found):,} {fault}, with {odd_entries(found)}"


def odd_entries(values: NDArray[Any]) -> str:
    """Count NaN and infinity."""
    nan = int(np.count_nonzero(np.isnan(values)))
    infinite = int(np.count_nonzero(np.isinf(values)))
    return f"{nan:,} NaN and {infinite:,} infinite of {values.size:,} entries"
