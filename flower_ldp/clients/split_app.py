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
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import Mod
from numpy.typing import NDArray

from flower_ldp.clients.admission import Admission
from flower_ldp.clients.embedding import (
    EMBEDDING_KEY,
    EmbeddingRelease,
    Party,
    check_step,
    check_table,
)
from flower_ldp.clients.ldp_mod import ERROR_CODE, FAILED, REFUSED_PROPOSAL, LdpMod
from flower_ldp.errors import RefusalError, ReleaseError, WireError
from flower_ldp.mechanisms.kary_response import KaryResponse, check_labels
from flower_ldp.privacy import Unit
from flower_ldp.wire.embedding import (
    ALIGN,
    BACKWARD,
    CHANNEL_KEY,
    EVALUATE,
    FORWARD,
    GRADIENT_KEY,
    LABELS_KEY,
    PREPARE,
    REWIND,
    STEP_KEY,
    EmbeddingProposal,
    TableTerms,
)
from flower_ldp.wire.proposal import PAYLOAD_KEY, PROPOSAL_KEY, REPORT_KEY

_log = logging.getLogger("flower_ldp")


_TAKEN_IN: dict[str, tuple[str, ...]] = {
    "public": (),
    "dp": (PREPARE,),
    "conditional": (PREPARE, BACKWARD, REWIND),
}
_AT_STEP = (FORWARD, EVALUATE, BACKWARD)


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
        in a process of its own. It should read ids and weights; features can wait until
        ``embed`` asks for them.
    admission : Admission, optional
        As for the gate: by default the data owner's policy and ledger.
    mods : sequence of Mod
        Mods around all of it. They see only what leaves.

    Returns
    -------
    ClientApp
    """

    def answer(message: Message, context: Context) -> Message:
        try:
            party = load(context)
        except (Exception, SystemExit):
            _log.exception("no report leaves: the party could not be loaded")
            return _error(FAILED, message)
        if message.metadata.message_type == ALIGN:
            return _align(party, message)
        if message.metadata.message_type in _AT_STEP:
            refused = _refused(message, lambda: check_step(party, message.content))
            if refused is not None:
                return refused
        release = EmbeddingRelease(party)
        gate = LdpMod(
            admission=admission,
            actions={FORWARD: release, EVALUATE: release},
            acknowledged=_TAKEN_IN[party.claim.kind],
        )
        return gate(message, context, partial(_compute, party))

    app = ClientApp(mods=list(mods))
    app.query("align")(answer)
    app.train("rewind")(answer)
    app.train("prepare")(answer)
    app.train("forward")(answer)
    app.train("backward")(answer)
    app.evaluate("forward")(answer)
    return app


def _refused(message: Message, check: Callable[[], None]) -> Message | None:
    """Return the answer to a message that a check of public facts refuses."""
    try:
        check()
    except RefusalError as refusal:
        _log.warning("refused: %s", refusal)
        return _error(refusal.code, message)
    except WireError as error:
        _log.warning("refused: %s", error)
        return _error(REFUSED_PROPOSAL, message)
    return None


def _align(party: Party, message: Message) -> Message:
    """Say who this is, once all tables that the server names are the party's."""

    def check() -> None:
        for key, record in message.content.config_records.items():
            if key.startswith(PROPOSAL_KEY):
                check_table(party, TableTerms.from_fields(record))

    refused = _refused(message, check)
    if refused is not None:
        return refused
    claim, learns = party.claim, party.claim.kind == "conditional"
    fields = {
        "name": party.name,
        "claim": claim.kind,
        "epsilon": float(claim.epsilon),
        "delta": float(claim.delta),
        "step": party.step if learns else "",
        "earlier": list(party.earlier()) if learns else [],
    }
    record = ConfigRecord({PAYLOAD_KEY: json.dumps(fields, sort_keys=True).encode()})
    return Message(RecordDict({REPORT_KEY: record}), reply_to=message)


def _compute(party: Party, message: Message, _: Context) -> Message:
    """Do behind the gate what the message asks for."""
    take_in = {BACKWARD: _learn, PREPARE: _prepare, REWIND: _rewind}
    taken = take_in.get(message.metadata.message_type)
    if taken is not None:
        taken(party, message.content)
        return Message(RecordDict(), reply_to=message)
    proposal = EmbeddingProposal.from_fields(message.content.config_records[PROPOSAL_KEY])
    table = proposal.terms.table
    found = party.embed(table, party.tables.rows(table, proposal.block))
    record = ArrayRecord({EMBEDDING_KEY: Array(np.asarray(found))})
    return Message(RecordDict({EMBEDDING_KEY: record}), reply_to=message)


def _rewind(party: Party, content: RecordDict) -> None:
    step = content.config_records[STEP_KEY]["after"]
    if not isinstance(step, str):
        raise WireError("fields", f"step must be text, got {step!r}")
    party.rewind(step)


def _prepare(party: Party, content: RecordDict) -> None:
    terms = TableTerms.from_fields(content.config_records[PROPOSAL_KEY])
    check_table(party, terms)
    channel = content.config_records[CHANNEL_KEY]
    epsilon, categories = channel["epsilon"], channel["categories"]
    if type(epsilon) is not float or type(categories) is not int:
        raise WireError("fields", f"no channel of labels: {dict(channel)!r}")
    response = KaryResponse(epsilon, categories, "label", Unit.LABEL)
    sent = content.array_records[LABELS_KEY][LABELS_KEY].numpy()
    sent = check_labels("labels", sent, categories)
    if sent.shape != (terms.records,):
        raise WireError("length", f"{sent.shape} labels for {terms.records} records")
    own = np.empty_like(sent)
    own[party.tables.tables[terms.table].order] = sent
    party.prepare(terms.table, own, response)


def _learn(party: Party, content: RecordDict) -> None:
    proposal = EmbeddingProposal.from_fields(content.config_records[PROPOSAL_KEY])
    step = content.config_records[STEP_KEY]["step"]
    if not isinstance(step, str) or not step:
        raise WireError("fields", f"step must be text, got {step!r}")
    check_table(party, proposal.terms)
    table = proposal.terms.table
    rows = party.tables.rows(table, proposal.block)
    party.learn(table, rows, _gradient(content, len(rows)), step)


def _gradient(content: RecordDict, records: int) -> NDArray[np.float32]:
    gradient = content.array_records[GRADIENT_KEY][GRADIENT_KEY].numpy()
    if gradient.dtype != np.float32 or gradient.ndim != 2 or len(gradient) != records:
        raise ReleaseError(
            f"the gradient must be float32 with {records} rows, got {gradient.dtype} "
            f"{gradient.shape}"
        )
    if not np.isfinite(gradient).all():
        raise ReleaseError("the gradient must be finite")
    return np.asarray(gradient)


def _error(reason: str, message: Message) -> Message:
    return Message(Error(code=ERROR_CODE, reason=reason), reply_to=message)
