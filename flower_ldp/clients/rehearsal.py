"""Rehearsals: the app's work on public sample data, before a run's first charge (docs/failures.md).

The server gets ``REFUSED_REHEARSAL`` **with the error's text**. Flower gives a rehearsal no private
data: no node configuration but :data:`MARK`, no state, node id 0, a copy of the message. An app can
still read private data by a path that it knows. A guarded node runs none.
"""

import copy
import logging
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from flwr.app import ConfigRecord, Context, Message, RecordDict

from flower_ldp.clients.diagnostics import cause_of
from flower_ldp.clients.release import NoAnswerError, OpenRelease, content_of, for_app
from flower_ldp.errors import RefusalError, one_line
from flower_ldp.refusals import REFUSED_REHEARSAL

_log = logging.getLogger("flower_ldp")

#: Key of the rehearsal's node configuration; its value is True.
MARK = "ldp-rehearsal"
_STATE_KEY = "ldp.rehearsal"
_MOST_TEXT = 500
_MOST_REMEMBERED = 256

#: An app's handler: what ``@app.train()`` decorates.
Handler: TypeAlias = Callable[[Message, Context], Message]


@dataclass(frozen=True)
class Rehearsal:
    """The app's work on public sample data, by type of message.

    Parameters
    ----------
    train, evaluate, query : callable, optional
        Like the app's handler of this type, with the same work on a few rows that belong to nobody;
        TypeError if it is not callable. ``context.run_config`` is the run's. A type without one is
        not rehearsed.

    Examples
    --------
    >>> from flower_ldp.clients import LdpMod, SignDSRelease
    >>> def train_on(message, context, images): ...
    >>> def train_on_sample(message, context):
    ...     return train_on(message, context, images=[[0.0, 1.0]])
    >>> mod = LdpMod(train=SignDSRelease(), rehearsal=Rehearsal(train=train_on_sample))
    """

    train: Handler | None = None
    evaluate: Handler | None = None
    query: Handler | None = None

    def __post_init__(self) -> None:
        for name, handler in vars(self).items():
            if handler is not None and not callable(handler):
                raise TypeError(f"{name} of a rehearsal must be a function, got {handler!r:.100}")

    def run(self, opened: OpenRelease, message: Message, context: Context) -> None:
        """Rehearse, unless this run was rehearsed before; ``opened`` judges the reply.

        Raises
        ------
        RefusalError
            :data:`~flower_ldp.refusals.REFUSED_REHEARSAL` with the error's text, if the app fails
            or its reply could not be privatized.
        """
        kind, run_id = message.metadata.message_type, message.metadata.run_id
        handler: Handler | None = vars(self).get(kind)  # the fields are types of messages
        record = context.state.get(_STATE_KEY)
        marks = dict(record) if isinstance(record, ConfigRecord) else {}
        if handler is None or marks.get(kind) == str(run_id):
            return
        key = (run_id, kind)  # an app is loaded anew for each message, so not by its functions
        if key not in _held:
            _held[key] = _failure(handler, opened, message, context)
            if len(_held) > _MOST_REMEMBERED:
                _held.popitem(last=False)
        if (failure := _held[key]) is not None:
            raise RefusalError(f"{REFUSED_REHEARSAL}: {failure}", "the app failed its rehearsal")
        context.state[_STATE_KEY] = ConfigRecord({**marks, kind: str(run_id)})


#: What came of rehearsals in this process: None, or why they failed.
_held: OrderedDict[tuple[int, str], str | None] = OrderedDict()


def _failure(
    handler: Handler, opened: OpenRelease, message: Message, context: Context
) -> str | None:
    try:
        given = for_app(copy.deepcopy(message), released=True)
        # A context that leads to no data of the client's.
        stage = Context(context.run_id, 0, {MARK: True}, RecordDict(), dict(context.run_config))
        content, judge = opened.rehearsed(lambda: content_of(handler(given, stage)))
        with np.errstate(all="ignore"):
            text = judge.complaint(content)
    except KeyboardInterrupt:
        raise
    except NoAnswerError as error:
        text = str(error)
    except BaseException as error:
        _log.warning("the app failed its rehearsal on public sample data: %s", cause_of(error))
        said = "without a text"
        with suppress(BaseException):  # an app may raise what fails when asked what it says
            said = str(error)
        text = f"{type(error).__name__}: {said}"
    return None if text is None else one_line(text, _MOST_TEXT)
