"""The gradient of a row is its own, to the last bit, whatever the other rows are.

The server picks all weights, so it would read what one row changes in another's last bit.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import random
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("opacus")
pytest.importorskip("scipy")

import numpy as np
import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn.utils import parametrizations

from flower_ldp.errors import ReleaseError
from flower_ldp.isolation import IsolatedPasses
from flower_ldp.training import private
from flower_ldp.training.gradients import RowModel, StepSum
from tests.hostile.one_example_leaks import HARMLESS, KEPT, leaking, put_back
from tests.hostile.one_example_rows import (
    ENTROPY,
    FRESH,
    GOOD,
    ROWS,
    WEIGHTS,
    Data,
    Tensors,
    digest,
    known_entropy,
    like,
    made,
    row_model,
    row_of,
    weights_of,
)
from tests.hostile.one_example_zoo import ZOO, Member
from tests.unit.training.gated import Site

ROOT = Path(__file__).resolve().parents[2]
#: Digests by weights and row.
Digests = dict[tuple[str, str], str]
#: Models whose last bits depend on which rows share a kernel.
STACKED = ("linear 64", "linear 784", "wide")


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Leave out what the owner's log says of each row that fails."""
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture(scope="module", autouse=True)
def _busy() -> Iterator[None]:
    """Have two other threads compute all the while."""
    done = threading.Event()
    square, table = torch.randn(96, 96), np.random.default_rng(0).random((96, 96))

    def multiply() -> None:
        while not done.is_set():
            torch.softmax(square @ square, 1)
            time.sleep(0.02)

    def loop() -> None:
        while not done.is_set():
            np.sort(table @ table).sum()
            time.sleep(0.02)

    threads = [threading.Thread(target=one) for one in (multiply, loop)]
    for thread in threads:
        thread.start()
    yield
    done.set()
    for thread in threads:
        thread.join()


