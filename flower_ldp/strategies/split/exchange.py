"""Asking feature parties, over Flower's grid or within one process.

A step of split learning needs the answer of every party, so a party that refuses or fails
stops the run with a :class:`PartyError` that names it and says why. A party that answers without a
gate stops it too, before all else that may be wrong: its embeddings have crossed the network.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, cast, runtime_checkable

from flwr.app import Context, Message, Metadata, RecordDict
from flwr.clientapp.typing import ClientAppCallable
from flwr.serverapp import Grid
from flwr.serverapp.strategy.strategy_utils import sample_nodes

from flower_ldp.errors import LdpError, WireError
from flower_ldp.refusals import MEANINGS, REFUSED_MESSAGE
from flower_ldp.strategies.endings import RunStopped
from flower_ldp.strategies.patience import patient_grid
from flower_ldp.strategies.replies import is_raw, payload_of


class PartyError(LdpError):
    """A party did not answer, or not as it should.

    Parameters
    ----------
    party : str
        Its name, or its node while the name is not known.
    reason : str
        The code that it sent, or what is wrong with its reply.
    others : sequence of PartyError
        Of parties that did not answer the same question either; the text names them too.
    """

    def __init__(self, party: str, reason: str, others: Sequence[PartyError] = ()) -> None:
        own = f"party {party}: {reason}" + _explained(reason)
        super().__init__("; ".join([own, *map(str, others)]))
        self.party = party
        self.reason = reason


def _explained(reason: str) -> str:
    if reason == REFUSED_MESSAGE:
        return " (its bottom is frozen and takes no gradients)"
    known = MEANINGS.get(reason)
    return "" if known is None else f" ({known.meaning}: {known.remedy})"


@runtime_checkable
class Exchange(Protocol):
    """A way to ask parties."""

    def nodes(self, least: int) -> list[int]:
        """Return the nodes of all parties, once so many can be asked."""

    def ask(self, kind: str, contents: Mapping[int, RecordDict]) -> dict[int, Message]:
        """Send each node its content and return what came back, by node."""


class GridExchange:
    """Asks over Flower's grid: simulation, or SuperNodes.

    Parameters
    ----------
    grid : Grid
        Of the server app.
        Parties may be too few for an hour; pass ``patient_grid(grid, wait_seconds)`` for
        another time.
    timeout : float, optional
        Seconds to wait for all answers to one question.
    """

    def __init__(self, grid: Grid, timeout: float | None = 3_600.0) -> None:
        self._grid = patient_grid(grid)
        self._timeout = timeout

    def nodes(self, least: int) -> list[int]:
        """Return the nodes that are connected, once there are so many."""
        return sorted(sample_nodes(self._grid, least, 0)[1])

    def ask(self, kind: str, contents: Mapping[int, RecordDict]) -> dict[int, Message]:
        """Send the messages and wait."""
        messages = [
            Message(content=content, dst_node_id=node, message_type=kind)
            for node, content in contents.items()
        ]
        replies = self._grid.send_and_receive(messages, timeout=self._timeout)
        return {reply.metadata.src_node_id: reply for reply in replies}


class LocalExchange:
    """Asks apps in this process: no engine, no network, the same messages and the same gate.

    For parties with an app, a node configuration and so a policy each, whose messages stay
    objects: a step of split learning is two of them a batch. One app for all nodes, whose messages
    go through bytes, runs by :func:`flower_ldp.simulation.run_in_process`.

    Parameters
    ----------
    apps : mapping of int to (app, context)
        By node, each party's ``ClientApp`` and the context that it is called with.
    run_id : int
        What the apps see as Flower's run.
    """

    def __init__(
        self, apps: Mapping[int, tuple[ClientAppCallable, Context]], *, run_id: int = 1
    ) -> None:
        self._apps = dict(apps)
        self._run_id = run_id
        self._asked = 0

    def nodes(self, least: int) -> list[int]:
        """Return all nodes: no more can come."""
        del least
        return sorted(self._apps)

    def ask(self, kind: str, contents: Mapping[int, RecordDict]) -> dict[int, Message]:
        """Call one app after the other."""
        replies = {}
        for node, content in contents.items():
            app, context = self._apps[node]
            replies[node] = app(self._message(kind, node, content), context)
        return replies

    def _message(self, kind: str, node: int, content: RecordDict) -> Message:
        self._asked += 1
        metadata = Metadata(
            run_id=self._run_id,
            message_id=f"local-{self._asked}",
            src_node_id=0,
            dst_node_id=node,
            reply_to_message_id="",
            group_id="",
            created_at=time.time(),
            ttl=3_600.0,
            message_type=kind,
        )
        # Outside of a run Flower makes messages only from metadata that are complete.
        return cast(Message, cast(Any, Message)(content=content, metadata=metadata))


def payloads(replies: Mapping[int, Message], names: Mapping[int, str]) -> dict[int, bytes]:
    """Return the payload of each named node's reply.

    Raises
    ------
    RunStopped
        If a party answered without a gate. No epsilon is counted for it.
    PartyError
        If a party has no payload: for the first of them, and it names the others.
    """
    raw = [name for node, name in names.items() if _is_raw(replies.get(node))]
    if raw:
        raise RunStopped(
            f"{'party' if len(raw) == 1 else 'parties'} {', '.join(raw)} answered with raw "
            "replies: the app has no gate. Make it by split_client_app(load), which has one, or "
            "put LdpMod first in an app of your own (mods=[LdpMod(...)]). What was sent is not "
            "private, and no epsilon is counted for it. The run stops so that no more crosses the "
            "network"
        )
    read = {node: _read(replies.get(node), name) for node, name in names.items()}
    failed = [answer for answer in read.values() if isinstance(answer, PartyError)]
    if failed:
        raise PartyError(failed[0].party, failed[0].reason, failed[1:])
    return {node: answer for node, answer in read.items() if isinstance(answer, bytes)}


def _is_raw(reply: Message | None) -> bool:
    return reply is not None and not reply.has_error() and is_raw(reply.content)


def _read(reply: Message | None, name: str) -> bytes | PartyError:
    """Return the payload of a party's reply, or why it has none."""
    if reply is None:
        return PartyError(name, "no answer within the time that it had")
    if reply.has_error():
        return PartyError(name, reply.error.reason or "an error without a reason")
    try:
        return payload_of(reply.content)
    except WireError as error:
        return PartyError(name, str(error))
