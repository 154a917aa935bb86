"""Which files of the package a round of codewords runs through.

    python benchmarks/round_files.py

Two clients answer one round in this process. A profiler notes every function of the package that
is called from the strategy's start to its end. Not counted are the simulation that carries the
messages, policy, accounting and ledger, and modules at the top of the package.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any
from unittest import mock

import numpy as np
from _in_process import trained
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import Result

import flower_ldp
from flower_ldp.clients import CodewordRelease, LdpMod
from flower_ldp.mechanisms import Codeword
from flower_ldp.strategies import CodewordStrategy

PACKAGE = Path(flower_ldp.__file__).parent
LEFT_OUT = ("simulation", "policy", "accounting")
POLICY = """
data_id: rows
ledger: ledger.sqlite
mode: simulation
messages: {train: {codeword: {epsilon: 8.0}}}
budgets: {client: {life: {epsilon: 8.0}}}
"""


def train(message: Message, _: Context) -> Message:
    """Return a model that is one more in each weight."""
    (arrays,) = message.content.array_records.values()
    more = {name: Array(array.numpy() + 1.0) for name, array in arrays.items()}
    return Message(RecordDict({"arrays": ArrayRecord(more)}), reply_to=message)


def files() -> list[str]:
    """Return the files whose functions run, by their path in the package."""
    seen: set[str] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_name != "<module>":
            seen.add(frame.f_code.co_filename)

    client = ClientApp(mods=[LdpMod(train=CodewordRelease())])
    client.train()(train)
    strategy = CodewordStrategy(Codeword(epsilon=8.0), answers_per_client=1)
    start = strategy.start

    def noted(*arguments: Any, **how: Any) -> Result:
        threading.setprofile(note)
        sys.setprofile(note)
        try:
            return start(*arguments, **how)
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    with mock.patch.object(strategy, "start", noted):
        model = ArrayRecord({"weight": Array(np.zeros((10, 20), np.float32))})
        trained(strategy, client, model, 1, 2, policy=POLICY)
    paths = [Path(one) for one in seen if one.startswith(f"{PACKAGE}{os.sep}")]
    inside = [one.relative_to(PACKAGE) for one in paths]
    return sorted(str(one) for one in inside if len(one.parts) > 1 and one.parts[0] not in LEFT_OUT)


if __name__ == "__main__":
    found = files()
    print("\n".join(found))
    print(f"{len(found)} files")
