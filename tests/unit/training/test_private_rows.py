"""Failure is per patient: a row that fails counts as zero, and nothing else changes."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from datetime import date
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from tests.unit.training.gated import MODEL, Seen, arrays_of, expected, state_of, without_noise
from tests.unit.training.gated import raiser as raising

pytest.importorskip("torch")
pytest.importorskip("scipy")

import numpy as np
import torch
from flwr.app import Context, Message
from torch import nn

from flower_ldp.clients.session import MOST_ROWS, by_group
from flower_ldp.mechanisms import RandomSource
from flower_ldp.training.gradients import StepSum
from flower_ldp.training.rows import Examples, taking_part
from tests.unit.training.gated import (
    LIKE,
    ROWS,
    Site,
    descent,
    found_of,
    row_model,
    squares,
    weights,
)

#: The grid of sums.
UNIT = 2.0**-40


_silent = pytest.fixture(autouse=True)(without_noise)


class Data:
    """Rows, one of which does something else when it is read."""

    def __init__(self, place: int, read: Callable[[], Any]) -> None:
        self._place, self._read = place, read

    def __len__(self) -> int:
        return len(ROWS)

    def __getitem__(self, index: int) -> Any:
        return self._read() if index == self._place else ROWS[index]


def row(features: Any, target: Any = (1.0,)) -> Callable[[], Any]:
    return lambda: (features, torch.tensor(target) if isinstance(target, tuple) else target)


class Odd:
    """Has a shape and no values."""

    shape = (2,)

    def __array__(self, *_: Any) -> Any:
        raise ValueError("no array")


FAILING: dict[str, Callable[[], Any]] = {
    "raises": raising(OSError("no such scan")),
    "memory": raising(MemoryError()),
    "exits": raising(SystemExit(3)),
    "no tuple": lambda: 7,
    "nothing": lambda: None,
    "three parts": lambda: (torch.zeros(2), torch.zeros(1), torch.zeros(1)),
    "another shape": row(torch.ones(3)),
    "no axes": row(1.0),
    "text": row("scan"),
    "an object": row(Odd()),
    "complex": row(torch.ones(2, dtype=torch.complex64)),
    "sparse": row(torch.ones(2).to_sparse()),
    "a target that is sparse": row(torch.ones(2), torch.ones(1).to_sparse()),
    "without values": row(torch.ones(2, device="meta")),
    "nan": row(torch.tensor([math.nan, 1.0])),
    "infinite": row(torch.tensor([math.inf, 1.0])),
    "a target that is nan": row(torch.ones(2), (math.nan,)),
    "a gradient that is infinite": row(torch.tensor([3e38, 3e38]), (-3e38,)),
}


@functools.cache
def where_it_raises(folder: Path) -> list[float]:
    folder.mkdir()
    reads = Data(3, FAILING["raises"])
    found: list[float] = weights(Site(folder, arguments={"data": reads}).ask()).tolist()
    return found


@pytest.mark.parametrize("name", FAILING)
def test_a_row_that_fails_counts_as_zero_and_no_other_does(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, name: str
) -> None:
    """To the last bit: the others' gradients are the same, whatever this row is."""
    found = weights(Site(tmp_path, arguments={"data": Data(3, FAILING[name])}).ask())
    assert found == pytest.approx(expected([[r] for i, r in enumerate(ROWS) if i != 3]), rel=1e-5)
    assert found.tolist() == where_it_raises(tmp_path_factory.getbasetemp() / "raises")


class Raising(nn.Linear):
    """A model that raises for some rows."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if float(x[0, 0]) == 3.0:
            raise ZeroDivisionError("three")
        return super().forward(x)


def test_a_row_for_which_the_model_raises_counts_as_zero(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The owner's log has its cause once, and in each step how many failed."""
    found = weights(Site(tmp_path, arguments={"model": lambda: Raising(2, 1)}).ask())
    said = [told for told in (one.getMessage() for one in caplog.records) if "as zero" in told]
    assert "counts as zero: ZeroDivisionError: three" in said[0]
    assert said[1:] == ["1 of 8 rows count as zero"] * 3
    assert found == pytest.approx(expected([[r] for i, r in enumerate(ROWS) if i != 3]), rel=1e-5)


