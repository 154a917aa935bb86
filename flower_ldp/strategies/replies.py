"""Reply validation: each reply is judged by itself, and a bad one is counted and left out.

Flower's own check stops a round at the first odd reply and looks at no value. Reports
come from machines that the server does not control, so here one client can spoil no more
than its own report.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from flwr.app import ConfigRecord, Message, RecordDict

from flower_ldp.errors import WireError, quoted
from flower_ldp.refusals import (
    MEANINGS,
    NO_PROPOSAL,
    REFUSED_PROPOSAL,
    REFUSED_REHEARSAL,
)
from flower_ldp.wire.fields import PAYLOAD_KEY, REPORT_KEY

_log = logging.getLogger("flower_ldp")
_flwr_log = logging.getLogger("flwr")

#: Refusals that a gate sends before anything is charged.
UNCHARGED = frozenset(
    code for code, one in MEANINGS.items() if one.stage == "before" and not one.party
)
#: How much of what a client sent is quoted in a log line.
_MOST_QUOTED = 300
ReportT = TypeVar("ReportT")


class Complaints:
    """Says each kind of complaint once in a run; what is like it goes to the debug log.

    Attributes
    ----------
    learned : bool
        Whether the run has had a report or a model: refusals end it no more.
    """

    def __init__(self) -> None:
        self.learned = False
        self._said: set[str] = set()

    def say(self, kind: str, text: str) -> None:
        """Warn, if nothing of this kind was warned of before."""
        if kind in self._said:
            _log.debug("%s", text)
            return
        self._said.add(kind)
        _log.warning("%s (what is like it is counted, and not logged again)", text)

    def hint(self, kind: str, text: str) -> None:
        """Log, where Flower logs, what a kind of complaint may mean; once."""
        if f"hint {kind}" not in self._said:
            self._said.add(f"hint {kind}")
            _flwr_log.warning(text)


class ReplyFilter:
    """Decodes replies one by one and keeps count of those it rejects.

    Parameters
    ----------
    expected_nodes : iterable of int
        Nodes that were asked this round; each may answer once.
    complaints : Complaints, optional
        Of the run, so that it says each kind once.

    Attributes
    ----------
    accepted : int
        Replies that decoded.
    asked : int
        How many were asked.
    rejected : Counter of str
        Replies that did not, by reason: a client's refusal (:mod:`flower_ldp.refusals`), an
        app error or the SuperLink's own for a node that is gone (``"error"``), an unknown or
        repeated sender (``"sender"``), or what a decoder found wrong (``"record"``,
        ``"version"``, ``"length"``, ...).
    uncharged : list of int
        Nodes that refused before anything was charged (:data:`UNCHARGED`).
    raw : list of int
        Nodes that were asked and sent what their app replied, as it is: no gate guards it.
    rehearsed : Counter of str
        What apps said that failed their rehearsal.
    """

    def __init__(self, expected_nodes: Iterable[int], complaints: Complaints | None = None) -> None:
        self._waiting = set(expected_nodes)
        self.asked = len(self._waiting)
        self.complaints = Complaints() if complaints is None else complaints
        self.accepted = 0
        self.rejected: Counter[str] = Counter()
        self.uncharged: list[int] = []
        self.raw: list[int] = []
        self.rehearsed: Counter[str] = Counter()

    def decode(
        self, replies: Iterable[Message], decoder: Callable[[bytes], ReportT]
    ) -> Iterator[ReportT]:
        """Yield the reports of the good replies.

        Parameters
        ----------
        replies : iterable of Message
            What the grid returned.
        decoder : callable
            Turns a payload into a report or raises WireError.
        """

        def opened(reply: Message) -> ReportT:
            if is_raw(reply.content):
                self.raw.append(reply.metadata.src_node_id)
            return decoder(payload_of(reply.content))

        return self.read(replies, opened)

    def read(
        self, replies: Iterable[Message], reader: Callable[[Message], ReportT]
    ) -> Iterator[ReportT]:
        """Yield what a reader makes of the good replies: those for which it raises no WireError."""
        for reply in replies:
            node = reply.metadata.src_node_id
            try:
                self._check(reply)
                report = reader(reply)
            except WireError as error:
                self.rejected[error.reason] += 1
                kind = "raw" if node in self.raw else error.reason
                self.complaints.say(kind, f"reply of node {node} left out: {error}")
                continue
            self.accepted += 1
            self.complaints.learned = True
            yield report

    def _check(self, reply: Message) -> None:
        """Raise WireError unless a node that was asked has sent content, for the first time."""
        node = reply.metadata.src_node_id
        if node not in self._waiting:
            if reply.has_error():  # the SuperLink answers so, in its own name, for a lost node
                raise WireError("error", _one_line(reply.error.reason or ""))
            raise WireError("sender", "not asked this round, or has answered before")
        self._waiting.discard(node)
        if reply.has_error():
            raise self._error(node, reply.error.reason or "")

    def _error(self, node: int, text: str) -> WireError:
        """Return the error for a client's error reply, whose text is anything."""
        reason, detail = text, text
        if text == NO_PROPOSAL:
            reason = REFUSED_PROPOSAL
        elif text.startswith(f"{REFUSED_REHEARSAL}:"):
            reason, detail = REFUSED_REHEARSAL, text.removeprefix(f"{REFUSED_REHEARSAL}:").strip()
            self.rehearsed[_one_line(detail)] += 1
        if reason in UNCHARGED:
            self.uncharged.append(node)
        if reason not in _KNOWN_REASONS:
            return WireError("error", _one_line(detail))
        return WireError(reason, "" if detail == reason else _one_line(detail))


def _one_line(text: str) -> str:
    """Return what a client sent, cut and in one line."""
    text = "".join(c if c.isprintable() else " " for c in text[: _MOST_QUOTED + 1])
    return text if len(text) <= _MOST_QUOTED else f"{text[:_MOST_QUOTED]}..."


_KNOWN_REASONS = frozenset(code for code, one in MEANINGS.items() if not one.party)


def is_raw(content: RecordDict) -> bool:
    """Return whether a reply holds something and no report: no gate has seen it."""
    return len(content) > 0 and REPORT_KEY not in content


def payload_of(content: RecordDict) -> bytes:
    """Return the packed bytes of a reply that holds the report's record and nothing else.

    Raises
    ------
    WireError
        ``"record"`` if there is anything else.
    """
    if is_raw(content):
        raise WireError(
            "record",
            f"a raw reply, {quoted(list(content))}: its app has no LdpMod (mods=[LdpMod(...)]), "
            "so nothing of it is private",
        )
    record = content.get(REPORT_KEY)
    if len(content) != 1 or not isinstance(record, ConfigRecord):
        raise WireError(
            "record",
            f"expected one {REPORT_KEY!r} record and no other, found {quoted(list(content))}: "
            "LdpMod must be the first of the app's mods",
        )
    payload = record.get(PAYLOAD_KEY)
    if len(record) != 1 or not isinstance(payload, bytes):
        raise WireError("record", f"expected one bytes field {PAYLOAD_KEY!r}")
    return payload