class Fresh:
    """What rows give in processes that computed nothing before, as it becomes known."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "tests.hostile.one_example_fresh"],
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdin is not None
        with self._process.stdin as asked:
            asked.write("\n".join(ZOO))
        self._found: dict[str, Digests] = defaultdict(dict)

    def __getitem__(self, name: str) -> Digests:
        assert self._process.stdout is not None
        last = list(ZOO)[-1]
        for line in self._process.stdout:
            one, weights, row, found = json.loads(line)
            self._found[one][weights, row] = found
            if len(self._found) > list(ZOO).index(name) + 1 and name != last:
                break
        found = self._found[name]
        assert found.keys() == set(FRESH)
        return found

    def end(self) -> None:
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._process.kill()
        self._process.wait()


@pytest.fixture(scope="module")
def fresh() -> Iterator[Fresh]:
    found = Fresh()
    yield found
    found.end()


# Each row after every other.


def tour(places: int) -> list[int]:
    """Return places in an order in which each comes after each, and after itself."""
    left = [list(range(places)) for _ in range(places)]
    stack, found = [0], []
    while stack:
        if left[stack[-1]]:
            stack.append(left[stack[-1]].pop())
        else:
            found.append(stack.pop())
    return found


EVERY_PAIR = tour(len(ROWS))
#: Rows, with those that fail between others.
SHORT = [0, 4, 1, 5, 2, 6, 3, 7, 3, 2, 1, 0]


def poison() -> None:
    """Leave memory that is not empty for the next that takes some."""
    for size in (64, 1_024, 9_000):
        torch.full((size,), 1e30), torch.full((size,), float("nan"))


def digests_of(
    member: Member, make: Callable[..., RowModel] = RowModel, model: nn.Module | None = None
) -> dict[tuple[str, str], set[str]]:
    """Return all that rows give in one process, in passes after each other."""
    model = made(member) if model is None else model
    asked = row_model(member, model, make)
    picked = {kind: weights_of(model, kind) for kind in WEIGHTS}
    found: dict[tuple[str, str], set[str]] = defaultdict(set)
    with known_entropy():
        asked.check(picked["ones"])
        for kind in ("ones", "thousands", "residues", "cancelling", "ones"):
            with asked.passes() as passes:
                asked.check_nothing_kept(passes)
                for place in EVERY_PAIR if kind == "cancelling" else SHORT:
                    poison()
                    one = digest(asked.row(passes, picked[kind], place))
                    found[kind, ROWS[place]].add(one)
    return found


def moved(found: dict[tuple[str, str], set[str]], fresh: Digests) -> list[tuple[str, str]]:
    """Return which rows did not always give what they do in a fresh process."""
    return [
        (kind, row)
        for (kind, row), several in found.items()
        if several != {fresh.get((kind, row), min(several)) if row in GOOD else "none"}
    ]


def test_the_rows_of_a_tour_come_after_each_other() -> None:
    pairs = set(itertools.pairwise(EVERY_PAIR))
    assert len(pairs) == len(ROWS) ** 2 == len(EVERY_PAIR) - 1


@pytest.mark.parametrize("name", ZOO)
def test_a_rows_gradient_is_that_of_a_fresh_process(name: str, fresh: Fresh) -> None:
    assert moved(digests_of(ZOO[name]), fresh[name]) == []


class Stacked(RowModel):
    """Computes a row beside those before it, as one batch."""

    def passes(self) -> IsolatedPasses:
        self._company: list[Any] = []
        return super().passes()

    def row(self, passes: IsolatedPasses, weights: Tensors, index: int) -> torch.Tensor | None:
        try:
            passes.begin({**self._fixed, **weights})
            row = self._rows.read(index)
        except BaseException:
            return None
        self._company = [*self._company, row][-7:]

        def value(learning: Tensors, *parts: torch.Tensor) -> torch.Tensor:
            features, *targets = (part.unsqueeze(0) for part in parts)
            output = functional_call(self._model, {**self._fixed, **learning}, (features,))
            return self._measure(nn.Identity(), (output, *targets)).sum()

        stacked = [torch.stack(parts) for parts in zip(*self._company, strict=True)]
        places = (None, *(0 for _ in stacked))
        found = vmap(grad(value), in_dims=places)(dict(weights), *stacked)
        return torch.cat([found[name][-1].reshape(-1) for name in self._learning])


def test_rows_in_one_batch_would_not_give_it(fresh: Fresh) -> None:
    failed = [name for name in STACKED if moved(digests_of(ZOO[name], Stacked), fresh[name])]
    assert failed == list(STACKED)
    several = digests_of(ZOO["wide"], Stacked)
    assert any(len(digests) > 1 for digests in several.values())


# And the gradient is the right one.


def plain(member: Member, weights: Tensors, row: str) -> tuple[float, Tensors]:
    """Return a row's loss and gradient by ordinary means."""
    model = made(member)
    first: dict[int, str] = {}
    named = model.named_parameters(remove_duplicate=False)
    names = {name: first.setdefault(id(p), name) for name, p in named}
    picked = {name: weights[one] for name, one in names.items() if one in weights}
    model.load_state_dict({**model.state_dict(), **picked})
    learning = {name: p for name, p in model.named_parameters() if p.requires_grad}
    features, target = (part[None] for part in row_of(member, row))
    torch.manual_seed(int.from_bytes(ENTROPY[:8], "little"))
    np.random.seed(np.frombuffer(ENTROPY, np.uint32))  # noqa: NPY002
    random.seed(ENTROPY)
    value = member.loss(model(features), target).sum()
    value.backward()
    found = {
        name: torch.zeros(p.shape) if p.grad is None else p.grad.to_dense()
        for name, p in learning.items()
    }
    return float(value.detach()), found


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", ZOO)
def test_a_rows_gradient_is_that_of_autograd(name: str) -> None:
    member = ZOO[name]
    model = made(member)
    gradients, values = row_model(member, model), row_model(member, model, _of_values)
    nonzero = set(member.may_be_zero)
    for kind, row in (("ones", "plain"), ("ones", "constant"), ("thousands", "plain")):
        weights, index = weights_of(made(member), kind), ROWS.index(row)
        with known_entropy():
            value, by_name = plain(member, weights, row)
            expected = torch.cat([one.reshape(-1) for one in by_name.values()])
            with gradients.passes() as passes:
                found = gradients.row(passes, weights, index)
                assert found is not None
                if expected.isfinite().all():
                    slack = 1e-5 * float(expected.abs().max())
                    torch.testing.assert_close(
                        found, expected, rtol=1e-5, atol=slack, check_dtype=False
                    )
                else:
                    assert digest(found) == "none"
            with values.passes() as passes:
                one = values.row(passes, weights, index)
                assert one is not None
                assert float(one) == pytest.approx(value, rel=1e-5, nan_ok=True)
        nonzero |= {one for one, part in by_name.items() if part.isfinite().all() and part.any()}
    assert nonzero >= weights.keys()


def _of_values(*given: Any) -> RowModel:
    """Return what gives the loss of a row, as for the accuracy."""
    return RowModel(*given[:-1])


