"""A plan without a clip: every gradient counts as g / (|g| + 0.01)."""

from __future__ import annotations

import itertools
import json
import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("scipy")

import numpy as np
import torch
from torch import nn

from flower_ldp.accounting.ledger import Ledger
from flower_ldp.mechanisms import TrainingPlan
from flower_ldp.privacy import Unit
from flower_ldp.training.gradients import ClippedSum, StepSum
from flower_ldp.wire.proposal import canonical
from flower_ldp.wire.training_plan import plan_fields
from tests.unit.training.gated import (
    LIKE,
    MODEL,
    PLAN,
    ROWS,
    Site,
    expected,
    row_model,
    squares,
    weights,
    without_noise,
)

UNIT = 2.0**-40
AUTOMATIC = PLAN.replace(", clip: 1.0", "")


def added(gradient: torch.Tensor, clip: float | None = None, unit: float = UNIT) -> torch.Tensor:
    """Return what an example of this gradient adds, in units of the grid."""
    clipped = ClippedSum(len(gradient), clip, unit)
    clipped.add(gradient)
    return clipped.total


#: Values of entries: zeros of both signs, denormals, the ends of both types, and what is no number.
EXTREMES = [0.0, -0.0, 1e-320, -5e-324, 1e-160, 1e-45, -0.01, 1.0, 3e38, -3e38, 1e308, -1.7e308]
EXTREMES += [math.nan, math.inf, -math.inf]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_gradient_adds_more_than_a_length_of_one(dtype: torch.dtype) -> None:
    """By enumeration: the largest distance of two is that of replacing an example, 2 at most."""
    found = []
    for entries in itertools.product(EXTREMES, repeat=3):
        gradient = torch.tensor(entries, dtype=torch.float64).to(dtype)
        total = added(gradient).double() * UNIT
        found.append(total)
        assert float(total.norm()) <= 1.0 + 1e-9 + math.sqrt(3) * UNIT / 2
        if not gradient.isfinite().all():
            assert not total.any(), entries
    distinct = torch.stack(found).unique(dim=0)
    farthest = float(torch.cdist(distinct, distinct).max())
    assert farthest == pytest.approx(2.0, abs=1e-8)


