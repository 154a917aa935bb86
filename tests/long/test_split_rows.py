"""Records with more than one label each, as windows of text have; losses of what is evaluated."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")

import numpy as np
import torch
from torch import nn

from flower_ldp.mechanisms import BottomModelClaim, CodebookEmbedding, UnaryEncoding
from flower_ldp.split import TorchTop
from flower_ldp.strategies import CodeTop, SplitStrategy
from tests.split_world import Everything, Side, labels, local, tables


def two_labels() -> dict[str, np.ndarray]:
    """The digit, and nine minus the digit."""
    return {
        name: np.stack([digits, 9 - digits], axis=1) for name, digits in labels(tables()).items()
    }


def strategy(rows: dict[str, np.ndarray]) -> SplitStrategy:
    torch.manual_seed(1)
    heads = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 20), nn.Unflatten(1, (10, 2)))
    top = TorchTop(heads, lambda parameters: torch.optim.Adam(parameters, 0.01))
    # a label of 100 flips one bit in 5e21, so that what was released can be computed again
    return SplitStrategy(top, UnaryEncoding(100.0, 32), tables(), rows, parties=1)


def test_a_row_of_labels_is_learned_and_evaluated_at_every_place(tmp_path: Path) -> None:
    rows, seen = two_labels(), []
    side = Side("left", tmp_path, BottomModelClaim("public"))
    own = strategy(rows)
    result = own.start(
        local({1: side}, Everything()),
        epochs=10,
        evaluate_every=10,
        on_step=lambda step, loss: seen.append((step, loss)),
    )
    last = result.history[-1]
    assert last["accuracy-test"] > 0.4  # a guess: 0.1
    assert [step for step, _ in seen] == list(range(1, 61))
    assert last["loss"] == pytest.approx(np.mean([loss for _, loss in seen[-6:]]))
    # all 30 records at once; the strategy had blocks of 25 and 5
    party = side(None)  # type: ignore[arg-type]
    bits = (party.embed("test", np.arange(30)) > 0).astype(np.float32)
    scores = torch.log_softmax(own.top.module(torch.from_numpy(bits)), 1)  # type: ignore[attr-defined]
    told = torch.from_numpy(rows["test"])
    wanted = -scores.gather(1, told[:, None, :]).mean().item()
    assert last["loss-test"] == pytest.approx(wanted, rel=1e-5)
    right = (scores.argmax(1) == told).double().mean().item()
    assert last["accuracy-test"] == pytest.approx(right)


def test_codes_that_say_nothing_cost_what_a_guess_does(tmp_path: Path) -> None:
    # all digits: of a tenth the loss has a deviation of 0.09 in place of 0.015, about 2.34
    every: dict[str, int] = {"block": 250, "one_in": 1}
    own, side = tables(**every), Side("left", tmp_path, BottomModelClaim("public"), 10, **every)
    mechanism = CodebookEmbedding(1e-9, 10)
    found = SplitStrategy(CodeTop(10), mechanism, own, labels(own), parties=1).start(
        local({1: side}, Everything()), epochs=1
    )
    assert found.history[-1]["loss-test"] == pytest.approx(math.log(10), abs=0.15)


@pytest.mark.parametrize(
    "wrong",
    [np.zeros((149, 2), dtype=int), np.zeros((150, 0), dtype=int), np.zeros((150, 2))],
)
def test_rows_that_are_not_one_for_each_record_are_an_error(wrong: np.ndarray) -> None:
    with pytest.raises(ValueError, match="labels of 'train' must be"):
        strategy({**two_labels(), "train": wrong})
