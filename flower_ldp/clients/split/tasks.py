"""What a feature party is asked to do: read in the open, done behind the gate.

Reading a message sees the message, the ids and the party's step: public facts, so a refusal says
nothing of the records. What is done then is the app's: nothing of how it went leaves. The step
that a message asks for is reached whether it went well or not, since it is public where the party
stands (:func:`step_asked`).

Embeddings are about single records, so the bottom is asked for each record by itself: in a block, a
kernel's last bits for one record depend on where it stands among the others.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, RecordDict
from numpy.typing import NDArray

from flower_ldp.clients.arrays import open_array
from flower_ldp.clients.calling import cause_of
from flower_ldp.clients.release import IncompleteError
from flower_ldp.clients.split.block import Block, check_table, read_block, read_record
from flower_ldp.clients.split.embedding import EMBEDDING_KEY, Party
from flower_ldp.errors import RefusalError, ReleaseError, WireError
from flower_ldp.mechanisms.randomized_response import KaryResponse, check_labels
from flower_ldp.own_log import say
from flower_ldp.privacy import Unit
from flower_ldp.refusals import REFUSED_STEP
from flower_ldp.wire.embedding import (
    BACKWARD,
    CHANNEL_KEY,
    GRADIENT_KEY,
    LABELS_KEY,
    PREPARE,
    REWIND,
    STEP_KEY,
    TableTerms,
)
from flower_ldp.wire.fields import PROPOSAL_KEY

_log = logging.getLogger("flower_ldp")

#: Done behind the gate; returns the reply's records.
Task = Callable[[], RecordDict]


def read_task(party: Party, kind: str, content: RecordDict) -> Task:
    """Return what the bottom is to take in.

    Parameters
    ----------
    party : Party
        Who is asked.
    kind : {"train.backward", "train.prepare", "train.rewind"}
        Type of the message.
    content : RecordDict
        The message's.

    Raises
    ------
    WireError, ValueError
        If the message is malformed.
    RefusalError
        If it is about other records, or a step that the party does not have.
    """
    return {BACKWARD: _learn, PREPARE: _prepare, REWIND: _rewind}[kind](party, content)


def step_asked(kind: str, content: RecordDict) -> str | None:
    """Return the step that a well-formed message takes the party to; None if it stays."""
    field = {BACKWARD: "step", REWIND: "after"}.get(kind)
    return None if field is None else _step(content, field)


def reach(party: Party, step: str) -> None:
    """Have the party stand at the step although its app failed; where it cannot, the log says so.

    What is written has the same length whatever the records are, so that it does not depend on
    them whether it can be written.
    """
    try:
        if party.step != step:
            party.skip(step)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        text = "the party cannot go on to step %s: %s"
        say(_log, logging.ERROR, text, step, cause_of(error))


def _rewind(party: Party, content: RecordDict) -> Task:
    step = _step(content, "after")
    if step not in (party.step, *party.earlier()):
        raise RefusalError(REFUSED_STEP, f"this party has no bottom of step {step or 'none'!r}")
    return _done(partial(party.rewind, step))


def _prepare(party: Party, content: RecordDict) -> Task:
    terms = TableTerms.from_fields(read_record(content, PROPOSAL_KEY))
    check_table(party.tables, terms)
    channel = read_record(content, CHANNEL_KEY)
    epsilon, categories = channel.get("epsilon"), channel.get("categories")
    if type(epsilon) is not float or type(categories) is not int:
        raise WireError("fields", f"no channel of labels: {dict(channel)!r}")
    response = KaryResponse(epsilon, categories, "label", Unit.LABEL)
    sent = check_labels("labels", _array(content, LABELS_KEY), categories)
    if sent.shape != (terms.records,):
        raise WireError("length", f"{sent.shape} labels for {terms.records} records")
    own = np.empty_like(sent)
    own[party.tables.tables[terms.table].order] = sent
    return _done(partial(party.prepare, terms.table, own, response))


def _learn(party: Party, content: RecordDict) -> Task:
    step = _step(content, "step")
    if not step:
        raise WireError("fields", "the step must have a name")
    block = read_block(party.tables, content)
    gradient = _gradient(content, len(block.rows))
    return _done(partial(party.learn, block.table, block.rows, gradient, step))


def _done(act: Callable[[], None]) -> Task:
    def task() -> RecordDict:
        act()
        return RecordDict()

    return task


def embed(party: Party, block: Block) -> RecordDict:
    """Return the reply's records for a block, behind the gate.

    Raises
    ------
    IncompleteError
        If the bottom fails for a record; it holds what it did for the others.
    """
    width = block.proposal.mechanism.width
    found = np.full((len(block.rows), width), np.nan)
    failed, cause = 0, ""
    for place, row in enumerate(block.rows):
        try:
            found[place] = _alone(party, block.table, row, width)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            failed, cause = failed + 1, cause or cause_of(error)
    if failed:
        text = f"{failed} of {len(found)} records have no embedding; the first:\n{cause}"
        raise IncompleteError(text, _embeddings(found))
    return _embeddings(found)


def _alone(party: Party, table: str, row: np.int64, width: int) -> NDArray[Any]:
    found = np.asarray(party.embed(table, np.array([row])))
    if found.dtype.kind not in "biuf" or found.shape != (1, width):
        raise ReleaseError(
            f"expected an embedding of {width} numbers, found {found.dtype} {found.shape}"
        )
    return np.asarray(found[0])


def _embeddings(found: NDArray[Any]) -> RecordDict:
    return RecordDict({EMBEDDING_KEY: ArrayRecord({EMBEDDING_KEY: Array(found)})})


def _step(content: RecordDict, field: str) -> str:
    step = read_record(content, STEP_KEY).get(field)
    if not isinstance(step, str):
        raise WireError("fields", f"{field} must be the name of a step")
    return step


def _array(content: RecordDict, key: str) -> NDArray[Any]:
    record = content.array_records.get(key)
    if record is None or key not in record:
        raise WireError("record", f"the message has no array {key!r}")
    return open_array(record[key])


def _gradient(content: RecordDict, records: int) -> NDArray[np.float32]:
    gradient = _array(content, GRADIENT_KEY)
    if gradient.dtype != np.float32 or gradient.ndim != 2 or len(gradient) != records:
        raise WireError(
            "array",
            f"the gradient must be float32 with {records} rows, got {gradient.dtype} "
            f"{gradient.shape}",
        )
    if not np.isfinite(gradient).all():
        raise WireError("array", "the gradient must be finite")
    return np.asarray(gradient)