def total(model: nn.Module, loss: Any, like: Any, clip: float, rows: list[Any]) -> torch.Tensor:
    """Return the sum of these rows' clipped gradients; None is a row that cannot be read."""
    asked = row_model(model, loss, rows, like)
    at = {name: p.detach() for name, p in model.named_parameters()}
    asked.check(at)
    step = StepSum(asked, clip, UNIT)
    return step(at, [[row] for row in range(len(rows))])


@pytest.mark.parametrize("target", [3, 99, -1])
def test_a_label_that_is_none_fails_for_its_row_alone(target: int) -> None:
    model, like = nn.Linear(2, 3), (torch.zeros(2), torch.tensor(0))
    good: list[Any] = [(torch.tensor([1.0, i]), torch.tensor(i)) for i in range(3)]
    bad = (torch.ones(2), torch.tensor(target))
    found = [
        total(model, nn.functional.cross_entropy, like, 1.0, [*good, *more])
        for more in ([bad], [None], [])
    ]
    assert found[0].equal(found[1])
    assert found[0].equal(found[2])


def test_one_example_moves_a_sum_by_twice_the_clip_at_most() -> None:
    model = nn.Linear(2, 1)
    extremes = [
        (torch.tensor([s * 1e6, 1e6]), torch.tensor([t])) for s in (-1, 1) for t in (-9.0, 9.0)
    ]
    totals = [total(model, squares, LIKE, 0.5, [*ROWS, one]) for one in [*extremes, None]]
    moved = [float((a - b).double().norm()) * UNIT for a in totals for b in totals]
    assert max(moved) <= 2 * 0.5 * (1 + 1e-9)
    far = max(float((a - totals[-1]).double().norm()) for a in totals)
    assert far * UNIT == pytest.approx(0.5)


def test_what_one_example_adds_changes_no_bit_of_what_the_others_do() -> None:
    model = nn.Linear(2, 1)
    for one in [*ROWS, (torch.tensor([1e6, -1e6]), torch.tensor([9.0]))]:
        alone, others, both = (
            total(model, squares, LIKE, 0.5, rows) for rows in ([one], ROWS, [*ROWS, one])
        )
        assert both.equal(others + alone)


def test_an_examples_rows_are_added_up_in_their_order() -> None:
    rows = [(torch.tensor([x, 1.0]), torch.tensor([0.0])) for x in (1e4, 1e-3, -3.0)]
    model = nn.Linear(2, 1)
    at = {name: p.detach() for name, p in model.named_parameters()}
    asked = row_model(model, squares, rows, LIKE)
    asked.check(at)
    found = StepSum(asked, 1e9, UNIT)(at, [[0, 1, 2]])
    parts = [one for one in found_of(asked, at, 0, 1, 2) if one is not None]
    whole = (parts[0] + parts[1] + parts[2]).double()
    assert found.equal((whole * (1 / UNIT)).round().to(torch.int64))


# Patients.

WARD = [0, 0, 0, 1, 1, 2, None, ""]


def site_of_patients(folder: Path, **arguments: Any) -> Site:
    given = {"groups": WARD, "max_rows": 3, **arguments}
    return Site(folder, example="patient", examples=3, arguments=given)


def by_patient(without: int = -1) -> list[list[Any]]:
    return [
        [r for i, (r, g) in enumerate(zip(ROWS, WARD, strict=True)) if g == p and i != without]
        for p in range(3)
    ]


@pytest.mark.parametrize(
    ("arguments", "rows"),
    [
        ({}, by_patient()),
        ({"data": Data(1, FAILING["raises"])}, by_patient(without=1)),
        ({"groups": WARD[:5]}, by_patient()[:2]),  # rows beyond have none
        ({"groups": range(8)}, [[row] for row in ROWS]),  # more patients than the policy says
    ],
)
def test_a_patient_has_one_clipped_sum_and_a_row_without_one_is_zero(
    tmp_path: Path, arguments: dict[str, Any], rows: list[Any]
) -> None:
    site = site_of_patients(tmp_path, **arguments)
    assert weights(site.ask()) == pytest.approx(expected(rows, examples=3), rel=1e-5)
    (entry, mark, _) = site.entries()
    assert '"example":"patient"' in entry.parameters
    assert mark.data_id == "ward#patients:unit/mark"


def test_at_most_max_rows_of_a_patient_count(tmp_path: Path) -> None:
    reads: list[int] = []

    class Counted:
        def __len__(self) -> int:
            return len(ROWS)

        def __getitem__(self, index: int) -> Any:
            reads.append(WARD[index])  # type: ignore[arg-type]
            return ROWS[index]

    site_of_patients(tmp_path, data=Counted(), max_rows=2).ask()
    assert [reads.count(p) for p in range(3)] == [3 * 2, 3 * 2, 3 * 1]


