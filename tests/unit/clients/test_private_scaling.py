"""Means and quantiles of columns: paid for once, kept, and private for an example."""

from __future__ import annotations

import math
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
from tests.fixtures import context

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
    (folder / "policy.yaml").write_text(POLICY.format(example=example))
    if not (folder / "ledger.sqlite").exists():
        Ledger.open(folder / "ledger.sqlite", create=True).close()
    found = context()
    found.node_config["ldp-policy"] = str(folder / "policy.yaml")
    return found


def costs(folder: Path) -> list[str]:
    with Ledger.open(folder / "ledger.sqlite", read_only=True) as ledger:
        ledger.verify()
        return [str(event.cost) for entry in ledger.entries() for event in entry.events]


@pytest.mark.usefixtures("silent")
def test_means_are_those_of_the_columns(tmp_path: Path) -> None:
    found = private_means(owner(tmp_path), ROWS, **BOUNDS)
    assert found == pytest.approx([2.0, 50.0], abs=0.1)


class OneBuffer:
    """Gives each row in the same array."""

    def __init__(self) -> None:
        self.buffer = np.zeros(2)

    def __len__(self) -> int:
        return len(ROWS)

    def __getitem__(self, index: int) -> Any:
        self.buffer[:] = ROWS[index]
        return self.buffer


@pytest.mark.usefixtures("silent")
def test_rows_that_come_in_one_buffer_are_rows_of_their_own(tmp_path: Path) -> None:
    found = private_means(owner(tmp_path), OneBuffer(), **BOUNDS)
    assert found == pytest.approx([2.0, 50.0], abs=0.1)


@pytest.mark.usefixtures("silent")
def test_means_are_over_the_number_of_examples_that_the_owner_gives_them(tmp_path: Path) -> None:
    given = owner(tmp_path)
    policy = tmp_path / "policy.yaml"
    own = "example_mean: {epsilon: 1.0, unit: example, examples: 2}"
    text = policy.read_text().replace("example_mean: {epsilon: 1.0, unit: example}", own)
    policy.write_text(text)
    assert private_means(given, ROWS[:2], **BOUNDS) == pytest.approx([1.5, 50.0], abs=0.1)


@pytest.mark.usefixtures("silent")
def test_a_row_that_fails_counts_as_the_lower_bounds(tmp_path: Path) -> None:
    class Rows:
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> Any:
            if index == 2:
                raise OSError("no such scan")
            return ROWS[index] if index else [1.0, 40.0, 7.0]

    found = private_means(owner(tmp_path), Rows(), **BOUNDS)
    assert found == pytest.approx([1.0, 20.0], abs=0.1)


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


def test_the_first_numbers_of_patients_are_the_same_ever_after(tmp_path: Path) -> None:
    given = owner(tmp_path, "patient")
    first = private_means(given, ROWS, **BOUNDS, groups="abca")
    assert private_means(given, ROWS, **BOUNDS, groups="abca").tolist() == first.tolist()
    assert costs(tmp_path) == ["epsilon 1"]


def test_numbers_are_paid_for_once_and_the_same_ever_after(tmp_path: Path) -> None:
    first = private_means(owner(tmp_path), ROWS, **BOUNDS)
    again = owner(tmp_path)
    again.run_id = 99
    assert private_means(again, [[0.0, 0.0]] * 4, **BOUNDS).tolist() == first.tolist()
    assert costs(tmp_path) == ["epsilon 1"]
    assert private_means(again, ROWS, **BOUNDS, name="other").tolist() != first.tolist()
    with pytest.raises(RefusalError) as caught:
        private_means(again, ROWS, **BOUNDS, name="third")
    assert caught.value.code == "ldp:refused:budget"


@pytest.mark.parametrize("epsilon", [0.001, 0.1, 0.15, 0.3, 1 / 3, 0.7, 1.0, 1.1, 3.3, 8.0, 30.0])
def test_the_columns_parts_add_up_to_no_more_than_what_is_charged(epsilon: float) -> None:
    for columns in range(1, 301):
        part = _part(epsilon, columns)
        assert columns * ExampleMean(part, 4).noise.rate * (1 << 10) <= as_fraction(epsilon)
        assert columns * ExampleCounts(part, (0.0, 1.0)).noise.rate * 128 <= as_fraction(epsilon)
        assert math.fsum([part] * columns) <= epsilon
        assert np.cumsum([part] * columns)[-1] <= epsilon
        assert part * columns == pytest.approx(epsilon, rel=1e-13)


