"""The client app of a feature party in a split run (docs/wire.md, docs/embedding.md).

A ``conditional`` bottom takes labels and gradients, a ``dp`` one labels, a ``public`` one nothing.
Every answer needs the authorizer. Refusals depend on message, ids and step alone; later failures do
not show. Records are embedded one by one, since last bits can depend on a batch.
"""

import json
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import Mod
from numpy.typing import NDArray

from flower_ldp.clients import split_embedding as embedding
from flower_ldp.clients.authorizer import OwnerAuthorizer
from flower_ldp.clients.diagnostics import cause_of, log_refusal
from flower_ldp.clients.ldp_mod import LdpMod, kept_node_config
from flower_ldp.clients.permit import Authorizer
from flower_ldp.clients.release import IncompleteError, constant, failed, open_array, report
from flower_ldp.clients.split_embedding import EMBEDDING_KEY, EmbeddingRelease, Party
from flower_ldp.errors import RefusalError, ReleaseError, WireError, quoted, say
from flower_ldp.mechanisms.inputs import check_labels
from flower_ldp.mechanisms.randomized_response import KaryResponse
from flower_ldp.privacy import Unit
from flower_ldp.refusals import REFUSED_PROPOSAL, REFUSED_STEP
from flower_ldp.wire import embedding as wire
from flower_ldp.wire.proposal import PROPOSAL_KEY

_log = logging.getLogger("flower_ldp")

#: What is done behind the gate, and the step that it takes the party to; None if it stays.
Task = tuple[Callable[[], None], str | None]


def reach(party: Party, step: str) -> None:
    """Set the party to the step although its app failed, or log a line of constant length."""
    try:
        if party.step != step:
            party.skip(step)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        say(_log, logging.ERROR, "the party cannot go on to step %s: %s", step, cause_of(error))


def _rewind(party: Party, content: RecordDict) -> Task:
    step = _step(content, "after")
    if step not in (party.step, *party.earlier()):
        raise RefusalError(REFUSED_STEP, f"this party has no bottom of step {step or 'none'!r}")
    return partial(party.rewind, step), step


def _prepare(party: Party, content: RecordDict) -> Task:
    terms = wire.TableTerms.from_fields(embedding.read_record(content, PROPOSAL_KEY))
    embedding.check_table(party.tables, terms)
    channel = embedding.read_record(content, wire.CHANNEL_KEY)
    epsilon, categories = channel.get("epsilon"), channel.get("categories")
    if type(epsilon) is not float or type(categories) is not int:
        raise WireError("fields", f"no channel of labels: {dict(channel)!r}")
    response = KaryResponse(epsilon, categories, "label", Unit.LABEL)
    sent = check_labels("labels", _array(content, wire.LABELS_KEY), categories)
    if sent.shape != (terms.records,):
        raise WireError("length", f"{sent.shape} labels for {terms.records} records")
    own = np.empty_like(sent)
    own[party.tables.tables[terms.table].order] = sent
    return partial(party.prepare, terms.table, own, response), None


def _learn(party: Party, content: RecordDict) -> Task:
    step = _step(content, "step")
    if not step:
        raise WireError("fields", "the step must have a name")
    proposal, rows = embedding.read_block(party.tables, content)
    gradient, records = _array(content, wire.GRADIENT_KEY), len(rows)
    if gradient.dtype != np.float32 or gradient.ndim != 2 or len(gradient) != records:
        told = f"got {gradient.dtype} {gradient.shape}"
        raise WireError("array", f"the gradient must be float32 with {records} rows, {told}")
    if not np.isfinite(gradient).all():
        raise WireError("array", "the gradient must be finite")
    return partial(party.learn, proposal.terms.table, rows, gradient, step), step


def embed(party: Party, proposal: wire.EmbeddingProposal, rows: NDArray[np.int64]) -> RecordDict:
    """Return the reply's records for a block; IncompleteError if some failed."""
    width = proposal.mechanism.width
    found = np.full((len(rows), width), np.nan)
    failed, cause = 0, ""
    for place, row in enumerate(rows):
        try:
            one = np.asarray(party.embed(proposal.terms.table, np.array([row])))
            if one.dtype.kind not in "biuf" or one.shape != (1, width):
                raise ReleaseError(f"expected {width} numbers, found {one.dtype} {one.shape}")
            found[place] = one[0]
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            failed, cause = failed + 1, cause or cause_of(error)
    reply = RecordDict({EMBEDDING_KEY: ArrayRecord({EMBEDDING_KEY: Array(found)})})
    if failed:
        text = f"{failed} of {len(found)} records have no embedding; the first:\n{cause}"
        raise IncompleteError(text, reply)
    return reply


