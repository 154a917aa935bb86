"""What many tests need: messages outside a run, proposals, policies, ledgers and a site."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, Metadata, RecordDict
from numpy.typing import NDArray

from flower_ldp.accounting import Charge, Ledger, Limit
from flower_ldp.config import LabelDPConfig, SplitConfig, TrainConfig
from flower_ldp.config.encrypt import FORMAT
from flower_ldp.config.labels import LABEL_FORMAT, SPLIT_FORMAT
from flower_ldp.errors import LedgerError, WireError
from flower_ldp.mechanisms import Codeword, Gaussian, SignDS
from flower_ldp.mechanisms.signds_round import SignDSRound
from flower_ldp.policy import Policy, files
from flower_ldp.privacy import PrivacyEvent, Unit
from flower_ldp.wire.proposal import PAYLOAD_KEY, PROPOSAL_KEY, REPORT_KEY, UpdateProposal

ROOT = Path(__file__).parents[1]
CONFIGS = ROOT / "configs"
Arrays = Mapping[str, NDArray[Any]]
LIFE = Limit(Unit.CLIENT, "life", 1.0)


def record(arrays: Arrays) -> ArrayRecord:
    return ArrayRecord({name: Array(array) for name, array in arrays.items()})


def metadata(
    node: int = 7,
    *,
    kind: str = "train",
    message_id: str = "m-1",
    reply: bool = False,
    to: str = "m-0",
) -> Metadata:
    source, target = (node, 1) if reply else (1, node)
    return Metadata(
        run_id=3,
        message_id=message_id,
        src_node_id=source,
        dst_node_id=target,
        reply_to_message_id=to if reply else "",
        group_id="1",
        created_at=time.time(),
        ttl=3600.0,
        message_type=kind,
    )


def message(content: RecordDict, **where: Any) -> Message:
    make = cast(Callable[..., Message], Message)
    return make(content=content, metadata=metadata(**where))


def error_reply(reason: str, node: int = 7) -> Message:
    make = cast(Callable[..., Message], Message)
    return make(error=Error(code=1, reason=reason), metadata=metadata(node, reply=True))


def proposal(
    arrays: Arrays, selection: SignDS, magnitude: tuple[float, float] | None = None
) -> RecordDict:
    fields = signds_proposal(selection, *(magnitude or (None, None))).to_fields()
    return RecordDict({"arrays": record(arrays), PROPOSAL_KEY: ConfigRecord({**fields})})


def context() -> Context:
    return Context(
        run_id=3,
        node_id=7,
        node_config={"partition-id": 0, "num-partitions": 1},
        state=RecordDict(),
        run_config={},
    )


def wait_for_counts() -> None:
    """Wait until what was late has been counted."""
    for thread in threading.enumerate():
        if isinstance(thread, threading.Timer):
            thread.join()


@dataclass
class UnrecordedPermit:
    """Leave to send a report, for tests in which nothing is charged or kept; its own timing."""

    stored: bytes | None = None
    is_simulation: bool = False
    answer_after: float | None = None
    failures: int = 0
    examples: None = None
    granted: None = None
    prepared: None = None

    @property
    def timing(self) -> UnrecordedPermit:
        return self

    def failed(self) -> None:
        """Count."""
        self.failures += 1

    def keep(self, report: bytes, last: bool) -> None:
        """Keep nothing."""

    def close(self) -> None:
        """Hold nothing."""


KNOWN = {kind.name: kind.of_parameters for kind in (SignDSRound, Codeword, Gaussian)}


def parsed(fields: Mapping[str, object]) -> UpdateProposal[Any]:
    """Return the proposal of any mechanism that fields state."""
    return UpdateProposal.from_fields(fields, KNOWN)


def signds_proposal(
    selection: SignDS,
    magnitude_epsilon: float | None = None,
    magnitude_threshold: float | None = None,
    health_epsilon: float | None = None,
) -> UpdateProposal[SignDSRound]:
    asked = SignDSRound(selection, magnitude_epsilon, magnitude_threshold)
    return UpdateProposal(asked, health_epsilon)


def parse_config(text: str, source: str = "<text>") -> TrainConfig:
    return FORMAT.parse(text, source=source)


def parse_label_config(text: str, source: str = "<text>") -> LabelDPConfig:
    return LABEL_FORMAT.parse(text, source=source).label_dp


def parse_split_config(text: str, source: str = "<text>") -> SplitConfig:
    return SPLIT_FORMAT.parse(text, source=source)


def parse_policy(text: str, source: str = "<text>") -> Policy:
    return files.FORMAT.parse(text, source=source)


def policy_text(
    messages: str, *, mode: str = "deployment", life: float = 100.0, budgets: str = ""
) -> str:
    """Return a policy file: kinds of messages and budgets as YAML on one line each."""
    return f"""
