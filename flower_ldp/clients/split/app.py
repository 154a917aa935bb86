"""The client app of a feature party: aligns, releases embeddings, takes gradients in.

=====================  ==================================================================
type of message        answer
=====================  ==================================================================
``query.align``        the party's name, its claim and its step, if the ids agree: public facts
``train.rewind``       empty; the bottom is back at an earlier step
``train.prepare``      empty; the bottom was trained on the randomized labels that were sent
``train.forward``      randomized embeddings of a block
``evaluate.forward``   the same, for records that are only predicted
``train.backward``     empty; the bottom has moved by the gradient that was sent
=====================  ==================================================================

Embeddings pass the gate (:class:`~flower_ldp.clients.LdpMod`). What a bottom may take in follows
from its claim: gradients only if it is ``conditional``, labels unless it is ``public``, when it is
frozen altogether. How the labels are used under ``dp`` is the party's own promise. A bottom that
takes gradients answers only a run that is at its step.

Nothing is answered without the admission: it is asked for introductions and empty answers too. An
answer that takes something in is empty whether that went well or not, and the party's step is then
the one that was asked for. Malformed messages are refused beforehand, by public facts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import Mod

from flower_ldp.clients.answers import constant, failed, report
from flower_ldp.clients.checks import log_refusal
from flower_ldp.clients.ldp_mod import LdpMod
from flower_ldp.clients.node_config import kept_node_config
from flower_ldp.clients.owner import OwnerAdmission
from flower_ldp.clients.permit import Admission
from flower_ldp.clients.release import OpenRelease
from flower_ldp.clients.split.block import check_table, read_block
from flower_ldp.clients.split.embedding import EmbeddingRelease, Party, check_step
from flower_ldp.clients.split.tasks import Task, embed, reach, read_task, step_asked
from flower_ldp.errors import RefusalError, WireError
from flower_ldp.refusals import REFUSED_PROPOSAL
from flower_ldp.wire.embedding import (
    ALIGN,
    BACKWARD,
    EVALUATE,
    FORWARD,
    PREPARE,
    REWIND,
    TableTerms,
)
from flower_ldp.wire.fields import PROPOSAL_KEY

_TAKEN_IN: dict[str, tuple[str, ...]] = {
    "public": (),
    "dp": (PREPARE,),
    "conditional": (PREPARE, BACKWARD, REWIND),
}
_RELEASED = (FORWARD, EVALUATE)
_AT_STEP = (*_RELEASED, BACKWARD)


def split_client_app(
    load: Callable[[Context], Party],
    *,
    admission: Admission | None = None,
    mods: Sequence[Mod] = (),
) -> ClientApp:
    """Return the app of a feature party.

    Parameters
    ----------
    load : callable
        Returns the party from Flower's context, for each message anew: Flower may handle each
        in a process of its own. It reads what is public, ids, claim and weights, since the server
        is told if it fails (``FAILED``): without the ids there is nothing that an answer could
        be about. Features wait until ``embed`` asks for them.
    admission : Admission, optional
        As for the gate: by default the data owner's policy and ledger.
    mods : sequence of Mod
        Mods around all of it. They see only what leaves.

    Returns
    -------
    ClientApp
    """
    asked = OwnerAdmission() if admission is None else admission

    def answer(message: Message, context: Context) -> Message:
        try:
            return _answer(load, asked, message, context)
        except RefusalError as refusal:
            log_refusal(message.metadata.run_id, refusal)
            return constant(refusal.code, message)
        except (WireError, ValueError) as error:
            log_refusal(message.metadata.run_id, RefusalError(REFUSED_PROPOSAL, str(error)))
            return constant(REFUSED_PROPOSAL, message)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            return failed(message, error, "the message could not be judged")

    app = ClientApp(mods=list(mods))
    app.query("align")(answer)
    app.train("rewind")(answer)
    app.train("prepare")(answer)
    app.train("forward")(answer)
    app.train("backward")(answer)
    app.evaluate("forward")(answer)
    return app


def _answer(
    load: Callable[[Context], Party], admission: Admission, message: Message, context: Context
) -> Message:
    """Answer one message; raise what public facts refuse."""
    kind = message.metadata.message_type
    if kind == ALIGN:
        admission.acknowledge(kind, context)
    try:
        with kept_node_config(context) as given:
            party = load(given)
        taken_in = _TAKEN_IN[party.claim.kind]
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return failed(message, error, "the party could not be loaded")
    if kind == ALIGN:
        return report(_introduction(party, message.content), message)
    if kind in _AT_STEP:
        check_step(party, message.content)
    if kind in _RELEASED:
        return _released(admission, party, message, context)
    gate = LdpMod(admission=admission, acknowledged=taken_in)
    if kind in taken_in:
        return _taken_in(gate, party, message, context)
    return gate(message, context, _app(RecordDict))  # refused: this bottom does not take it in


@dataclass(frozen=True)
class _Read:
    """A release whose proposal was read before the gate was asked."""

    opened: OpenRelease

    def open(self, _: RecordDict) -> OpenRelease:
        return self.opened


def _released(admission: Admission, party: Party, message: Message, context: Context) -> Message:
    """Have the gate release the embeddings of the message's block."""
    block = read_block(party.tables, message.content)
    release = _Read(EmbeddingRelease(party).about(block))
    gate = LdpMod(admission=admission, actions={message.metadata.message_type: release})
    return gate(message, context, _app(partial(embed, party, block)))


def _taken_in(gate: LdpMod, party: Party, message: Message, context: Context) -> Message:
    """Have the party take something in, and stand where it was asked to whatever came of it."""
    kind, content = message.metadata.message_type, message.content
    step, task = step_asked(kind, content), read_task(party, kind, content)
    answer = gate(message, context, _app(task))
    if step is not None and not answer.has_error():
        reach(party, step)
    return answer


def _app(task: Task) -> Callable[[Message, Context], Message]:
    return lambda message, _: Message(task(), reply_to=message)


def _introduction(party: Party, content: RecordDict) -> bytes:
    """Say who this is, once all tables that the server names are the party's."""
    for key, record in content.config_records.items():
        if key.startswith(PROPOSAL_KEY):
            check_table(party.tables, TableTerms.from_fields(record))
    claim, learns = party.claim, party.claim.kind == "conditional"
    fields = {
        "name": party.name,
        "claim": claim.kind,
        "epsilon": float(claim.epsilon),
        "delta": float(claim.delta),
        "step": party.step if learns else "",
        "earlier": list(party.earlier()) if learns else [],
    }
    return json.dumps(fields, sort_keys=True).encode()
