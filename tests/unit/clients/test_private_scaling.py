"""Means of columns: paid for once, kept, and private for an example."""

from __future__ import annotations

import math
import random
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context

from flower_ldp.accounting.ledger import Ledger
from flower_ldp.clients import private_means, scaling
from flower_ldp.clients.scaling import _part
from flower_ldp.errors import RefusalError
from flower_ldp.mechanisms import (
    ExampleMean,
    GaussianMeans,
    RandomSource,
    gaussian,
)
from flower_ldp.mechanisms.gaussian import gaussian_delta, largest_shift
from flower_ldp.privacy import as_fraction
from tests.extras import extra
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
budgets:
  example:
    life: {{epsilon: 2.0}}
"""
ROWS: list[Any] = [[1.0, 40.0], [2.0, 60.0], [3.0, 80.0], [2.0, 20.0]]
BOUNDS: dict[str, Any] = {"lower": [0.0, 0.0], "upper": [4.0, 100.0], "epsilon": 1.0}


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ExampleMean, "noised", lambda self, total, rng: total)
    monkeypatch.setattr(gaussian, "normal", lambda size, rng: np.zeros(size, np.int64))


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


class Drawn(Rows):
    """Draws each row by the process's generators."""

    def __init__(self, failing: int = -1) -> None:
        super().__init__(failing)
        self.drawn: list[float] = []

    def __getitem__(self, index: int) -> Any:
        super().__getitem__(index)
        found = [np.random.random(), random.random()]  # noqa: NPY002
        if (torch := sys.modules.get("torch")) is not None:
            found.append(float(torch.rand(())))
        self.drawn += found
        return found[:2]


def test_a_row_that_fails_moves_nothing_that_others_draw_from_a_seed_of_the_apps(
    tmp_path: Path,
) -> None:
    """With the app's seed another row's failure would give each the numbers of the next."""
    pytest.importorskip("torch").manual_seed(7)
    np.random.seed(7)  # noqa: NPY002
    random.seed(7)
    of_seed = Drawn()
    expected = [of_seed[index] for index in range(len(ROWS))]
    for failing in (-1, 0):
        sys.modules["torch"].manual_seed(7)
        np.random.seed(7)  # noqa: NPY002
        random.seed(7)
        rows = Drawn(failing)
        private_means(owner(tmp_path), rows, **BOUNDS, name=f"means{failing + 1}")
        assert len(rows.drawn) == 3 * (len(ROWS) - (failing == 0))
        assert not set(rows.drawn) & set(of_seed.drawn)
        # What the app draws afterwards tells nothing of the rows.
        assert Drawn()[0] == expected[0]


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
        assert math.fsum([part] * columns) <= epsilon
        assert np.cumsum([part] * columns)[-1] <= epsilon
        assert part * columns == pytest.approx(epsilon, rel=1e-13)


def halves(given: Context, rows: Any, name: str = "halves") -> Any:
    return private_means(given, rows, **{**BOUNDS, "epsilon": 0.5}, name=name)