@pytest.mark.parametrize("scale", [1e-320, 1e-200, 1e-9, 1e-3, 0.01, 1.0, 1e9, 1e150])
@pytest.mark.parametrize("size", [1, 2, 33_000])  # the last is more than a chunk
def test_what_is_added_is_the_rule_up_to_the_grid(scale: float, size: int) -> None:
    """In exact arithmetic, so that no rounding of the test's own hides one of the package's."""
    rng = torch.Generator().manual_seed(7)
    gradient = torch.randn(size, generator=rng, dtype=torch.float64) * scale
    exact = [Fraction(entry) for entry in gradient.tolist()]
    widest = max(entry.denominator for entry in exact)  # all are powers of two
    scaled = (one.numerator * (widest // one.denominator) for one in exact)
    squared = Fraction(sum(one**2 for one in scaled), widest**2)
    # The root of a fraction to 2^-200 of its size, from below.
    shift = 400 + max(0, squared.denominator.bit_length() - squared.numerator.bit_length())
    shift += shift % 2
    scaled = (squared.numerator << shift) // squared.denominator
    norm = Fraction(math.isqrt(scaled), 1 << shift // 2)
    factor = 1 / (norm + Fraction(0.01))
    total = added(gradient)
    for at in (0, size // 2, size - 1):
        wanted = exact[at] * factor / Fraction(UNIT)
        assert abs(int(total[at]) - wanted) <= 0.5 + abs(wanted) * Fraction(1e-9)


def test_the_margin_of_the_grid_covers_all_roundings() -> None:
    """With the longest gradients, and roundings of all entries away from zero."""
    size, unit = 70_000, 2.0**-30
    total = added(torch.full((size,), 3e38, dtype=torch.float32), unit=unit).double() * unit
    assert float(total.norm()) <= 1.0 + 1e-9 + math.sqrt(size) * unit / 2


def total_of(rows: list[Any], model: nn.Module, clip: float | None = None) -> torch.Tensor:
    asked = row_model(model, squares, rows, LIKE)
    at = {name: p.detach() for name, p in model.named_parameters()}
    asked.check(at)
    return StepSum(asked, clip, UNIT)(at, [[row] for row in range(len(rows))])


@pytest.mark.parametrize(
    "one",
    [
        *ROWS[:2],
        (torch.zeros(2), torch.zeros(1)),
        (torch.tensor([1e6, -1e6]), torch.tensor([9.0])),
        (torch.tensor([1e-40, 1e-40]), torch.tensor([1e-40])),
        (torch.tensor([3e38, 3e38]), torch.tensor([-3e38])),
        (torch.tensor([math.nan, 1.0]), torch.tensor([1.0])),
        (torch.tensor([math.inf, 1.0]), torch.tensor([1.0])),
        None,
    ],
)
def test_a_row_changes_no_bit_of_what_the_others_add(one: Any) -> None:
    model = nn.Linear(2, 1)
    alone, others, both = (total_of(rows, model) for rows in ([one], ROWS, [*ROWS, one]))
    assert both.equal(others + alone)


@pytest.mark.parametrize("example", ["row", "patient"])
def test_a_plan_without_a_clip_trains_by_the_rule(
    tmp_path: Path, example: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A patient's rows are added up first: the patient counts once."""
    without_noise(monkeypatch)
    groups = None if example == "row" else [0, 0, 0, 1, 1, 2, 2, 2]
    given = {} if groups is None else {"groups": groups, "max_rows": 3}
    site = Site(tmp_path, example=example, plan=AUTOMATIC, arguments=given)
    numbers = range(len(ROWS)) if groups is None else groups
    by = [[r for r, g in zip(ROWS, numbers, strict=True) if g == one] for one in set(numbers)]
    assert weights(site.ask()) == pytest.approx(expected(by, clip=None), rel=1e-5)
    assert weights(site.ask("m-2")) != pytest.approx(expected(by), rel=1e-4)


def test_the_noise_is_in_units_of_normalised_gradients(tmp_path: Path) -> None:
    """A model that learns nothing shows it: 1,000 weights, and a failure rate below 1e-6."""
    wide, like = (lambda: nn.Linear(1_000, 1)), (torch.zeros(1_000), torch.zeros(1))
    given = {"model": wide, "data": [like] * 8, "like": like}
    site = Site(tmp_path, plan=AUTOMATIC, arguments=given)
    sent = {"weight": np.zeros((1, 1_000), np.float32), "bias": MODEL["bias"]}
    reply = site.ask(arrays=sent)
    moved = reply.content.array_records["arrays"]["weight"].numpy() / 0.1
    plan = TrainingPlan(2, 3, 1.0, 2.1, 8.0, 1e-2)
    assert moved.std() == pytest.approx(plan.moved_by_noise(8), rel=0.12)
    assert plan.deviation(8) == 2.1 / 8 == TrainingPlan(2, 3, 1, 2.1, 8, 1e-2, clip=1).deviation(8)


# Old plans and new ones.


def test_a_plan_with_a_clip_keeps_its_words_on_the_ledger() -> None:
    plan = TrainingPlan(20, 5, 0.05, 3.74, 1.0, 1e-5, clip=1)
    numbers = '"delta":1e-05,"epsilon":1.0,"noise":3.74,"rate":0.05,"rounds":20,"steps":5}'
    assert canonical(plan.terms()) == '{"clip":1.0,' + numbers
    automatic = TrainingPlan(20, 5, 0.05, 3.74, 1.0, 1e-5)
    assert canonical(automatic.terms()) == "{" + numbers


@pytest.mark.parametrize(("own", "clip"), [(AUTOMATIC, 1.0), (PLAN, None), (PLAN, 2.0)])
def test_no_plan_is_taken_for_one_of_another_clipping(
    tmp_path: Path, own: str, clip: float | None
) -> None:
    site = Site(tmp_path, plan=own)
    asked = plan_fields(TrainingPlan(2, 3, 1.0, 2.1, 8.0, 1e-2, clip=clip))
    assert site.ask(config=asked).error.reason == "ldp:refused:policy"
    assert site.entries() == []


def test_an_owner_who_changes_the_clipping_pays_for_another_plan(tmp_path: Path) -> None:
    for number, plan in enumerate((PLAN, AUTOMATIC, PLAN)):
        assert not Site(tmp_path, plan=plan).ask(f"m-{number}").has_error()
    entries = Site(tmp_path).entries()
    plans = [json.loads(one.parameters) for one in entries if '"rounds"' in one.parameters]
    assert [one.get("clip") for one in plans] == [1.0, None]
    with Ledger.open(tmp_path / "ledger.sqlite", read_only=True) as ledger:
        assert ledger.totals("ward")[Unit.EXAMPLE].spent(Unit.EXAMPLE).epsilon == 16.0
