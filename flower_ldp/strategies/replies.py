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
from flower_ldp.wire.proposal import PAYLOAD_KEY, REPORT_KEY

_log = logging.getLogger("flower_ldp")

REFUSED_POLICY = "ldp:refused:policy"
#: What may be wrong if every client answers with :data:`REFUSED_POLICY`.
NO_POLICY_HINT = (
    "clients refuse with ldp:refused:policy: their policy does not allow this proposal, or none "
    "is named. Each node's operator names one by --node-config 'ldp-policy=\"FILE\"' or the "
    "variable FLOWER_LDP_POLICY; for a simulation, set that variable to a policy with "
    "'mode: simulation' (configs/simulation_policy.yaml) before the SuperLink starts: the one that "
    "'flwr run' starts by itself stays up with the environment of its first start, until it is "
    "ended (pkill -f 'flower-superlink.*--port 39091'). The client's log says which"
)
#: Refusals that a gate sends before anything is charged.
UNCHARGED = frozenset(
    {"ldp:refused:budget", "ldp:refused:message", REFUSED_POLICY, "ldp:refused:proposal"}
)
ReportT = TypeVar("ReportT")


class ReplyFilter:
    """Decodes replies one by one and keeps count of those it rejects.

    Parameters
    ----------
    expected_nodes : iterable of int
        Nodes that were asked this round; each may answer once.

    Attributes
    ----------
    accepted : int
        Replies that decoded.
    rejected : Counter of str
        Replies that did not, by reason: a client's refusal (``"ldp:refused:policy"``), an
        app error or the SuperLink's own for a node that is gone (``"error"``), an unknown or
        repeated sender (``"sender"``), or what a decoder found wrong (``"record"``,
        ``"version"``, ``"length"``, ...).
    uncharged : list of int
        Nodes that refused before anything was charged (:data:`UNCHARGED`).
    """

    def __init__(self, expected_nodes: Iterable[int]) -> None:
        self._waiting = set(expected_nodes)
        self.accepted = 0
        self.rejected: Counter[str] = Counter()
        self.uncharged: list[int] = []

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
        for reply in replies:
            try:
                report = self._open(reply, decoder)
            except WireError as error:
                self.rejected[error.reason] += 1
                _log.warning("reply of node %d left out: %s", reply.metadata.src_node_id, error)
                continue
            self.accepted += 1
            yield report

    def _open(self, reply: Message, decoder: Callable[[bytes], ReportT]) -> ReportT:
        node = reply.metadata.src_node_id
        if node not in self._waiting:
            if reply.has_error():  # the SuperLink answers so, in its own name, for a lost node
                raise WireError("error", reply.error.reason or "")
            raise WireError("sender", "not asked this round, or has answered before")
        self._waiting.discard(node)
        if reply.has_error():
            reason = reply.error.reason or ""
            if reason in UNCHARGED:
                self.uncharged.append(node)
            raise WireError(reason if reason in _KNOWN_REASONS else "error", reason)
        return decoder(payload_of(reply.content))


_KNOWN_REASONS = frozenset(
    {
        "ldp:failed",
        "ldp:refused:budget",
        "ldp:refused:ledger",
        "ldp:refused:message",
        "ldp:refused:policy",
        "ldp:refused:proposal",
        "ldp:refused:repeat",
    }
)


def payload_of(content: RecordDict) -> bytes:
    """Return the packed bytes of a reply that holds the report's record and nothing else.

    Raises
    ------
    WireError
        ``"record"`` if there is anything else.
    """
    record = content.get(REPORT_KEY)
    if len(content) != 1 or not isinstance(record, ConfigRecord):
        raise WireError(
            "record", f"expected one {REPORT_KEY!r} record, found {quoted(list(content))}"
        )
    payload = record.get(PAYLOAD_KEY)
    if len(record) != 1 or not isinstance(payload, bytes):
        raise WireError("record", f"expected one bytes field {PAYLOAD_KEY!r}")
    return payload
