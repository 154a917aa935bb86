"""Nothing is remembered from one row to the next: weights, buffers, random numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("opacus")
pytest.importorskip("scipy")

import torch
from flwr.app import Context, Message
from torch import nn

from flower_ldp.clients.dpsgd.groups import by_group
from flower_ldp.training import private
from flower_ldp.training.gradients import ClippedSums, RowModel
from flower_ldp.training.rows import Row
from flower_ldp.training.rowwise import RowWise, Tensors
from tests.unit.training.gated import ROWS, Site, squares

WORD = (torch.tensor(0), torch.zeros(1))


@pytest.fixture(autouse=True)
def _silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Add no noise, so that what is computed can be compared."""
    monkeypatch.setattr(private, "noised_whole", lambda whole, unit, rng: whole.double() * unit)


def parameters(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def arrays(model: nn.Module) -> dict[str, Any]:
    return {name: value.numpy().copy() for name, value in model.state_dict().items()}


class Words(nn.Module):
    """Shortens the vector of each word that it meets, in place."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(4, 2, max_norm=1.0)
        self.out = nn.Linear(2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.words(x))  # type: ignore[no-any-return]


def test_a_pass_that_changes_weights_changes_none_that_leave(tmp_path: Path) -> None:
    """Without this, the clip and the noise may be as small as the server likes."""
    sent = arrays(Words())
    sent["words.weight"][:] = 0.1
    sent["words.weight"][2] = 30.0
    found = []
    for place, data in enumerate(([(torch.tensor(2), torch.ones(1))], [WORD])):
        folder = tmp_path / str(place)
        folder.mkdir()
        still: Callable[..., Any] = lambda weights: torch.optim.SGD(weights, lr=0.0)  # noqa: E731
        site = Site(
            folder,
            arguments={"model": Words, "data": data, "like": WORD, "optimizer": still},
        )
        reply = site.ask(arrays=sent)
        assert not reply.has_error()
        found.append(reply.content.array_records["arrays"]["words.weight"].numpy().tolist())
    assert found[0] == found[1] == sent["words.weight"].tolist()


class Hidden(nn.Module):
    """Keeps what it has seen in a buffer that its state does not have."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(2, 1)
        self.register_buffer("seen", torch.zeros(1), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.seen += x[:, 0].sum()
        return self.out(x) + self.seen  # type: ignore[no-any-return]


def test_a_buffer_outside_of_the_state_is_refused_too() -> None:
    model = Hidden()
    like = (torch.ones(2), torch.zeros(1))
    with pytest.raises(ValueError, match="seen"):
        RowModel(model, squares, {}, like).check(parameters(model))


def test_a_buffer_outside_of_the_state_is_every_rows_own() -> None:
    """The public row does not change it, a private one does: what comes next is the same."""
    model = Hidden()
    like = (torch.zeros(2), torch.zeros(1))
    asked = RowModel(model, squares, {}, like)
    given = parameters(model)
    asked.check(given)
    side_by_side = asked.gradients.side_by_side(given)
    other = (torch.ones(2), torch.ones(1))
    found = [
        asked.gradients.matrix(given, [first, other], side_by_side=side_by_side)[1]
        for first in (other, (torch.full((2,), 9.0), torch.ones(1)))
    ]
    assert found[0].tolist() == found[1].tolist()


class Counts(nn.Module):
    """Counts rows in a buffer of its state, and says more the more it has seen."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(2, 2)
        self.register_buffer("passes", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.passes += x[:, 0].sum()
        return self.out(x) + self.passes  # type: ignore[no-any-return]


def test_an_evaluation_keeps_no_state_either() -> None:
    """There all of a model's state is given as weights."""
    model = Counts()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    row = (torch.ones(2), torch.zeros(1))
    asked = RowModel(model, squares, {}, row)
    with pytest.raises(ValueError, match="passes"):
        asked.check(state)
    assert state["passes"].tolist() == [0.0]
    asked.values.matrix(state, [row, row], side_by_side=False)
    assert state["passes"].tolist() == [0.0]


class Dropping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(64, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(nn.functional.dropout(x))  # type: ignore[no-any-return]


def test_masks_do_not_follow_from_a_seed_of_the_apps(tmp_path: Path) -> None:
    """With a seed that is known, a row that fails would move all masks after its own."""
    row = (torch.ones(64), torch.ones(1))

    def seeded(given: Message, context: Context) -> Message:
        torch.manual_seed(7)
        reply = site.train(given, context)
        afterwards.append(torch.rand(1).item())
        return reply

    afterwards: list[float] = []
    site = Site(
        tmp_path,
        arguments={"model": Dropping, "data": [row] * 8, "like": row},
        task=seeded,
    )
    sent = arrays(Dropping())
    replies = [site.ask(name, arrays=sent) for name in ("m-1", "m-2")]
    found = [reply.content.array_records["arrays"]["out.weight"].numpy() for reply in replies]
    assert len(afterwards) == 2
    assert afterwards[0] == afterwards[1]
    assert found[0].tolist() != found[1].tolist()


def inverse(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Raise where an output is zero, as that of a row of zeros without a bias is."""
    return torch.linalg.inv(output.reshape(1, 1)).sum() + target.sum()


@pytest.mark.parametrize("bad", [None, (torch.ones(2), torch.zeros(1))])
@pytest.mark.parametrize("side_by_side", [True, False])
def test_where_the_public_row_has_no_gradient_no_row_has(
    side_by_side: bool, bad: Row | None
) -> None:
    """It stands for rows that fail: so it must not decide for the others whether they count."""
    model = nn.Linear(2, 1)
    asked = RowModel(model, inverse, {}, (torch.zeros(2), torch.zeros(1)))
    sums = ClippedSums(asked.gradients, 1.0, 2.0**-40, 1)
    given = {"weight": torch.ones(1, 2), "bias": torch.zeros(1)}
    rows = [(torch.ones(2), torch.zeros(1)), bad]
    reads = [lambda row=row: [row] for row in rows]  # type: ignore[misc]
    assert not sums.total(given, reads, side_by_side=side_by_side).any()
    given["bias"] += 1.0
    assert sums.total(given, reads, side_by_side=side_by_side).any()


def test_rows_that_fail_only_together_fail_nobody() -> None:
    public = (torch.zeros(1),)

    def batch(_: Tensors, rows: list[Row]) -> torch.Tensor:
        if len(rows) > 1:
            raise SystemExit(3)
        return torch.stack([part for (part,) in rows]).double()

    found = RowWise(batch, lambda _, row: row[0].double(), public).matrix(
        {}, [(torch.ones(1),), None, (torch.full((1,), 2.0),)], side_by_side=True
    )
    assert found.tolist() == [[1.0], [0.0], [2.0]]


class Halving(nn.Linear):
    """Changes the tensors that it loads."""

    def _load_from_state_dict(self, state: dict[str, Any], *rest: Any) -> None:
        for value in state.values():
            value.mul_(0.5)
        super()._load_from_state_dict(state, *rest)  # type: ignore[no-untyped-call]


def test_a_model_that_changes_what_it_loads_changes_nothing_that_leaves(tmp_path: Path) -> None:
    row = (torch.zeros(2), torch.zeros(1))
    made: Callable[[], nn.Module] = lambda: Halving(2, 1)  # noqa: E731
    site = Site(tmp_path, arguments={"model": made, "data": [row], "like": row})
    sent = {"weight": torch.ones(1, 2).numpy(), "bias": torch.zeros(1).numpy()}
    reply = site.ask(arrays=sent)
    assert reply.content.array_records["arrays"]["weight"].numpy().tolist() == [[1.0, 1.0]]


class Labels(Sequence[str]):
    """Whose rows are whose, read from somewhere; one cannot be read."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def __len__(self) -> int:
        return len(ROWS)

    def __getitem__(self, index: Any) -> Any:
        if index == 3:
            raise self._error
        return f"patient {index}"


@pytest.mark.parametrize("error", [OSError("no file"), SystemExit(3), IndexError()])
def test_a_group_that_cannot_be_read_is_none(error: BaseException) -> None:
    found = by_group(Labels(error), len(ROWS))
    assert [one.tolist() for one in found] == [[0], [1], [2], [4], [5], [6], [7]]


def test_who_has_lost_all_rows_changes_no_shape(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Floating-point kernels may round the others' gradients otherwise in another shape."""
    shapes: list[int] = []
    matrix = RowWise.matrix

    def watched(self: RowWise, weights: Tensors, rows: Any, *, side_by_side: bool) -> torch.Tensor:
        shapes.append(len(rows))
        return matrix(self, weights, rows, side_by_side=side_by_side)

    monkeypatch.setattr(RowWise, "matrix", watched)
    for last in ("seven", ""):
        folder = tmp_path / f"with {last}"
        folder.mkdir()
        groups = [*"abcdefg", last]
        site = Site(folder, example="patient", arguments={"groups": groups, "max_rows": 2})
        assert not site.ask().has_error()
    assert shapes == [16] * 6