@pytest.mark.parametrize("name", ZOO)
def test_a_rows_gradient_is_that_of_the_weights_it_is_given(name: str) -> None:
    member = ZOO[name]
    model = made(member)
    asked, ways = row_model(member, model), [weights_of(model, "ones", seed) for seed in (2, 3, 2)]
    with known_entropy(), asked.passes() as passes:
        one, other, again = (digest(asked.row(passes, way, 0)) for way in ways)
    assert one == again != other
    assert "none" not in (one, other)


# What a row leaves behind.


def steps(member: Member, places: str) -> list[list[str]]:
    """Return what plain rows (p) give beside large ones (h), in steps at two weights."""
    model = made(member)
    picked = [weights_of(model, kind) for kind in ("ones", "thousands")]
    asked = row_model(member, model)
    found: list[list[str]] = []
    for weights, some in zip(picked, (places, "pp"), strict=True):
        with asked.passes() as passes:
            given = [
                (place, digest(asked.row(passes, weights, {"p": 0, "h": 2}[place])))
                for place in some
            ]
        found.append([one for place, one in given if place == "p"])
    return found


def by_themselves(member: Member, places: str) -> list[str]:
    """Return what plain rows give by ordinary means, in passes after each other."""
    model, found = made(member), []
    learning = list(model.parameters())
    for place in places:
        features, target = row_of(member, {"p": "plain", "h": "huge"}[place])
        try:
            value = member.loss(model(features[None]), target[None])
            gradient = torch.cat([one.reshape(-1) for one in torch.autograd.grad(value, learning)])
            one = digest(gradient)
        except (RuntimeError, ZeroDivisionError, SystemExit):
            one = "none"
        found += [one] * (place == "p")
    return found


@pytest.mark.parametrize("leak", HARMLESS)
def test_what_a_row_leaves_behind_moves_no_other(leak: str) -> None:
    member = leaking(HARMLESS[leak])
    with known_entropy(), put_back():
        torch.set_num_threads(1)
        clean = steps(member, "p")
    with known_entropy(), put_back():
        torch.set_num_threads(1)
        found = steps(member, "phpphhp")
    assert found == [clean[0] * 4, clean[1]]
    assert "none" not in found[0]
    with put_back():
        torch.set_num_threads(1)
        torch.manual_seed(0)
        before, after = by_themselves(member, "php")
    assert before != after, "without the package nothing is left behind"


@pytest.mark.parametrize("weights", ["ones", "thousands", "saturated"])
@pytest.mark.parametrize("leak", KEPT)
def test_what_the_public_row_shows_ends_the_plan(leak: str, weights: str) -> None:
    """Also with weights of the server's by which the public row has no gradient."""
    member = leaking(KEPT[leak])
    model, asked = made(member), row_model(member, made(member))
    sent = weights_of(model, "ones" if weights == "saturated" else weights)
    if weights == "saturated":
        sent["out.bias"][int(like(member)[1])] = 1e4
    step = StepSum(asked, 1.0, 2.0**-30)
    with known_entropy(), put_back():
        asked.check(sent)
        step(sent, [[0], [1], [3]])
        with pytest.raises(ReleaseError, match="keep something of a row"):
            step(sent, [[0], [2], [1]])


