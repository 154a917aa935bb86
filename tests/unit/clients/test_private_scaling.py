"""Means and quantiles of columns: paid for once, kept, and private for an example."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context

from flower_ldp.accounting.ledger import Ledger
from flower_ldp.clients import private_means, private_quantiles
from flower_ldp.clients.scaling import _part
from flower_ldp.errors import RefusalError
from flower_ldp.mechanisms import ExampleCounts, ExampleMean
from flower_ldp.privacy import as_fraction
from tests.fixtures import context, make_site

POLICY = """
data_id: ward
ledger: ledger.sqlite
mode: deployment
example: {example}
examples: 4
messages:
  train:
    example_mean: {{epsilon: 1.0, unit: example}}
    example_counts: {{epsilon: 1.0, unit: example}}
budgets:
  example:
    life: {{epsilon: 2.0}}
"""
ROWS: list[Any] = [[1.0, 40.0], [2.0, 60.0], [3.0, 80.0], [2.0, 20.0]]
BOUNDS: dict[str, Any] = {"lower": [0.0, 0.0], "upper": [4.0, 100.0], "epsilon": 1.0}


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ExampleMean, "noised", lambda self, total, rng: total)
    monkeypatch.setattr(ExampleCounts, "randomize", lambda self, rows, rng: self.total(rows))


def owner(folder: Path, example: str = "row") -> Context:
    text = POLICY.format(example=example)
    if (folder / "ledger.sqlite").exists():
        return replace(context(), node_config={"ldp-policy": str(folder / "policy.yaml")})
    return make_site(folder, text)


def costs(folder: Path) -> list[str]:
    with Ledger.open(folder / "ledger.sqlite", read_only=True) as ledger:
        ledger.verify()
        return [str(event.cost) for entry in ledger.entries() for event in entry.events]


class Rows:
    """Gives each row in the same array, fails for some, or for their number."""

    def __init__(self, failing: int = -1, error: BaseException | None = None) -> None:
        self.buffer, self.failing, self.error = np.zeros(2), failing, error

    def __len__(self) -> int:
        if self.error is not None:
            raise self.error
        return len(ROWS)

    def __getitem__(self, index: int) -> Any:
        if index == self.failing:
            raise OSError("no such scan")
        self.buffer[:] = ROWS[index]
        return self.buffer


LOST = Rows(error=OSError("no such table"))


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize(
    ("rows", "means"),
    [
        (ROWS, [2.0, 50.0]),
        (Rows(), [2.0, 50.0]),
        (Rows(failing=2), [1.25, 30.0]),  # a row that fails counts as the lower bounds
        ([[1.0, 40.0, 7.0], *ROWS[1:]], [1.75, 40.0]),
    ],
)
def test_means_are_those_of_the_columns(tmp_path: Path, rows: Any, means: list[float]) -> None:
    assert private_means(owner(tmp_path), rows, **BOUNDS) == pytest.approx(means, abs=0.1)


@pytest.mark.usefixtures("silent")
def test_means_are_over_the_number_of_examples_that_the_owner_gives_them(tmp_path: Path) -> None:
    given, policy = owner(tmp_path), tmp_path / "policy.yaml"
    allowed = "example_mean: {epsilon: 1.0, unit: example"
    policy.write_text(policy.read_text().replace(allowed, allowed + ", examples: 2"))
    assert private_means(given, ROWS[:2], **BOUNDS) == pytest.approx([1.5, 50.0], abs=0.1)


@pytest.mark.usefixtures("silent")
def test_a_patient_counts_once(tmp_path: Path) -> None:
    groups = ["ann", "ann", "ben", None]
    given = owner(tmp_path, "patient")
    found = private_means(given, ROWS, **BOUNDS, groups=groups)
    assert found == pytest.approx([(1.5 + 3) / 4, (50 + 80) / 4], abs=0.1)
    edges = [[0.0, 1.75, 2.5, 4.0], [0.0, 30.0, 70.0, 100.0]]
    shares = private_quantiles(
        given, ROWS, edges=edges, shares=(0.5, 0.9), epsilon=1.0, groups=groups
    )
    assert shares.tolist() == [[2.5, 70.0], [4.0, 100.0]]


@pytest.mark.parametrize("groups", [None, "abca"])
def test_numbers_are_paid_for_once_and_the_same_ever_after(
    tmp_path: Path, groups: str | None
) -> None:
    given = {**BOUNDS, "groups": groups}
    site = owner(tmp_path, "patient" if groups else "row")
    first = private_means(site, ROWS, **given)
    again = replace(site, run_id=99)
    assert private_means(again, [[0.0, 0.0]] * 4, **given).tolist() == first.tolist()
    assert costs(tmp_path) == ["epsilon 1"]
    refused("repeat", private_means, again, ROWS, **{**given, "upper": [5.0, 100.0]})
    refused("policy", private_means, again, ROWS, **{**given, "epsilon": 1.5}, name="other")
    assert private_means(again, ROWS, **given, name="other").tolist() != first.tolist()
    refused("budget", private_means, again, ROWS, **given, name="third")


def refused(code: str, draw: Callable[..., Any], *given: Any, **named: Any) -> None:
    with pytest.raises(RefusalError) as caught:
        draw(*given, **named)
    assert caught.value.code == f"ldp:refused:{code}"


@pytest.mark.parametrize("epsilon", [0.001, 0.1, 0.15, 0.3, 1 / 3, 0.7, 1.0, 1.1, 3.3, 8.0, 30.0])
def test_the_columns_parts_add_up_to_no_more_than_what_is_charged(epsilon: float) -> None:
    for columns in range(1, 301):
        part = _part(epsilon, columns)
        assert columns * ExampleMean(part, 4).noise.rate * (1 << 10) <= as_fraction(epsilon)
        assert columns * ExampleCounts(part, (0.0, 1.0)).noise.rate * 128 <= as_fraction(epsilon)
        assert math.fsum([part] * columns) <= epsilon
        assert np.cumsum([part] * columns)[-1] <= epsilon
        assert part * columns == pytest.approx(epsilon, rel=1e-13)


def quantiles(given: Context, rows: Any, name: str = "quantiles") -> Any:
    edges = [[0.0, 2.0, 4.0], [0.0, 50.0, 100.0]]
    return private_quantiles(given, rows, edges=edges, shares=(0.5,), epsilon=0.5, name=name)


def test_a_failure_of_the_whole_ends_the_scaling_of_its_run(tmp_path: Path) -> None:
    given = owner(tmp_path)
    kept = quantiles(given, ROWS)
    with pytest.raises(OSError, match="no such table"):
        quantiles(given, LOST, "second")
    charged = costs(tmp_path)
    assert charged == ["epsilon 0.5"] * 2
    refused("budget", quantiles, given, ROWS, "third")
    refused("budget", private_means, given, ROWS, **BOUNDS, name="third")
    assert quantiles(given, LOST).tolist() == kept.tolist()  # drawn before: at no charge
    other = replace(given, run_id=99)
    for run in (given, other):
        refused("repeat", quantiles, run, ROWS, "second")
    assert costs(tmp_path) == charged
    assert quantiles(other, ROWS, "third").shape == (1, 2)


@pytest.mark.parametrize("error", [MemoryError, SystemExit, RuntimeError])
def test_groups_that_raise_are_a_failure_of_the_whole(
    tmp_path: Path, error: type[BaseException]
) -> None:
    class Groups:
        def __iter__(self) -> Any:
            raise error("no such table")

    given = owner(tmp_path, "patient")
    with pytest.raises(error):
        private_means(given, ROWS, **BOUNDS, groups=Groups())
    refused("budget", private_means, given, ROWS, **BOUNDS, groups="abcd", name="other")
    assert costs(tmp_path) == ["epsilon 1"]


def test_a_killed_process_uses_up_the_name_alone(tmp_path: Path) -> None:
    given = owner(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        private_means(given, Rows(error=KeyboardInterrupt()), **BOUNDS)
    refused("repeat", private_means, given, ROWS, **BOUNDS)
    assert private_means(given, ROWS, **BOUNDS, name="other").shape == (2,)


SHARES = {"draw": private_quantiles, "edges": [[0.0, 1.0]], "epsilon": 0.5}


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"lower": [0.0]}, "must"),
        ({"lower": [9.0, 0.0]}, "must"),
        ({"name": ""}, "must"),
        ({"groups": [1, 2, 3, 4]}, "given"),
        *(({"epsilon": epsilon}, "epsilon") for epsilon in (-0.1, 0.0, math.nan, math.inf, 1e7)),
        *(({**SHARES, "shares": shares}, "share") for shares in ((), (2.0,), (0.5, -0.1))),
    ],
)
def test_what_is_wrong_costs_nothing(tmp_path: Path, changes: dict[str, Any], text: str) -> None:
    given = changes if "shares" in changes else {"draw": private_means, **BOUNDS, **changes}
    draw = given["draw"]
    with pytest.raises(ValueError, match=text):
        draw(owner(tmp_path), ROWS, **{name: given[name] for name in given if name != "draw"})
    assert costs(tmp_path) == []


def test_the_noise_is_as_wide_as_the_mechanism_says(tmp_path: Path) -> None:
    """Forty columns of one value: their spread is that of the noise."""
    zeros = [[0.0] * 40] * 4
    bounds = {"lower": [-1.0] * 40, "upper": [1.0] * 40}
    found = private_means(owner(tmp_path), zeros, **bounds, epsilon=1.0)
    wanted = ExampleMean(1.0 / 40, 4, -1.0, 1.0).standard_deviation
    # The mean magnitude of 40 Laplace draws is within 5 of its deviations.
    assert np.abs(found).mean() == pytest.approx(wanted / 2**0.5, rel=5 / 40**0.5)
