"""Split training of two parties, for as long as it takes to learn."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch

from tests.long.test_split import CONDITIONAL, MORE, strategy
from tests.split_world import Side, local

pytestmark = pytest.mark.usefixtures("simulation_policy")


def test_two_parties_learn_what_neither_has_alone(tmp_path: Path) -> None:
    sides = {
        3: Side("right", tmp_path, CONDITIONAL, shuffle=5, **MORE),
        9: Side("left", tmp_path, CONDITIONAL, shuffle=8, **MORE),
    }
    torch.manual_seed(0)
    result = strategy(**MORE).start(local(sides), epochs=6, evaluate_every=3)
    assert [(p.name, p.node, p.claim) for p in result.parties] == [
        ("left", 9, CONDITIONAL),
        ("right", 3, CONDITIONAL),
    ]
    assert [row["epoch"] for row in result.history if "accuracy-test" in row] == [3, 6]
    # 0.85 of 60; rows that do not belong together give 0.1
    assert result.history[-1]["accuracy-test"] > 0.6
    assert result.history[-1]["loss"] < result.history[0]["loss"] / 3
