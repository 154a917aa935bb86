"""Nothing is remembered from one row to the next: weights, buffers, random numbers."""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.training.gated import Seen, arrays_of, state_of, without_noise

pytest.importorskip("torch")
pytest.importorskip("scipy")

import torch
from flwr.app import Context, Message
from torch import nn

from flower_ldp.training import private
from flower_ldp.training.gradients import StepSum
from tests.unit.training.gated import ROWS, Site, found_of, row_model, squares, weights

WORD = (torch.tensor(0), torch.zeros(1))


_silent = pytest.fixture(autouse=True)(without_noise)


def parameters(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def words() -> nn.Module:
    """Return what shortens the vector of each word that it meets, in place."""
    return nn.Sequential(nn.Embedding(4, 2, max_norm=1.0), nn.Linear(2, 1))


def test_a_pass_that_changes_weights_changes_none_that_leave(tmp_path: Path) -> None:
    """Without this, the clip and the noise may be as small as the server likes."""
    sent = state_of(words())
    sent["0.weight"][:] = 0.1
    sent["0.weight"][2] = 30.0
    found = []
    for place, data in enumerate(([(torch.tensor(2), torch.ones(1))], [WORD])):
        folder = tmp_path / str(place)
        folder.mkdir()
        still: Callable[..., Any] = lambda weights: torch.optim.SGD(weights, lr=0.0)  # noqa: E731
        given = {"model": words, "data": data, "like": WORD, "optimizer": still}
        reply = Site(folder, arguments=given).ask(arrays=sent)
        found.append(arrays_of(reply)["0.weight"].tolist())
    assert found[0] == found[1] == sent["0.weight"].tolist()


def test_a_buffer_outside_of_the_state_is_every_rows_own() -> None:
    """The public row does not change it, a private one does: what comes next is the same."""
    model = Seen(persistent=False)
    one, other = (torch.full((2,), 9.0), torch.ones(1)), (torch.ones(2), torch.ones(1))
    asked = row_model(model, squares, [one, other], (torch.zeros(2), torch.zeros(1)))
    given = parameters(model)
    asked.check(given)
    after = [found_of(asked, given, first, 1)[1] for first in (0, 1)]
    assert after[0] is not None
    assert after[1] is not None
    assert after[0].tolist() == after[1].tolist()
    with pytest.raises(ValueError, match="seen"):  # where the public row changes it, it is refused
        row_model(model, squares, [], other).check(given)


def test_an_evaluation_keeps_no_state_either() -> None:
    """There all of a model's state is given as weights."""
    model = Seen()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    row = (torch.ones(2), torch.zeros(1))
    asked = row_model(model, squares, [row, row], row, learns=False)
    with pytest.raises(ValueError, match="seen"):
        asked.check(state)
    first, second = found_of(asked, state, 0, 1)
    assert first == second
    assert state["seen"].tolist() == model.seen.tolist() == [0.0]


def test_masks_do_not_follow_from_a_seed_of_the_apps(tmp_path: Path) -> None:
    """With a seed that is known, a row that fails would move all masks after its own."""
    row = (torch.ones(64), torch.ones(1))

    def seeded(given: Message, context: Context) -> Message:
        torch.manual_seed(7)
        reply = site.train(given, context)
        afterwards.append(torch.rand(1).item())
        return reply

    afterwards: list[float] = []
    dropping = nn.Sequential(nn.Dropout(0.5), nn.Linear(64, 1))
    given = {"model": lambda: dropping, "data": [row] * 8, "like": row}
    site = Site(tmp_path, arguments=given, task=seeded)
    sent = state_of(dropping)
    found = [arrays_of(site.ask(name, arrays=sent))["1.weight"] for name in ("m-1", "m-2")]
    assert len(afterwards) == 2
    assert afterwards[0] == afterwards[1]
    assert found[0].tolist() != found[1].tolist()


def inverse(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Raise where an output is zero, as that of a row of zeros without a bias is."""
    return torch.linalg.inv(output.reshape(1, 1)).sum() + target.sum()


def test_where_the_public_row_fails_other_rows_count_all_the_same() -> None:
    row = (torch.ones(2), torch.zeros(1))
    asked = row_model(nn.Linear(2, 1), inverse, [row], (torch.zeros(2), torch.zeros(1)))
    step = StepSum(asked, 1.0, 2.0**-40)
    given = {"weight": torch.ones(1, 2), "bias": torch.zeros(1)}
    asked.check({"weight": torch.ones(1, 2), "bias": torch.ones(1)})
    assert step(given, [[0]]).any()


class Centred(nn.Module):
    """Keeps a running centre of the rows, where a pass does not put it back."""

    def __init__(self, kept: Callable[[Centred, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.out, self.kept = nn.Linear(2, 1), kept
        self.centre, self.inside = torch.zeros(2), SimpleNamespace(centre=torch.zeros(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(x - self.kept(self, x))  # type: ignore[no-any-return]


def rebound(model: Centred, x: torch.Tensor) -> torch.Tensor:
    model.centre = 0.9 * model.centre + 0.1 * x[0].detach()
    return model.centre


def inside(model: Centred, x: torch.Tensor) -> torch.Tensor:
    model.inside.centre = 0.9 * model.inside.centre + 0.1 * x[0].detach()
    return model.inside.centre


def test_an_attribute_that_a_pass_binds_anew_is_as_it_was(tmp_path: Path) -> None:
    row = (torch.ones(2), torch.ones(1))
    model = Centred(rebound)
    asked = row_model(model, squares, [row, row], (torch.zeros(2), torch.zeros(1)))
    first, second = found_of(asked, parameters(model), 0, 1)
    assert first is not None
    assert first.tolist() == second.tolist()  # type: ignore[union-attr]
    assert not model.centre.any()


def test_a_pass_that_changes_a_weights_shape_makes_that_row_zero() -> None:
    class Pruned(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if float(x[0, 0]) == 7.0:
                self.weight.data = self.weight.data[:, :1]
                return x[:, :1] @ self.weight.T
            return super().forward(x)

    model, like = Pruned(2, 1), (torch.zeros(2), torch.zeros(1))
    data = [(torch.full((2,), 7.0), torch.ones(1)), (torch.ones(2), torch.ones(1))]
    asked = row_model(model, squares, data, like)
    found = found_of(asked, parameters(model), 0, 1)
    assert found[0] is None
    assert found[1] is not None


def test_passes_of_two_threads_wait_for_each_other() -> None:
    model = nn.Sequential(nn.Linear(2, 64), nn.Dropout(0.5), nn.Linear(64, 1))
    data = [(torch.ones(2), torch.ones(1))] * 20

    def train(_: int) -> None:
        own = copy.deepcopy(model)
        asked, at = row_model(own, squares, data, data[0]), parameters(own)
        asked.check(at)
        for _ in range(10):
            StepSum(asked, 1.0, 2.0**-30)(at, [[row] for row in range(20)])

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(train, range(4)))


def test_what_is_kept_of_rows_elsewhere_ends_the_plan(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sent = {"out.weight": torch.ones(1, 2).numpy(), "out.bias": torch.zeros(1).numpy()}
    site = Site(tmp_path, arguments={"model": lambda: Centred(inside)})
    assert not site.ask(arrays=sent).has_error()
    assert "keep something of a row" in caplog.text
    assert site.ask("m-2", arrays=sent).error.reason == "ldp:refused:budget"


def test_the_optimizer_sees_noisy_gradients_and_neither_model_nor_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So no scaler, schedule or buffer of its own can carry something of rows to the next step."""
    monkeypatch.setattr(
        private, "noised_whole", lambda whole, unit, rng: torch.full(whole.shape, 16.0)
    )
    models: list[nn.Module] = []
    seen: list[list[float]] = []

    def model() -> nn.Module:
        models.append(nn.Linear(2, 1))
        return models[-1]

    class Watching(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            own = [p for group in self.param_groups for p in group["params"]]
            assert not {id(p) for p in own} & {id(p) for p in models[0].parameters()}
            seen.append([x for p in own for x in p.grad.flatten().tolist()])
            return super().step(closure)

    def watching(learning: list[nn.Parameter]) -> torch.optim.Optimizer:
        return Watching(learning, lr=0.1)

    site = Site(tmp_path, arguments={"model": model, "optimizer": watching})
    assert not site.ask().has_error()
    assert seen == [[2.0] * 3] * 3


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (lambda: nn.Linear(2, 1, device="meta"), "weight is on meta: private rows need the CPU"),
        (lambda: torch.jit.script(nn.Linear(2, 1)), "is of TorchScript: give the module itself"),
        (
            lambda: nn.Sequential(nn.Linear(2, 1), nn.BatchNorm1d(1, track_running_stats=False)),
            "uses the statistics of a batch",
        ),
        (lambda: nn.Sequential(nn.Linear(2, 1), nn.BatchNorm1d(1)), "GroupNorm"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
def test_models_that_are_refused(model: Callable[[], nn.Module], said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        row_model(model(), squares, [], (torch.zeros(2), torch.zeros(1)))


LEAKS: dict[str, Callable[[], object]] = {
    "gradients": lambda: torch.set_grad_enabled(False),
    "dtype": lambda: torch.set_default_dtype(torch.float64),
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16).__enter__(),
    "denormals": lambda: torch.set_flush_denormal(True),
    "threads": lambda: torch.set_num_threads(2),
}


class Data(Sequence[Any]):
    """Rows, one of which does something else when it is read."""

    def __init__(self, read: Callable[[], object]) -> None:
        self._read = read

    def __len__(self) -> int:
        return len(ROWS)

    def __getitem__(self, index: Any) -> Any:
        if index == 1:
            self._read()
            raise OSError("no such scan")
        return ROWS[index]


@pytest.mark.parametrize("leak", LEAKS.values(), ids=LEAKS)
def test_what_a_row_tells_torch_is_not_told_to_the_next(
    tmp_path: Path, leak: Callable[[], object]
) -> None:
    """Not even to the app, once its training is over."""

    def settings() -> tuple[Any, ...]:
        tiny = torch.tensor(1e-310, dtype=torch.float64) * 0.5
        return (
            torch.is_grad_enabled(),
            torch.get_default_dtype(),
            torch.is_autocast_enabled("cpu"),
            tiny.item(),
            torch.get_num_threads(),
        )

    found, before = [], settings()
    for number, read in enumerate((lambda: None, leak)):
        folder = tmp_path / str(number)
        folder.mkdir()
        found.append(weights(Site(folder, arguments={"data": Data(read)}).ask()).tolist())
        assert settings() == before
    assert found[0] == found[1]


@pytest.mark.parametrize("workers", [2, 3])
def test_workers_add_up_to_the_same_sum(tmp_path: Path, workers: int) -> None:
    found = []
    for number in (1, workers):
        folder = tmp_path / str(number)
        folder.mkdir()
        arguments = {"workers": number, "loss": lambda output, target: squares(output, target)}
        found.append(weights(Site(folder, arguments=arguments).ask()).tolist())
    assert found[0] == found[1]


@pytest.mark.parametrize("workers", [0, -1, True, 1.5, "2", 10**9])
def test_workers_are_so_many(tmp_path: Path, workers: Any, caplog: Any) -> None:
    site = Site(tmp_path, mode="simulation", arguments={"workers": workers})
    assert site.ask().error.reason == "ldp:failed"
    assert "workers must be an integer in [1, 1024], got" in caplog.text


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


def test_a_worker_that_dies_fails_the_training_as_a_whole(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    site = Site(tmp_path, arguments={"workers": 2, "data": Data(lambda: os._exit(1))})
    assert not site.ask().has_error()
    assert "the plan of private training ends" in caplog.text
