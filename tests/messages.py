"""Flower messages made outside a run, from public classes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Error,
    Message,
    Metadata,
    RecordDict,
)
from numpy.typing import NDArray

from flower_ldp.mechanisms import SignDS
from flower_ldp.wire.proposal import PROPOSAL_KEY
from tests.proposals import signds_proposal

Arrays = Mapping[str, NDArray[Any]]


def record(arrays: Arrays) -> ArrayRecord:
    return ArrayRecord({name: Array(array) for name, array in arrays.items()})


def metadata(
    node: int = 7, *, kind: str = "train", message_id: str = "m-1", reply: bool = False
) -> Metadata:
    source, target = (node, 1) if reply else (1, node)
    return Metadata(
        run_id=3,
        message_id=message_id,
        src_node_id=source,
        dst_node_id=target,
        reply_to_message_id="m-0" if reply else "",
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
