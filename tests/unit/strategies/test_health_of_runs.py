"""Health bits of one run say nothing of the next."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from flwr.serverapp.strategy import FedAvg

from flower_ldp.mechanisms import Codeword, Laplace
from flower_ldp.strategies import CodewordStrategy, Health, LaplaceEvalStrategy, RunStopped
from flower_ldp.strategies.replies import ReplyValidator
from tests.fixtures import record

MODEL = record({"w": np.zeros(200, dtype=np.float32)})


@pytest.mark.parametrize(
    "make",
    [
        lambda health: CodewordStrategy(Codeword(8.0), health=health),
        lambda health: LaplaceEvalStrategy(
            FedAvg(), Laplace(epsilon=5.0, rows=1, classes=2), health=health
        ),
    ],
)
def test_a_run_is_not_stopped_for_the_reports_of_another(make: Any) -> None:
    strategy = make(Health(100.0))
    watch = strategy._health
    strategy.expect(3, MODEL)
    current = SimpleNamespace(server_round=1)

    def round_of(bit: int) -> None:
        watch.before_ask(None)
        decode = watch.decoder(len)
        for _ in range(20):
            decode(b"report" + bytes([bit]))
        watch.after_replies(current, ReplyValidator([]))

    for _ in range(2):
        with pytest.raises(RunStopped, match="neutral"):
            round_of(1)
    strategy.expect(3, MODEL)
    for _ in range(3):
        round_of(0)