def _step(content: RecordDict, field: str) -> str:
    step = embedding.read_record(content, wire.STEP_KEY).get(field)
    if not isinstance(step, str):
        raise WireError("fields", f"{field} must be the name of a step")
    return step


def _check_step(party: Party, content: RecordDict) -> None:
    if party.claim.kind != "conditional":
        return
    after = _step(content, "after")
    if party.step not in (after, content.config_records[wire.STEP_KEY].get("step")):
        run, bottom = quoted(after or "none"), quoted(party.step or "none")
        told = f"the run is at step {run}, the bottom at {bottom}"
        raise RefusalError(REFUSED_STEP, f"{told}: one was restored, or moved by another run")


def _array(content: RecordDict, key: str) -> NDArray[Any]:
    record = content.array_records.get(key)
    if record is None or key not in record:
        raise WireError("record", f"the message has no array {key!r}")
    return open_array(record[key])


#: What reads a message that the bottom takes in: as :data:`Task`, by type of message.
_TASKS: dict[str, Callable[[Party, RecordDict], Task]] = {
    wire.BACKWARD: _learn,
    wire.PREPARE: _prepare,
    wire.REWIND: _rewind,
}
_TAKEN_IN: dict[str, tuple[str, ...]] = {
    "public": (),
    "dp": (wire.PREPARE,),
    "conditional": (wire.PREPARE, wire.BACKWARD, wire.REWIND),
}
_RELEASED = (wire.FORWARD, wire.EVALUATE)
_AT_STEP = (*_RELEASED, wire.BACKWARD)


def split_client_app(
    load: Callable[[Context], Party],
    *,
    authorizer: Authorizer | None = None,
    mods: Sequence[Mod] = (),
) -> ClientApp:
    """Return the app of a feature party.

    Parameters
    ----------
    load : callable
        Returns the party from Flower's context, for each message. It must read public facts only
        (ids, claim, weights), because the server learns if it fails (``FAILED``). Read features in
        ``embed``.
    authorizer : Authorizer, optional
        By default the data owner's policy and ledger.
    mods : sequence of Mod
        Mods around the whole app. They see only what leaves.
    """
    asked = OwnerAuthorizer() if authorizer is None else authorizer

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
    for action in ("rewind", "prepare", "forward", "backward"):
        app.train(action)(answer)
    app.evaluate("forward")(answer)
    return app


def _answer(
    load: Callable[[Context], Party], authorizer: Authorizer, message: Message, context: Context
) -> Message:
    kind = message.metadata.message_type
    if kind == wire.ALIGN:
        authorizer.acknowledge(kind, context)
    try:
        with kept_node_config(context) as given:
            party = load(given)
        taken_in = _TAKEN_IN[party.claim.kind]
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return failed(message, error, "the party could not be loaded")
    if kind == wire.ALIGN:
        return report(_introduction(party, message.content), message)
    if kind in _AT_STEP:
        _check_step(party, message.content)
    # What a bottom does not take in, the gate refuses.
    act: Callable[[], RecordDict | None] = RecordDict
    step: str | None = None
    if kind in _RELEASED:
        act = partial(embed, party, *embedding.read_block(party.tables, message.content))
    elif kind in taken_in:
        act, step = _TASKS[kind](party, message.content)
    releases = dict.fromkeys(_RELEASED, EmbeddingRelease(party))
    gate = LdpMod(authorizer=authorizer, actions=releases, acknowledged=taken_in)

    def app(asked: Message, _: Context) -> Message:
        return Message(act() or RecordDict(), reply_to=asked)

    answer = gate(message, context, app)
    # The party stands where it was asked to, whatever came of it.
    if step is not None and not answer.has_error():
        reach(party, step)
    return answer


def _introduction(party: Party, content: RecordDict) -> bytes:
    for key, record in content.config_records.items():
        if key.startswith(PROPOSAL_KEY):
            embedding.check_table(party.tables, wire.TableTerms.from_fields(record))
    claim, learns = party.claim, party.claim.kind == "conditional"
    amounts = {"epsilon": float(claim.epsilon), "delta": float(claim.delta)}
    step, earlier = (party.step, list(party.earlier())) if learns else ("", [])
    fields = {"name": party.name, "claim": claim.kind, "step": step, "earlier": earlier}
    return json.dumps({**fields, **amounts}, sort_keys=True).encode()
