"""Parts of a shuffled round, each killed at each of its steps in a process of its own.

python shuffle_worker.py client FOLDER KEY    one in each folder, as FOLDER/sealed; prints
                                              what is sent then
python shuffle_worker.py server SETTINGS      one while it sends a batch, one behind it
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Context, Message, RecordDict

from flower_ldp.accounting.ledger import Ledger
from flower_ldp.clients import CodewordRelease, LdpMod
from flower_ldp.shuffle import Analyzer
from flower_ldp.shuffle.batch import Batch
from flower_ldp.shuffle.sealing import KEY_FIELD, RoundKey
from flower_ldp.wire.proposal import PROPOSAL_KEY, UpdateProposal
from tests.fixtures import context_of, message, payload, record
from tests.unit.shuffle.batches import ENTRIES, MECHANISM

MODEL = {"w": np.zeros(ENTRIES, dtype=np.float32)}
TRAINED = {"w": np.arange(1.0, ENTRIES + 1.0, dtype=np.float32)}


#: Of a client, in turn.
CLIENTS = ("trained", "drawn", "sealed", "answered")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def in_a_process(work: Callable[[], object]) -> bool:
    """Return whether a process of its own was killed at its work."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(pid, 0)[1])


def server(settings: Path, step: str) -> None:
    told = json.loads(settings.read_text())
    batch = Batch.from_bytes(Path(told.pop("batch")).read_bytes())
    send = http.client.HTTPConnection.send

    def half(self: http.client.HTTPConnection, data: Any) -> None:
        if len(data) < len(batch.sealed[0]):
            send(self, data)
        else:
            send(self, data[: len(data) // 2])
            die()

    if step == "half":
        http.client.HTTPConnection.send = half  # type: ignore[method-assign]
    http.client.HTTPConnection.getresponse = lambda _: die()  # type: ignore[assignment,method-assign,return-value]
    Analyzer(**told).sums(batch)


def client(folder: Path, key: RoundKey, step: str) -> None:
    """Answer a message; what leaves goes to the file ``sent``."""
    fields = {**UpdateProposal(MECHANISM).to_fields(), KEY_FIELD: key.to_bytes().hex()}
    content = RecordDict({"arrays": record(MODEL), PROPOSAL_KEY: ConfigRecord(fields)})
    asked = message(content, message_id="asked")
    seal = Ledger.seal

    def train(sent: Message, _: Context) -> Message:
        if step == "trained":
            die()
        return Message(RecordDict({"arrays": record(TRAINED)}), reply_to=sent)

    def sealing(self: Ledger, receipt: Any, report: bytes, **more: Any) -> None:
        (folder / "drawn").write_text(report.hex())
        if step == "drawn":
            die()
        seal(self, receipt, report, **more)
        if step == "sealed":
            die()

    Ledger.seal = sealing  # type: ignore[method-assign]
    answer = LdpMod(train=CodewordRelease())(asked, context_of(folder), train)
    if step == "answered":
        die()
    told = answer.error.reason if answer.has_error() else payload(answer).hex()
    (folder / "sent").write_text(told)


def main(part: str, place: Path, *rest: str) -> None:
    if part == "server":
        for step in ("half", "sent"):
            assert in_a_process(partial(server, place, step)), step
    else:
        key, told = RoundKey.from_bytes(bytes.fromhex(rest[0])), {}
        for step in CLIENTS:
            folder, sent = place / step, []
            assert in_a_process(partial(client, folder, key, step)), step
            drawn = folder / "drawn"
            first = drawn.read_text() if drawn.exists() else None
            for _ in range(2):
                assert not in_a_process(partial(client, folder, key, ""))
                sent.append((folder / "sent").read_text())
            told[step] = [first, sent]
        print(json.dumps(told))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:])