class Counts(nn.Linear):
    """Counts its calls in a buffer of a name that is given."""

    def __init__(self, name: str) -> None:
        super().__init__(9, 5)
        self.name = name
        self.register_buffer(name, torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.get_buffer(self.name).add_(1)
        return super().forward(x)


class Registers(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.register_buffer("newest", x.detach().clone())
        return super().forward(x)


CHANGING: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "old spectral norm": (lambda: nn.utils.spectral_norm(nn.Linear(9, 5)), "weight_u, weight_v"),
    "spectral norm": (
        lambda: parametrizations.spectral_norm(nn.Linear(9, 5)),
        "parametrizations.weight.0._u, parametrizations.weight.0._v",
    ),
    "instance norm": (
        lambda: nn.Sequential(
            nn.Unflatten(1, (3, 3)),
            nn.InstanceNorm1d(3, track_running_stats=True),
            nn.Flatten(),
            nn.Linear(9, 5),
        ),
        "1.running_mean, 1.running_var",
    ),
    "a count": (lambda: nn.Sequential(Counts("calls")), "0.calls"),
    "a new buffer": (lambda: nn.Sequential(Registers(9, 5)), "0.newest"),
}


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("name", CHANGING)
def test_buffers_that_change_are_refused_by_name(name: str) -> None:
    make, buffers = CHANGING[name]
    member = replace(ZOO["bilinear"], make=make)
    model = made(member)
    with pytest.raises(ValueError, match=f"changes buffers, .*: {buffers}\\. Replace"):
        row_model(member, model).check(weights_of(model, "ones"))


@pytest.mark.parametrize("layer", [nn.BatchNorm1d(5), nn.BatchNorm1d(5, track_running_stats=False)])
def test_statistics_of_a_batch_are_refused(layer: nn.Module) -> None:
    member = replace(ZOO["bilinear"], make=lambda: nn.Sequential(nn.Linear(9, 5), layer.eval()))
    model = made(member)
    if layer.track_running_stats:
        row_model(member, model)
        model.train()
    with pytest.raises(ValueError, match="layer '1' uses the statistics of a batch"):
        row_model(member, model)


def test_parameters_of_two_precisions_are_refused() -> None:
    member = replace(ZOO["bilinear"], make=lambda: nn.Sequential(nn.Linear(9, 5), nn.Linear(5, 5)))
    model = made(member)
    model[1].double()
    with pytest.raises(ValueError, match="must have one dtype"):
        row_model(member, model)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    "compiled", [torch.jit.script, lambda m: torch.jit.trace(m, torch.zeros(1, 9))]
)
@pytest.mark.parametrize("within", [False, True])
def test_models_of_torchscript_are_refused(compiled: Any, within: bool) -> None:
    def make() -> nn.Module:
        found: nn.Module = compiled(nn.Linear(9, 5))
        return nn.Sequential(found) if within else found

    member = replace(ZOO["bilinear"], make=make)
    with pytest.raises(ValueError, match="is of TorchScript"):
        row_model(member, made(member))


# What torch compiles.


def _never(*_: Any) -> Any:
    raise AssertionError("nothing is compiled in a pass")


def _compiled(member: Member) -> Member:
    return replace(member, loss=torch.compile(member.loss, backend=_never))


def _model_compiled(member: Member) -> Member:
    return replace(member, make=lambda: torch.compile(member.make(), backend=_never))


def _checkpointed(member: Member) -> Member:
    from torch.utils.checkpoint import checkpoint

    class Checkpointed(nn.Sequential):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return checkpoint(super().forward, x, use_reentrant=False)  # type: ignore[no-any-return]

    return replace(member, make=lambda: Checkpointed(*member.make().children()))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("change", [_compiled, _model_compiled, _checkpointed])
def test_what_torch_compiles_is_computed_as_it_is_written(
    change: Callable[[Member], Member], fresh: Fresh
) -> None:
    try:
        assert moved(digests_of(change(ZOO["dropout"])), fresh["dropout"]) == []
    finally:
        torch.compiler.reset()


# What is random.


