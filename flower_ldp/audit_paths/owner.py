"""A data owner for audits: a real policy and a real ledger, in a folder that goes with it."""

from __future__ import annotations

import itertools
import logging
import shutil
import tempfile
import weakref
import zlib
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

from flwr.app import Context, Message, Metadata, RecordDict
from flwr.clientapp import ClientApp

from flower_ldp.clients import OwnerAdmission, Permit, ReleaseRequest
from flower_ldp.clients.permit import Handling
from flower_ldp.mechanisms.base import NO_REPORT
from flower_ldp.policy import Policy, load_policy
from flower_ldp.policy.files import NODE_CONFIG_KEY, no_environment
from flower_ldp.simulation.flower import over_the_wire

_POLICY = """\
data_id: audit
ledger: ledger.sqlite
mode: simulation
messages: {}
unlisted_messages: answer
least_epsilon: 1.0e-9
releases: {life: 1000000000}
repeats: 1000000000
budgets:
  client: {life: {epsilon: 1000000.0, delta: 0.5}}
  example: {life: {epsilon: 1000000.0, delta: 0.5}}
  label: {life: {epsilon: 1000000.0, delta: 0.5}}
"""
_RUN, _NODE = 1, 1
#: What arrived, by its kind: a report or model, or whatever else.
Outcome = tuple[str, Hashable]


@dataclass(frozen=True)
class AsDeployed(OwnerAdmission):
    """The owner's admission, whose apps are answered for as in a deployment.

    A simulation's ledger is quick, and a simulation tells of an app that fails: an audit wants
    the one without the other.
    """

    def admit(self, request: ReleaseRequest, context: Context) -> Permit:
        """Admit as the owner does."""
        permit = OwnerAdmission().admit(request, context)  # one gate may serve many audits' nodes
        handling = replace(permit.handling, is_simulation=False)
        if permit.granted is None:  # else a plan ends where its app fails
            handling = Handling(answer_after=handling.answer_after)  # thousands of times: no count
        return replace(permit, handling=handling)


class AuditOwner:
    """Allows every release, and charges each to a ledger of its own that is deleted with it.

    Parameters
    ----------
    more : str
        Further fields of its policy, as YAML.
    """

    def __init__(self, more: str = "") -> None:
        folder = tempfile.mkdtemp(prefix="flower-ldp-audit-")
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        self._path = Path(folder) / "policy.yaml"
        self._path.write_text(_POLICY + more, encoding="utf-8")
        self._numbers = itertools.count()

    @property
    def policy(self) -> Policy:
        """The owner's policy."""
        return load_policy(self._path)

    def new_name(self) -> str:
        """Return a name that no message or set of labels had before."""
        return f"audit-{next(self._numbers)}"

    def answer(self, app: ClientApp, content: RecordDict, partition: int = 0) -> Message:
        """Return what an app on this node replies to a request, both as bytes of the network."""
        sent = over_the_wire(_asked(content, self.new_name()))
        with self.at_home():
            return over_the_wire(app(sent, self.context(partition)))

    def context(self, partition: int = 0) -> Context:
        """Return the context of a client app on this owner's node; a partition has an account."""
        return Context(
            run_id=_RUN,
            node_id=_NODE,
            node_config={NODE_CONFIG_KEY: str(self._path), "partition-id": partition},
            state=RecordDict(),
            run_config={},
        )

    @contextmanager
    def at_home(self) -> Iterator[None]:
        """Let no other policy be named meanwhile, and keep what the gate logs out of the way.

        An audit makes apps fail on purpose, thousands of times.
        """
        log = logging.getLogger("flower_ldp")
        was_disabled, log.disabled = log.disabled, True
        try:
            with no_environment():
                yield
        finally:
            log.disabled = was_disabled


def _asked(content: RecordDict, name: str) -> Message:
    """Return a server's request to train, as the owner's node receives it."""
    where = Metadata(_RUN, name, _NODE + 1, _NODE, "", "audit", 0.0, 3_600.0, "train")
    # Flower's own processes make messages so; its signature names what apps may give.
    make = cast(Callable[..., Message], Message)
    return make(content=content, metadata=where)


def error_of(reply: Message) -> Outcome:
    """Return the outcome that a reply is an error: all that it says."""
    return "error", (reply.error.code, reply.error.reason)


def score_of_else(outcome: object) -> float:
    """Return a number far above every score of what should arrive; errors differ in theirs."""
    return NO_REPORT + zlib.crc32(repr(outcome).encode())
