"""What the gate asks of a kind of reply: open the proposal, then build a private report.

A :class:`Release` sees a message twice. First, before the app runs, ``open`` reads the
server's proposal from it: public data only, so that a refusal tells nothing about the
client. Then the :class:`OpenRelease` turns the app's raw reply into the bytes of a private
report. The gate alone puts these bytes into a reply, so a release cannot add a field.

A report is always made. A refusal here would depend on private data and would be an outcome that
no epsilon counts, so what cannot be read is answered by the neutral law of each mechanism
(:mod:`flower_ldp.mechanisms.base`), in the shape that the proposal gives.

A neutral draw for the whole reply is within epsilon where that is about the client: then the
reply as a whole is the private value. Where it is about an example or a label, one record that
cannot be read must not change what leaves for the others, so ``privatize`` answers neutrally
record by record, and an app that fails for some records says so (:class:`IncompleteError`).

An answer has one of two forms: a report, or an error with a constant reason. Both are built from
the message as it came. The app gets another one, with metadata of its own and without the
records that are the gate's, so whatever the app does to it changes nothing that leaves.
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
    """The app failed for some records; the others are answered for.

    Parameters
    ----------
    detail : str
        What failed, for the client's log.
    content : RecordDict
        The reply, with NaN for each record that failed.
    """

    def __init__(self, detail: str, content: RecordDict) -> None:
        super().__init__(detail)
        self.content = content


class NoAnswerError(ReleaseError):
    """The app answered with an error of its own, or with nothing."""


class OpenRelease(ABC):
    """A proposal that was understood, waiting for the app's reply.

    A release of one's own inherits from it: what has a body here fits a release about all of the
    client's data, of which the guarded node knows nothing.
    """

    @property
    @abstractmethod
    def events(self) -> tuple[PrivacyEvent, ...]:
        """What the report will cost this client."""

    @property
    @abstractmethod
    def parameters(self) -> str:
        """The proposal in full, as canonical JSON."""

    @abstractmethod
    def privatize(self, reply: RecordDict, rng: RandomSource) -> bytes:
        """Return the private report, packed, whatever the app replied; always of one length."""

    @abstractmethod
    def neutral(self, rng: RandomSource) -> bytes:
        """Return a report by the neutral law, packed: what stands for a reply without content."""

    def request(self, metadata: Metadata) -> ReleaseRequest:
        """Return what the authorizer is asked for a message that has this metadata."""
        message = metadata.run_id, metadata.message_id, metadata.message_type
        return ReleaseRequest(*message, self.events, self.parameters)

    def with_permit(self, permit: Permit) -> OpenRelease:
        """Return what goes on with a permit: itself, where the permit says nothing further."""
        return self

    def reply(self, ask: Callable[[], RecordDict], timing: ReplyTiming) -> RecordDict:
        """Return the app's reply, asking for it; what is raised is a failure of the app's."""
        return ask()

    def rehearsed(self, ask: Callable[[], RecordDict]) -> tuple[RecordDict, OpenRelease]:
        """Return the app's reply on public data, and what judges it."""
        return ask(), self

    def content(self, report: bytes) -> RecordDict:
        """Return what leaves for a report that is kept: here its bytes and nothing else."""
        return RecordDict({REPORT_KEY: ConfigRecord({PAYLOAD_KEY: report})})

    def complaint(self, reply: RecordDict) -> str | None:
        """Return what makes a report of this reply neutral; None if nothing is known to.

        It is asked of public data, or in a simulation.
        """
        return None

    def check_form(self, report: bytes) -> None:
        """Raise unless some honest client could have sent these bytes: what a node lets out.

        Raises
        ------
        WireError
            If they are no report that answers the proposal.
        TypeError
            If no node knows the form of such reports.
        """
        raise TypeError(f"the form of the reports of {type(self).__name__} is not known")