def test_a_failure_of_the_whole_ends_the_scaling_of_its_run(tmp_path: Path) -> None:
    given = owner(tmp_path)
    kept = halves(given, ROWS)
    with pytest.raises(OSError, match="no such table"):
        halves(given, LOST, "second")
    charged = costs(tmp_path)
    assert charged == ["epsilon 0.5"] * 2
    refused("budget", halves, given, ROWS, "third")
    refused("budget", private_means, given, ROWS, **BOUNDS, name="third")
    assert halves(given, LOST).tolist() == kept.tolist()  # drawn before: at no charge
    other = replace(given, run_id=99)
    for run in (given, other):
        refused("repeat", halves, run, ROWS, "second")
    assert costs(tmp_path) == charged
    assert halves(other, ROWS, "third").shape == (2,)


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


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"lower": [0.0]}, "must"),
        ({"lower": [9.0, 0.0]}, "must"),
        ({"name": ""}, "must"),
        ({"groups": [1, 2, 3, 4]}, "given"),
        *(({"epsilon": epsilon}, "epsilon") for epsilon in (-0.1, 0.0, math.nan, math.inf, 1e7)),
    ],
)
def test_what_is_wrong_costs_nothing(tmp_path: Path, changes: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        private_means(owner(tmp_path), ROWS, **{**BOUNDS, **changes})
    assert costs(tmp_path) == []


def test_the_noise_is_as_wide_as_the_mechanism_says(tmp_path: Path) -> None:
    """Forty columns of one value: their spread is that of the noise."""
    zeros = [[0.0] * 40] * 4
    bounds = {"lower": [-1.0] * 40, "upper": [1.0] * 40}
    found = private_means(owner(tmp_path), zeros, **bounds, epsilon=1.0)
    wanted = ExampleMean(1.0 / 40, 4, -1.0, 1.0).standard_deviation
    # The mean magnitude of 40 Laplace draws is within 5 of its deviations.
    assert np.abs(found).mean() == pytest.approx(wanted / 2**0.5, rel=5 / 40**0.5)


def with_delta(
    folder: Path,
    delta: float = 1e-5,
    examples: int = 4,
    example: str = "row",
    budget: str = "1.0e-3",
) -> Context:
    """Return the site of an owner who allows means a delta, and in all a larger one."""
    text = POLICY.format(example=example).replace("examples: 4", f"examples: {examples}")
    text = text.replace("life: {epsilon: 2.0}", f"life: {{epsilon: 900.0, delta: {budget}}}")
    folder.mkdir(exist_ok=True)
    return make_site(folder, text.replace("1.0, unit", f"200.0, delta: {delta:.1e}, unit", 1))


def of_columns(columns: int, epsilon: float = 0.2) -> dict[str, Any]:
    return {"lower": [0.0] * columns, "upper": [1.0] * columns, "epsilon": epsilon}


def zeros(columns: int) -> list[list[float]]:
    return [[0.0] * columns] * 4


def test_thirty_columns_have_a_deviation_of_89_where_laplace_has_212(tmp_path: Path) -> None:
    """At epsilon 0.2 and delta 1e-5, of a sum and in units of a column's range."""
    page = (Path(__file__).parents[3] / "docs/dpsgd_release.md").read_text(encoding="utf-8")
    shift = largest_shift(0.2, 1e-5)
    assert gaussian_delta(0.2, shift) <= 1e-5
    normal = {k: GaussianMeans(0.2, 1e-5, 4, [(0.0, 1.0)] * k).deviation for k in (1, 5, 6, 30)}
    laplace = {k: ExampleMean(0.2 / k, 1).standard_deviation for k in normal}
    for k in normal:
        assert normal[k] == pytest.approx(math.sqrt(k) / shift, rel=2e-4)
        assert laplace[k] == pytest.approx(math.sqrt(2) * k / 0.2, rel=1e-6)
        assert (normal[k] < laplace[k]) == (k > (0.2 / (math.sqrt(2) * shift)) ** 2) == (k > 5)
        if k != 6:
            pair = f"{laplace[k]:.3g} | {normal[k]:.3g}"
            assert re.search(rf"\n\| {k} \| {re.escape(pair)} \|", page)
    assert (round(normal[30]), round(laplace[30])) == (89, 212)


@pytest.mark.parametrize(
    ("columns", "epsilon", "delta", "chosen"),
    [
        (1, 0.2, 1e-5, ""),
        (5, 0.2, 1e-5, ""),
        (6, 0.2, 1e-5, ", delta 0.00001"),
        (30, 0.2, 1e-5, ", delta 0.00001"),
        (30, 0.2, 1e-18, ""),
        (40, 0.2, 1e-18, ", delta 0.000000000000000001"),
        (50, 0.2, 1e-19, ""),  # below what the curve is computed for
        (30, 0.2, 0.25, ""),  # one over the number of examples: one could be told in full
        (30, 0.2, 0.0, ""),
        (1, 0.2, 0.2, ", delta 0.2"),
        (6, 8.0, 1e-5, ""),
    ],
)
def test_the_noise_with_the_smaller_deviation_is_drawn_and_charged(
    tmp_path: Path, columns: int, epsilon: float, delta: float, chosen: str
) -> None:
    site = with_delta(tmp_path, delta, budget="0.5")
    found = private_means(site, zeros(columns), **of_columns(columns, epsilon))
    assert costs(tmp_path) == [f"epsilon {epsilon:g}{chosen}"]
    again = private_means(replace(site, run_id=99), [], **of_columns(columns, epsilon))
    assert again.tolist() == found.tolist()
    assert costs(tmp_path) == [f"epsilon {epsilon:g}{chosen}"]


@pytest.mark.filterwarnings("ignore::flower_ldp.mechanisms.NoProtectionWarning")
def test_an_epsilon_that_the_curve_does_not_reach_is_laplace_noise(tmp_path: Path) -> None:
    private_means(with_delta(tmp_path, budget="0.1"), zeros(30), **of_columns(30, 101.0))
    assert costs(tmp_path) == ["epsilon 101"]


def test_another_delta_is_another_release_and_needs_a_budget(tmp_path: Path) -> None:
    site, policy = with_delta(tmp_path, 0.0, budget="1.0e-5"), tmp_path / "policy.yaml"
    given = of_columns(30)
    first = private_means(site, zeros(30), **given)
    policy.write_text(policy.read_text().replace("delta: 0.0e+00", "delta: 1.0e-5"))
    refused("repeat", private_means, site, zeros(30), **given)
    second = private_means(site, zeros(30), **given, name="second")
    refused("budget", private_means, site, zeros(30), **given, name="third")
    assert costs(tmp_path) == ["epsilon 0.2", "epsilon 0.2, delta 0.00001"]
    policy.write_text(policy.read_text().replace("delta: 1.0e-5, unit", "unit"))
    refused("repeat", private_means, site, zeros(30), **given, name="second")
    assert private_means(site, [], **given).tolist() == first.tolist() != second.tolist()


def test_without_a_delta_each_column_has_the_laplace_noise_it_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scaling.RandomSource, "from_os", lambda: RandomSource.seeded(3))
    rng = RandomSource.seeded(3)
    columns = np.random.default_rng(4).uniform(-1, 2, (30, 4)).tolist()
    laws = [ExampleMean(_part(0.2, 30), 4, 0.0, 1.0) for _ in columns]
    wanted = [
        law.lower + law.randomize(one, rng) * law._step
        for law, one in zip(laws, columns, strict=True)
    ]
    rows = np.transpose(columns).tolist()
    found = private_means(owner(tmp_path), rows, **of_columns(30))
    assert found.tolist() == wanted


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize(
    ("example", "groups", "share"),
    [("row", None, (0.25 + 0.5 + 1.0) / 4), ("patient", "aabc", (0.25 + 1.0) / 4)],
)
def test_rows_and_patients_count_as_they_do_in_laplace_noise(
    tmp_path: Path, example: str, groups: str | None, share: float
) -> None:
    """Of a patient's rows the mean; what is no number, row or column is its own example's alone."""
    rows: list[Any] = [[one] * 30 for one in (0.25, 0.5, math.inf, math.nan)]
    if groups:
        rows[1] = [0.25] * 29  # left out of its patient's mean
    else:
        rows[3] = "no row"
    rows[0][29] = math.nan
    rest = {"row": 1.5 / 4, "patient": 1.0 / 4}[example]
    wanted = np.array([share] * 29 + [rest])
    for delta in (0.0, 1e-3):
        folder = tmp_path / str(delta)
        site = with_delta(folder, delta, example=example)
        found = private_means(site, rows, **of_columns(30), groups=groups)
        # Without noise only the report's rounding is left: half a sixteenth of the deviation.
        room = 2**-5 * GaussianMeans(0.2, 1e-3, 4, [(0.0, 1.0)] * 30).deviation / 4
        assert found == pytest.approx(wanted, abs=room if delta else 0.01)
        assert costs(folder) == ["epsilon 0.2" + (", delta 0.001" if delta else "")]


