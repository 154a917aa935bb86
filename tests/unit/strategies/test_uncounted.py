"""The spending report names messages that were sent without a proposal, and no others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flwr.serverapp.strategy import FedAvg

from flower_ldp.mechanisms import Codeword, Laplace
from flower_ldp.strategies import CodewordStrategy, ProtectedEvalStrategy
from tests.fixtures import record
from tests.unit.strategies.rounds import ask, ask_evaluation

pytestmark = pytest.mark.usefixtures("outside_a_run")
MODEL = {"w": np.zeros((4, 8), dtype=np.float32)}


def codewords(**options: Any) -> CodewordStrategy:
    return CodewordStrategy(Codeword(8.0), **options)


def evaluated(strategy: FedAvg) -> ProtectedEvalStrategy:
    return ProtectedEvalStrategy(strategy, Laplace(4.0, 3))


@pytest.mark.parametrize(
    ("strategy", "uncounted"),
    [
        (codewords(), ()),
        (codewords(fraction_evaluate=0.5), ("evaluate",)),
        # Flower asks the larger of the number and the fraction, unless the fraction is 0.
        (codewords(fraction_evaluate=1e-12, min_evaluate_nodes=3), ("evaluate",)),
        (evaluated(codewords()), ()),
        # The wrapper's evaluation takes the place of the raw one.
        (evaluated(codewords(fraction_evaluate=0.5)), ()),
        (evaluated(FedAvg()), ("train",)),
        (evaluated(FedAvg(fraction_train=0.0)), ()),
    ],
    ids=["codewords", "raw", "raw-by-number", "protected", "replaced", "fedavg", "none"],
)
def test_what_was_sent_without_a_proposal_is_named(
    strategy: Any, uncounted: tuple[str, ...]
) -> None:
    assert strategy.privacy_spent().uncounted == ()
    strategy.expect(1, record(MODEL))
    ask(strategy, MODEL)
    ask_evaluation(strategy, MODEL)
    report = strategy.privacy_spent()
    assert report.uncounted == uncounted
    assert str(report).count("NOT COUNTED") == len(uncounted)
    for kind in uncounted:
        assert f"replies to {kind} messages" in str(report)