class KeptRelease(OpenRelease):
    """A release about a part of the data, whose report answers the same question for ever.

    The ledger has an account for each part, so that what one record costs is not multiplied
    by the number of others. Parts of a layout must not share a record, and must be fixed by
    index, never by content.
    """

    @property
    @abstractmethod
    def part(self) -> str:
        """``layout/part``: the digest that says how the data is cut, and the part's name."""

    @property
    @abstractmethod
    def memo(self) -> str:
        """Names the question: equal for two messages if one report answers both."""

    @property
    def basis(self) -> PriorCharge | None:
        """What the release rests on, if all of the data is to pay for that once."""
        return None

    def request(self, metadata: Metadata) -> ReleaseRequest:
        """Return what the authorizer is asked: about this part, with the question and its basis."""
        whole = super().request(metadata)
        return replace(whole, part=self.part, memo=self.memo, basis=self.basis)


class Release(ABC):
    """How replies to one type of message are privatized."""

    @abstractmethod
    def open(self, content: RecordDict) -> OpenRelease:
        """Read the proposal; raise RefusalError if it cannot be accepted exactly."""


def open_proposal(releases: Mapping[str, Release], message: Message) -> OpenRelease:
    """Return a message's proposal, read by the release for its type.

    Parameters
    ----------
    releases : mapping of str to Release
        By type of message.
    message : Message
        The server's.

    Raises
    ------
    RefusalError
        With ``REFUSED_MESSAGE`` if there is no release, with ``REFUSED_PROPOSAL`` if it cannot
        read the proposal, or as it refuses.
    """
    kind = message.metadata.message_type
    release = releases.get(kind)
    if release is None:
        raise RefusalError(REFUSED_MESSAGE, f"no release for {kind!r}: {_instead(kind)}")
    try:
        return release.open(message.content)
    except (WireError, ValueError) as error:
        raise RefusalError(REFUSED_PROPOSAL, str(error)) from error


def _instead(kind: str) -> str:
    """Return what who writes the app may do about a type of message that has no release."""
    if kind == "train":
        return "name one, as LdpMod(train=SignDSRelease())"
    if kind == "evaluate":
        return "evaluate on the server, or name LdpMod(evaluate=ProtectedEvalRelease())"
    known = "an app answers 'train' and 'evaluate' messages (docs/combines.md)"
    return f"{known}; one of split_client_app (docs/embedding.md) sends embeddings"


def proposed(content: RecordDict) -> ConfigRecord:
    """Return the record of a message's proposal.

    Raises
    ------
    RefusalError
        With ``NO_PROPOSAL`` if there is none: the server runs a strategy of another kind.
    """
    record = content.config_records.get(PROPOSAL_KEY)
    if record is None:
        raise RefusalError(NO_PROPOSAL, f"the message has no {PROPOSAL_KEY!r} record")
    return record


def check_storable(report_bytes: int, advice: str = "") -> None:
    """Refuse a report that is too long for the ledger, which keeps it: ask before the charge.

    Parameters
    ----------
    report_bytes : int
        Its length, or what no report of the kind can be longer than: a public number.
    advice : str
        What to do then.

    Raises
    ------
    ValueError
        If a ledger does not take it.
    """
    if report_bytes > MOST_REPORT:
        told = f"a report of up to {report_bytes} bytes: a ledger takes {MOST_REPORT}"
        raise ValueError(told + (f". {advice}" if advice else ""))


#: Code of every error that this package sends; the reason tells them apart.
ERROR_CODE = 1_000
#: Names of records that are for the gate begin with this.
GATES_OWN = "ldp."


def report(payload: bytes, message: Message) -> Message:
    """Return a reply to ``message`` that holds a packed report, or an empty acknowledgement."""
    record = ConfigRecord({PAYLOAD_KEY: payload})
    return Message(RecordDict({REPORT_KEY: record}), reply_to=message)


def content_of(reply: object) -> RecordDict:
    """Return what the app answered; raise NoAnswerError if that is nothing, or an error."""
    if not isinstance(reply, Message):
        raise NoAnswerError(f"the app answered with a {type(reply).__name__}, not a message")
    if reply.has_error():
        raise NoAnswerError(f"the app answered with an error: {reply.error.reason}")
    return reply.content


def constant(reason: str, message: Message) -> Message:
    """Return a reply to ``message`` that says one of a few constant reasons."""
    return Message(Error(code=ERROR_CODE, reason=reason), reply_to=message)