data_id: ward-7
ledger: ledger.sqlite
mode: {mode}
messages: {messages}
budgets: {{{budgets or f"client: {{life: {{epsilon: {life}}}}}"}}}
"""


def private_file(path: Path, text: str) -> Path:
    """Write a file that nobody but its owner can change, and return its path."""
    path.write_text(text, encoding="utf-8")
    path.chmod(0o600)
    return path


def new_ledger(path: Path) -> Path:
    """Make an empty ledger and return its path."""
    Ledger.open(path, create=True).close()
    return path


def make_site(folder: Path, policy: str) -> Context:
    """Write a policy and, if there is none, an empty ledger; return the context of their node."""
    (folder / "policy.yaml").write_text(policy)
    if not (folder / "ledger.sqlite").exists():
        new_ledger(folder / "ledger.sqlite")
    return context_of(folder)


def not_called(one: Message, _: Context) -> Message:
    """Be an app that must not be asked."""
    raise AssertionError("the app was called")


def payload(reply: Message) -> bytes:
    """Return the bytes of a report, in a reply that has nothing else."""
    assert list(reply.content) == [REPORT_KEY]
    found = reply.content.config_records[REPORT_KEY]
    assert list(found) == [PAYLOAD_KEY]
    report = found[PAYLOAD_KEY]
    assert isinstance(report, bytes)
    return report


def context_of(folder: Path) -> Context:
    """Return the context of a node whose policy lies in a folder."""
    return Context(3, 7, {"ldp-policy": str(folder / "policy.yaml")}, RecordDict(), {})


def accounts(folder: Path) -> tuple[int, int]:
    """Return how many entries a ledger has, and how many with a report; it is whole."""
    with Ledger.open(folder / "ledger.sqlite", read_only=True) as ledger:
        found = ledger.verify()
    return found.entries, found.sealed


def counted(folder: Path) -> dict[str, int]:
    """Return what was counted of ward-7 beside its charges, once all is there."""
    wait_for_counts()
    with Ledger.open(folder / "ledger.sqlite", read_only=True) as ledger:
        return {kind: number for kind, number in ledger.counts("ward-7").items() if number}


def charge(message: object = 0, epsilon: float = 0.1, **fields: object) -> Charge:
    given = {
        "data_id": "ward-7",
        "run_id": 2**64 - 1,
        "message_id": str(message),
        "message_type": "train",
        "fingerprint": b"request",
        "events": (PrivacyEvent("signds", epsilon),),
        **fields,
    }
    return Charge(**given)  # type: ignore[arg-type]


def reason_of(read: Callable[..., object], *arguments: Any, **named: Any) -> str:
    """Return the reason for which something is refused that is read."""
    with pytest.raises(WireError) as caught:
        read(*arguments, **named)
    return caught.value.reason


def cannot_open(path: Path, text: str, **how: Any) -> None:
    """Expect that a ledger is refused, for a reason that matches ``text``."""
    with pytest.raises(LedgerError, match=text):
        Ledger.open(path, **how)


def edit(path: Path, *statements: str) -> None:
    """Run statements of SQL on a database, as no ledger does."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        for statement in statements:
            db.execute(statement)


class Clock:
    """A clock that tests set."""

    def __init__(self) -> None:
        self.seconds = 1_700_000_000.0

    def __call__(self) -> int:
        return int(self.seconds * 10**9)