@pytest.mark.parametrize(
    "name", ["dropout", "more dropout", "noise", "lstm, dropout", "transformer"]
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_what_is_random_in_a_pass_is_nobodys_choice(name: str) -> None:
    member = ZOO[name]
    model = made(member)
    asked, weights, found = row_model(member, model), weights_of(model, "ones"), []
    for _ in range(2):
        torch.manual_seed(0)
        np.random.seed(0)  # noqa: NPY002
        random.seed(0)
        with asked.passes() as passes:
            found += [digest(asked.row(passes, weights, 0)) for _ in range(3)]
    assert len(set(found)) == 6


def test_all_is_put_back(fresh: Fresh) -> None:
    def leak(model: Any) -> None:
        for one, _ in HARMLESS.values():
            one(model)

    member = leaking((leak, lambda model, x: model.hidden(x)))
    model = made(member)

    def settings() -> list[Any]:
        return [
            torch.is_grad_enabled(),
            torch.is_autocast_enabled("cpu"),
            torch.is_autocast_cache_enabled(),
            torch.get_default_dtype(),
            torch.get_num_threads(),
            float(torch.tensor(1e-310, dtype=torch.float64) * 0.5),
            torch.get_rng_state().tolist(),
            str(np.random.get_state()),  # noqa: NPY002
            random.getstate(),
            {name: value.tolist() for name, value in model.state_dict().items()},
            [(name, id(one), one.requires_grad) for name, one in model.named_parameters()],
            [(name, id(one), one.training) for name, one in model.named_modules()],
            [vars(one).keys() for one in model.modules()],
        ]

    with put_back():
        torch.set_num_threads(2)
        torch.set_autocast_cache_enabled(True)
        torch.set_default_dtype(torch.float64)
        found = settings()
        asked, weights = row_model(member, model), weights_of(model, "ones")
        with torch.no_grad(), asked.passes() as passes:
            for place in (2, 0, 2):
                asked.row(passes, weights, place)
        assert settings() == found


# Sums of steps, and whole trainings.

UNIT = 2.0**-40


@pytest.mark.parametrize("name", ["linear 784", "max pool", "lstm", "transformer encoder"])
def test_a_sum_is_that_of_what_each_example_gives(name: str) -> None:
    """Each order, each company: what one example adds changes no bit of what the others do."""
    member = ZOO[name]
    model = made(member)
    asked = row_model(member, model)
    asked.check(weights_of(model, "ones"))
    step = StepSum(asked, 1.0, UNIT)
    for kind in ("ones", "cancelling", "residues"):
        weights = weights_of(model, kind)
        with known_entropy():
            alone = {place: step(weights, [[place]]) for place in range(len(ROWS))}
            for some in ([0, 1, 2, 3], [3, 5, 2, 4, 1, 6, 0], [7, 1], [4, 2, 5, 0], [1] * 3):
                total = step(weights, [[], *([place] for place in some), []])
                assert total.equal(torch.stack([alone[place] for place in some]).sum(0))
                assert total.equal(step(weights, [[place] for place in reversed(some)]))
        assert not any(alone[place].any() for place in range(len(GOOD), len(ROWS)))


class Cohort(Data):
    """Eight rows, of which the one before the last fails in a way that is given."""

    def __init__(self, member: Member, failing: str) -> None:
        super().__init__(member)
        self._order = ("plain", "huge", "constant", "late", "plain", "constant", failing, "late")

    def __getitem__(self, index: int) -> Any:
        return row_of(self._member, self._order[index])


def site_of(folder: Path, member: Member, failing: str, **arguments: Any) -> Site:
    given = {
        "model": lambda: made(member),
        "loss": member.loss,
        "data": Cohort(member, failing),
        "like": like(member),
        "groups": range(8),
        **arguments,
    }
    return Site(folder, example="patient", arguments=given)


@pytest.fixture
def trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, bytes]]:
    """Return what trains without noise behind the gate, and returns the bytes of the model."""
    monkeypatch.setattr(private, "noised_whole", lambda whole, unit, rng: whole.double() * unit)

    def train(member: Member, failing: str, kind: str, **arguments: Any) -> dict[str, bytes]:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        model = made(member)
        picked = {**model.state_dict(), **weights_of(model, kind)}
        site = site_of(folder, member, failing, **arguments)
        reply = site.ask(arrays={name: value.numpy() for name, value in picked.items()})
        assert not reply.has_error(), reply.error
        arrays = reply.content.array_records["arrays"]
        return {name: array.numpy().tobytes() for name, array in arrays.items()}

    return train


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("linear 784", "ones"),
        ("linear 784", "residues"),
        ("lstm", "residues"),
        ("tied", "residues"),
        ("spectral norm in evaluation mode, new", "ones"),
    ],
)
def test_how_a_row_fails_and_who_computes_is_not_in_the_model(
    name: str, kind: str, trained: Callable[..., dict[str, bytes]]
) -> None:
    member = ZOO[name]
    found = trained(member, "raises", kind)
    sent = trained(member, "raises", kind, optimizer=lambda p: torch.optim.SGD(p, lr=0.0))
    assert found != sent
    for failing in ("beyond", "exits", "misshapen"):
        assert trained(member, failing, kind) == found
    lost = [0, 1, 2, 3, 4, 5, None, 7]
    assert trained(member, "plain", kind, groups=lost) == found
    assert trained(member, "plain", kind) != found
    assert trained(member, "beyond", kind, workers=2) == found


def test_a_plan_ends_where_something_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What leaves is made of noise alone, of which there is none here; and nothing afterwards."""
    monkeypatch.setattr(private, "noised_whole", lambda whole, unit, rng: whole.double() * unit)
    member = leaking(KEPT["a tensor in a list"])
    site = site_of(tmp_path, member, "raises")
    sent = {name: value.numpy() for name, value in made(member).state_dict().items()}
    first = site.ask("m-1", arrays=sent).content.array_records["arrays"]
    assert all((first[name].numpy() == value).all() for name, value in sent.items())
    assert site.entries()[-1].message_id.startswith("end of run")
    after = site.ask("m-2", arrays=sent, config={"server-round": 2})
    assert after.error.reason == "ldp:refused:budget"