def failed(message: Message, error: BaseException, what: str = "") -> Message:
    """Log why no report leaves, and return the reply that tells the server none of it."""
    say(_log, logging.ERROR, "no report leaves%s: %s", what and f" ({what})", cause_of(error))
    return constant(FAILED, message)


def for_app(message: Message, *, released: bool) -> Message:
    """Return the message that the app and the mods behind the gate see.

    Parameters
    ----------
    message : Message
        As it came. It stays with the gate.
    released : bool
        Whether a report answers it. Then the gate has read the proposal, and the records whose
        names begin with ``ldp.`` are left out.

    Returns
    -------
    Message
        With a metadata object and a dictionary of records of its own.
    """
    left_out = GATES_OWN if released else ()
    kept = {name: one for name, one in message.content.items() if not name.startswith(left_out)}
    # Outside of a run Flower makes messages only from metadata that are complete.
    make = cast(Callable[..., Message], cast(Any, Message))
    return make(content=RecordDict(kept), metadata=copy(message.metadata))


def single_model(content: RecordDict) -> dict[str, NDArray[Any]]:
    """Return the arrays of a message's only ArrayRecord.

    Raises
    ------
    WireError
        If there is none, or more than one, or something else than arrays is in it.
    """
    return {name: open_array(array) for name, array in single_record(content).items()}


def single_record(content: RecordDict) -> ArrayRecord:
    """Return a message's only ArrayRecord; raise WireError if there is none, or more."""
    records: list[ArrayRecord] = list(content.array_records.values())
    if len(records) != 1:
        raise WireError("record", f"expected one ArrayRecord, found {len(records)}")
    return records[0]


def open_array(array: Array) -> NDArray[Any]:
    """Return an array of a record.

    Raises
    ------
    WireError
        If its bytes are anything else.
    """
    try:
        found: object = array.numpy()
    except Exception as error:  # by no type of its own: of archives, headers, memory, pickles
        raise WireError("array", f"{type(error).__name__}: {error}") from error
    if not isinstance(found, np.ndarray):  # numpy opens whatever its bytes say that it is
        raise WireError("array", f"expected an array, found {type(found).__name__}")
    return found


def only_array(reply: RecordDict) -> tuple[str, NDArray[Any]]:
    """Return the name of a reply's only array, and the array.

    Raises
    ------
    WireError
        If there is none, or more than one, or its bytes are anything else.
    """
    found = [item for record in reply.array_records.values() for item in record.items()]
    if len(found) != 1:
        names = quoted([name for name, _ in found]) if found else "none"
        raise WireError("record", f"expected one array, found {names}")
    name, array = found[0]
    return name, open_array(array)


def array_or_none(reply: RecordDict) -> NDArray[Any] | None:
    """Return the only array of a reply, or None if it does not hold one, or more.

    Raises nothing, as :func:`or_none`.
    """
    return or_none(lambda: only_array(reply)[1], "the app's reply does not hold one array: %s")


def or_none(read: Callable[[], ReadT], text: str) -> ReadT | None:
    """Return what is read of a reply, or None if that cannot be.

    Whatever the app put into its reply is private, also that it put nothing there. So nothing is
    raised; the client's own log says what was wrong.
    """
    try:
        return read()
    except Exception as error:
        say(_log, logging.WARNING, text, cause_of(error))
        return None


def rows_complaint(
    reply: RecordDict, expected: str, wrong: Callable[[NDArray[Any]], int | None], fault: str
) -> str | None:
    """Return in words why not all rows of a reply's only array can be read; None if all can.

    The words are as private as the reply is. They are for a rehearsal, whose reply is made of
    public data, and for the log of a simulation, where nothing is protected.

    Parameters
    ----------
    reply : RecordDict
        The app's.
    expected : str
        What the array should be.
    wrong : callable
        Returns how many rows of an array cannot be read; None if it is something else.
    fault : str
        What is wrong with such rows.
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
    """Say how many real numbers are not finite."""
    nan = int(np.count_nonzero(np.isnan(values)))
    infinite = int(np.count_nonzero(np.isinf(values)))
    return f"{nan:,} NaN and {infinite:,} infinite of {values.size:,} entries"
