"""The mod for ``NOT_ENCRYPT``: an app's replies leave if the owner's policy allows it by name."""

import logging
from dataclasses import dataclass, field
from functools import cache

from flwr.app import Context, Message
from flwr.clientapp.typing import ClientAppCallable

from flower_ldp import inner_gate
from flower_ldp.clients.authorizer import OwnerAuthorizer
from flower_ldp.clients.diagnostics import log_refusal
from flower_ldp.clients.ldp_mod import LdpMod, kept_node_config
from flower_ldp.clients.release import constant
from flower_ldp.errors import RefusalError

_log = logging.getLogger("flower_ldp")
RAW_LEAVES = {
    "train": "RAW UPDATES LEAVE THE CLIENTS (NOT_ENCRYPT): NOTHING PROTECTS THEM",
    "evaluate": "RAW EVALUATION REPLIES LEAVE THE CLIENTS (NOT_ENCRYPT): NOTHING PROTECTS THEM",
}


@dataclass(frozen=True)
class UnprotectedMod:
    """Flower client mod that lets raw replies to some messages leave; at no epsilon.

    The owner's policy must list the type of message under ``not_encrypt``. The ledger counts each
    reply. Replies to all other messages are ``gate``'s. A guarded node sends no raw reply.

    Parameters
    ----------
    message_types : tuple of {"train", "evaluate"}
        Messages that are answered without protection.
    gate : LdpMod
        Answers all other messages; without a release it refuses them.
    owner : OwnerAuthorizer
        The gate's own: one node has one policy.
    """

    message_types: tuple[str, ...]
    gate: LdpMod = field(default_factory=LdpMod)
    owner: OwnerAuthorizer = field(default_factory=OwnerAuthorizer, repr=False)

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """Return the app's own reply if the policy allows it, else a constant refusal."""
        kind = message.metadata.message_type
        if kind not in self.message_types or inner_gate.node_privatizes:
            return self.gate(message, context, call_next)
        try:
            self.owner.allow_unprotected(kind, context)
        except RefusalError as refusal:
            log_refusal(message.metadata.run_id, refusal)
            return constant(refusal.code, message)
        _warn_once(kind)
        with kept_node_config(context) as own:
            return call_next(message, own)


@cache
def _warn_once(kind: str) -> None:
    _log.warning("%s", RAW_LEAVES[kind])