def test_errors_of_many_columns_are_as_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the size of a site, against plain means of all of the patients' rows."""
    stats = extra("scipy.stats")
    monkeypatch.setattr(scaling.RandomSource, "from_os", lambda: RandomSource.seeded(8))
    n, k, rng = 300, 100, np.random.default_rng(2)
    rows, low, high = rng.uniform(-4, 9, (2 * n, k)), np.full(k, -3.0), rng.uniform(5, 8, k)
    site = with_delta(tmp_path, examples=n, example="patient")
    bounds = {"lower": low.tolist(), "upper": high.tolist(), "epsilon": 1.0}
    found = private_means(site, rows, **bounds, groups=[i // 2 for i in range(2 * n)])
    plain = np.clip(rows.reshape(n, 2, k).mean(axis=1), low, high).mean(axis=0)
    deviation = math.sqrt(k) / largest_shift(1.0, 1e-5) * (high - low) / n
    assert stats.kstest((found - plain) / deviation, "norm").pvalue > 1e-6


def test_normal_noise_fits_a_life_by_zcdp_by_its_shift(tmp_path: Path) -> None:
    """Three times 0.2 fit 0.45, where sums of epsilons have room for two, and of deltas for one."""
    site, policy = with_delta(tmp_path, budget="1.0e-5, by: zcdp"), tmp_path / "policy.yaml"
    policy.write_text(policy.read_text().replace("900.0", "0.45"))
    for name in ("first", "second", "third"):
        private_means(site, zeros(30), **of_columns(30), name=name)
    assert costs(tmp_path) == ["epsilon 0.2, delta 0.00001"] * 3
    refused("budget", private_means, site, zeros(30), **of_columns(30), name="fourth")