@pytest.mark.parametrize("epsilon", [-0.1, 0.0, math.nan, math.inf, 1e7])
def test_an_epsilon_outside_its_interval_charges_nothing(tmp_path: Path, epsilon: float) -> None:
    with pytest.raises(ValueError, match="epsilon"):
        private_means(owner(tmp_path), ROWS, **{**BOUNDS, "epsilon": epsilon})
    assert costs(tmp_path) == []


class Lost:
    """Rows of which not even their number can be read."""

    def __len__(self) -> int:
        raise OSError("no such table")

    def __getitem__(self, index: int) -> Any:
        raise OSError("no such table")


def quantiles(given: Context, rows: Any, name: str = "quantiles") -> Any:
    edges = [[0.0, 2.0, 4.0], [0.0, 50.0, 100.0]]
    return private_quantiles(given, rows, edges=edges, shares=(0.5,), epsilon=0.5, name=name)


def test_a_failure_of_the_whole_ends_the_scaling_of_its_run(tmp_path: Path) -> None:
    given = owner(tmp_path)
    kept = quantiles(given, ROWS)
    with pytest.raises(OSError, match="no such table"):
        quantiles(given, Lost(), "second")
    charged = costs(tmp_path)
    assert charged == ["epsilon 0.5"] * 2
    for draw in (quantiles, lambda *a: private_means(*a[:2], **BOUNDS, name=a[2])):
        with pytest.raises(RefusalError) as caught:
            draw(given, ROWS, "third")
        assert caught.value.code == "ldp:refused:budget"
    assert quantiles(given, Lost()).tolist() == kept.tolist()  # drawn before: at no charge
    for run in (given.run_id, 99):
        given.run_id = run
        with pytest.raises(RefusalError) as caught:
            quantiles(given, ROWS, "second")
        assert caught.value.code == "ldp:refused:repeat"
    assert costs(tmp_path) == charged
    assert quantiles(given, ROWS, "third").shape == (1, 2)  # another run


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
    with pytest.raises(RefusalError) as caught:
        private_means(given, ROWS, **BOUNDS, groups="abcd", name="other")
    assert caught.value.code == "ldp:refused:budget"
    assert costs(tmp_path) == ["epsilon 1"]


def test_a_killed_process_uses_up_the_name_alone(tmp_path: Path) -> None:
    class Killed(Lost):
        def __len__(self) -> int:
            raise KeyboardInterrupt

    given = owner(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        private_means(given, Killed(), **BOUNDS)
    with pytest.raises(RefusalError) as caught:
        private_means(given, ROWS, **BOUNDS)
    assert caught.value.code == "ldp:refused:repeat"
    assert private_means(given, ROWS, **BOUNDS, name="other").shape == (2,)


def test_a_name_with_other_parameters_is_refused(tmp_path: Path) -> None:
    private_means(owner(tmp_path), ROWS, **BOUNDS)
    with pytest.raises(RefusalError) as caught:
        private_means(owner(tmp_path), ROWS, **{**BOUNDS, "upper": [5.0, 100.0]})
    assert caught.value.code == "ldp:refused:repeat"


@pytest.mark.parametrize(
    "changes",
    [
        {"lower": [0.0]},
        {"lower": [9.0, 0.0]},
        {"epsilon": 0.0},
        {"name": ""},
        {"groups": [1, 2, 3, 4]},
    ],
)
def test_what_is_wrong_costs_nothing(tmp_path: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"must|given"):
        private_means(owner(tmp_path), ROWS, **{**BOUNDS, **changes})
    assert costs(tmp_path) == []


@pytest.mark.parametrize("shares", [(), (2.0,), (0.5, -0.1)])
def test_shares_that_are_none_cost_nothing(tmp_path: Path, shares: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="share"):
        private_quantiles(owner(tmp_path), ROWS, edges=[[0.0, 1.0]], shares=shares, epsilon=0.5)
    assert costs(tmp_path) == []


def test_what_the_policy_does_not_allow_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RefusalError) as caught:
        private_means(owner(tmp_path), ROWS, **{**BOUNDS, "epsilon": 1.5})
    assert caught.value.code == "ldp:refused:policy"


def test_the_noise_is_as_wide_as_the_mechanism_says(tmp_path: Path) -> None:
    """Forty columns of one value: their spread is that of the noise."""
    zeros = [[0.0] * 40] * 4
    bounds = {"lower": [-1.0] * 40, "upper": [1.0] * 40}
    found = private_means(owner(tmp_path), zeros, **bounds, epsilon=1.0)
    wanted = ExampleMean(1.0 / 40, 4, -1.0, 1.0).standard_deviation
    # The mean magnitude of 40 Laplace draws is within 5 of its deviations.
    assert np.abs(found).mean() == pytest.approx(wanted / 2**0.5, rel=5 / 40**0.5)
