"""Apps and authorizers around the gate."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Context, Message, RecordDict

from flower_ldp.accounting.ledger import Ledger
from flower_ldp.clients import ReleaseRequest
from flower_ldp.privacy import Unit
from flower_ldp.wire.proposal import PROPOSAL_KEY
from tests.fixtures import Arrays, UnrecordedPermit, record

App = Callable[[Message, Context], Message]


def raising(error: BaseException) -> App:
    def app(_: Message, __: Context) -> Message:
        raise error

    return app


def replying(content: RecordDict) -> App:
    return lambda sent, _: Message(content, reply_to=sent)


def training(arrays: Arrays) -> App:
    """Return an app that replies with these arrays."""
    return replying(RecordDict({"arrays": record(arrays)}))


def asking(fields: Mapping[str, Any], arrays: Arrays) -> RecordDict:
    """Return a message's content: a proposal and a model."""
    return RecordDict({"arrays": record(arrays), PROPOSAL_KEY: ConfigRecord({**fields})})


class Watching:
    """An authorizer that remembers what it was asked, and admits everything or nothing."""

    def __init__(self, refusal: BaseException | None = None, **permit: Any) -> None:
        self.requests: list[ReleaseRequest] = []
        self.acknowledged: list[str] = []
        self.refusal, self.permit = refusal, UnrecordedPermit(**permit)

    def authorize(self, request: ReleaseRequest, context: Context) -> Any:
        self.requests.append(request)
        if self.refusal is not None:
            raise self.refusal
        return self.permit

    def acknowledge(self, message_type: str, context: Context) -> Any:
        self.acknowledged.append(message_type)
        return self.permit


def spent(folder: Path, unit: Unit = Unit.CLIENT, account: str = "ward-7") -> float:
    """Return what an account has spent, in a ledger that is whole."""
    with Ledger.open(folder / "ledger.sqlite") as ledger:
        ledger.verify()
        found = ledger.totals(account).get(unit)
        return 0.0 if found is None else float(found.epsilon_text)