@pytest.mark.parametrize(("example", "groups"), [("patient", None), ("row", WARD)])
def test_groups_are_given_where_an_example_is_a_patient_and_only_there(
    tmp_path: Path, example: str, groups: Any
) -> None:
    site = Site(tmp_path, mode="simulation", example=example, arguments={"groups": groups})
    assert site.ask().error.reason == "ldp:failed"


class Loose:
    """Told apart by where it lies in memory, as an object of an app is."""


@pytest.mark.parametrize(
    ("make", "is_one"),
    [
        (lambda: 0, True),
        (lambda: "a", True),
        (lambda: ("ward", 3), True),
        (lambda: np.int64(3), True),
        (lambda: torch.tensor(3), True),
        (lambda: (torch.tensor(3), "a"), True),
        (lambda: None, False),
        (lambda: "", False),
        (lambda: math.nan, False),
        (lambda: np.float32("nan"), False),
        (lambda: np.datetime64("NaT"), False),
        (lambda: torch.tensor(math.nan), False),
        (lambda: [], False),
        (lambda: ("ward", None), False),
        (Loose, False),
        (lambda: torch.tensor([3]), False),
        (lambda: (torch.tensor([3]),), False),
    ],
)
def test_what_says_whose_a_row_is(make: Callable[[], Any], is_one: bool) -> None:
    """Rows of one patient are one patient's, or nobody's: never one's each."""
    found = by_group([make(), "other", make()], 3)
    assert [rows.tolist() for rows in found] == ([[0, 2], [1]] if is_one else [[1]])


class Labels(Sequence[str]):
    """Whose rows are whose, read from somewhere; one cannot be read."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        if index == 2:
            raise self._error
        return f"patient {index}"


class Everybody(str):
    """A key that is equal to each other."""

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return hash("ann")


@pytest.mark.parametrize(
    ("groups", "rows"),
    [
        (np.array([4, 4, 5, 4]), [[0, 1, 3], [2]]),
        (torch.tensor([4, 4, 5, 4]), [[0, 1, 3], [2]]),
        ([*torch.tensor([4, 4, 5, 4])], [[0, 1, 3], [2]]),
        (Labels(OSError("no file")), [[0], [1], [3]]),
        (Labels(SystemExit(3)), [[0], [1], [3]]),
        (Labels(IndexError()), [[0], [1], [3]]),
        # Its own comparison says that it is everybody.
        (["ann", Everybody(), "ann", Everybody("ann")], [[0, 2]]),
        ([UUID(int=1), date(2026, 1, 2), UUID(int=1), ("a", 1)], [[0, 2], [1], [3]]),
    ],
)
def test_groups_are_their_values_and_one_that_cannot_be_read_is_none(
    groups: Any, rows: list[list[int]]
) -> None:
    assert [found.tolist() for found in by_group(groups, 4)] == rows


@pytest.mark.parametrize("groups", [{0: "ann", 1: "ann"}, {"ann", "bob"}])
def test_groups_that_are_no_list_of_places_are_refused(groups: Any) -> None:
    with pytest.raises(ValueError, match="of each row, in the order of rows"):
        by_group(groups, 2)


def test_what_is_not_as_the_policy_says_is_in_the_owners_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    Examples(4, ["ann", "ann", "bob", "bob"], at_least=2)
    assert not caplog.records
    Examples(4, ["ann", None, Loose(), "bob"], at_least=2)
    Examples(4, ["ann", "bob", "eve", "eve"], at_least=2)
    assert [record.getMessage() for record in caplog.records] == [
        "2 of 4 rows have no group that tells whose they are, and count as zero",
        "there are 3 examples or patients, and the policy says 2: correct one of them",
    ]


def test_examples_of_rows_take_each_row_once() -> None:
    examples = Examples(5)
    rng = RandomSource.from_os()
    assert [examples.rows(i, rng).tolist() for i in range(len(examples))] == [[i] for i in range(5)]


@pytest.mark.parametrize("rows", [0, -1, True, 2.0, "4", MOST_ROWS + 1, 10**18])
def test_rows_of_an_example_are_so_many_at_most(rows: Any) -> None:
    """Without a bound a typing mistake is all of the time."""
    with pytest.raises(ValueError, match=r"max_rows must be an integer in \[1, 1000\], got"):
        Examples(5, [1, 2], rows)
    assert Examples(5, [1, 2], MOST_ROWS).max_rows == 1_000


@pytest.mark.parametrize("rate", [0.05, 0.5, 1.0, 2.0**-64, 2.0**-70])
def test_each_takes_part_by_a_coin_of_the_rate(rate: float) -> None:
    number = 40_000
    drawn = taking_part(number, rate, RandomSource.seeded(3))
    assert len(set(drawn.tolist())) == len(drawn)
    # 1e-6 lies within 5 deviations of a binomial of this size.
    slack = 5 * math.sqrt(number * rate * (1 - rate))
    assert abs(len(drawn) - number * rate) <= slack + (rate < 1e-9)


# Models.


class Tied(nn.Module):
    """A model with one weight under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)
        self.second.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x))[:, :1]  # type: ignore[no-any-return]


