"""The encoders in JavaScript draw reports with the probabilities that the package's laws state."""

from __future__ import annotations

import itertools
import json
import math
import shutil
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flower_ldp.mechanisms.laplace import Laplace
from flower_ldp.mechanisms.magrr import MagRR
from flower_ldp.mechanisms.signds import Selection, SignDS
from flower_ldp.mechanisms.signds_round import decode_report
from flower_ldp.wire.evaluation import EvalProposal, decode_eval_report
from tests.statistical.follows import assert_follows

NODE = shutil.which("node")
DRAWS = 20_000
UPDATE = [3.0, 1.0, 2.0, -1.0, 0.0, 0.0]
ROW = [0.25, 0.25, 0.5]
SELECTION = SignDS(1.0, 0.25, 0.6, 2)
BIT = MagRR(2.0)
NOISE = Laplace(4.0, 3, 1, 1)


@pytest.fixture(scope="module")
def drawn() -> dict[str, dict[str, int]]:
    if NODE is None:
        pytest.skip("Node is not installed: the encoders in JavaScript")
    one = {"int": "1"}
    signds = {"version": one, "mechanism": "signds", "epsilon": 1, "k": 0.25}
    signds |= {"threshold-ratio": 0.6, "dim-out": {"int": "2"}}
    signds |= {"magnitude-epsilon": 2, "magnitude-threshold": 2.5}
    laplace = {"version": one, "mechanism": "laplace", "epsilon": 4, "rows": one}
    laplace |= {"classes": {"int": "3"}, "grid-bits": one}
    asked = {"draws": DRAWS, "signds": signds, "laplace": laplace, "update": UPDATE, "row": ROW}
    script = str(Path(__file__).with_name("javascript_draws.mjs"))
    command = [NODE, script, json.dumps(asked)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    found: dict[str, dict[str, int]] = json.loads(done.stdout)
    return found


def check_counts(counts: dict[Any, int], law: dict[Any, float]) -> None:
    """Check counts against a law; outcomes that it leaves out are one together."""
    outcomes = [counts.get(outcome, 0) for outcome in law]
    rest = max(0.0, 1 - math.fsum(law.values()))
    assert_follows([*outcomes, DRAWS - sum(outcomes)], [*law.values(), rest])


@pytest.mark.parametrize("name", ["selections", "neutral"])
def test_selections_and_magnitude_bits(name: str, drawn: dict[str, dict[str, int]]) -> None:
    update = np.array(UPDATE, dtype=np.float32) if name == "selections" else None
    # K = 1: the mean is the largest entry, 3 or 1 by sign, of which 1 is below 2.5.
    below = {1: False, -1: True}

    def law(payload: str) -> float:
        data = bytes.fromhex(payload)
        indices, sign, bit = decode_report(data, dimension=6, dim_out=2, has_bit=True)
        assert bit is not None
        known = SELECTION.log_prob(Selection(indices, sign), update, 6)
        return math.exp(known + BIT.log_prob(bit, None if update is None else below[sign]))

    assert len(drawn[name]) == 2 * math.comb(6, 2) * 2
    check_counts(drawn[name], {payload: law(payload) for payload in drawn[name]})


@pytest.mark.parametrize("name", ["rows", "centres"])
def test_rows(name: str, drawn: dict[str, dict[str, int]]) -> None:
    proposal = EvalProposal(NOISE, {})
    row = np.array([ROW]) if name == "rows" else None
    counts: Counter[tuple[int, ...]] = Counter()
    for payload, count in drawn[name].items():
        entries, _ = decode_eval_report(bytes.fromhex(payload), proposal)
        counts[tuple(entries[0].tolist())] += count
    cells = itertools.product(range(-5, 8), repeat=3)
    check_counts(counts, {cell: math.exp(NOISE.log_prob(np.array([cell]), row)) for cell in cells})