def test_a_weight_of_two_names_is_one_weight(tmp_path: Path) -> None:
    sent = {name: np.eye(2, dtype=np.float32) for name in ("first.weight", "second.weight")}
    reply = Site(tmp_path, arguments={"model": Tied}).ask(arrays=sent)
    found = arrays_of(reply)
    assert found["first.weight"].tolist() == found["second.weight"].tolist()
    assert found["first.weight"].tolist() != sent["first.weight"].tolist()


class Looked(nn.Module):
    """Looks its features up, with or without sparse gradients."""

    def __init__(self, sparse: bool) -> None:
        super().__init__()
        self.rows = nn.Embedding(4, 1, sparse=sparse)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.rows(x.long()).sum(1)  # type: ignore[no-any-return]


def test_a_sparse_gradient_is_the_dense_one() -> None:
    at = {"rows.weight": torch.arange(4.0)[:, None]}
    row = (torch.tensor([1.0, 3.0]), torch.zeros(1))
    for sparse in (True, False):
        asked = row_model(Looked(sparse), squares, [row], LIKE)
        asked.check(at)
        (found,) = found_of(asked, at, 0)
        assert found is not None
        assert found.tolist() == [0.0, 8.0, 0.0, 8.0]


def test_gradients_are_there_whatever_the_app_told_torch(tmp_path: Path) -> None:
    def without_gradients(sent: Message, given: Context) -> Message:
        with torch.no_grad():
            return Site.train(site, sent, given)

    site = Site(tmp_path, task=without_gradients)
    assert weights(site.ask()) == pytest.approx(expected([[r] for r in ROWS]), rel=1e-5)


def normed(training: bool) -> nn.Module:
    """Return a model with averages that training changes, unless it is told to leave them alone."""
    return nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 1)).train(training)


def test_constant_buffers_pass_and_leave_as_they_came(tmp_path: Path) -> None:
    sent = state_of(normed(False))
    sent["0.running_mean"] = np.array([0.5, -0.5], dtype=np.float32)
    reply = Site(tmp_path, arguments={"model": lambda: normed(False)}).ask(arrays=sent)
    found = arrays_of(reply)
    for name in ("0.running_mean", "0.running_var", "0.num_batches_tracked"):
        assert found[name].tolist() == sent[name].tolist()
        assert found[name].dtype == sent[name].dtype
    assert found["1.weight"].tolist() != sent["1.weight"].tolist()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"model": lambda: normed(True)}, "GroupNorm"),
        ({"model": Seen, "like": (torch.ones(2), torch.zeros(1))}, "seen"),
        ({"model": lambda: nn.Linear(3, 1)}, "weight"),
        ({"like": (torch.zeros(3), torch.zeros(1))}, "public row"),
        ({"like": LIKE[:1]}, "public row"),
        ({"like": ()}, "public row"),
        ({"loss": lambda out, target: squares(out.detach(), target)}, "fails on the public row"),
        (
            {"optimizer": lambda _: descent([nn.Parameter(torch.ones(1))])},
            "made of the weights given",
        ),
    ],
)
def test_what_cannot_be_trained_privately_is_refused_with_advice(
    tmp_path: Path, arguments: dict[str, Any], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    site = Site(tmp_path, mode="simulation", arguments=arguments)
    has_state = arguments.get("model") is Seen or said == "GroupNorm"
    sent = state_of(arguments["model"]()) if has_state else MODEL
    assert site.ask(arrays=sent).error.reason == "ldp:failed"
    assert said in caplog.text
