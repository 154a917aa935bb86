"""DP-SGD's guards: one draw, one pass, one noisy step; one row an item; nothing kept but that."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("opacus")
pytest.importorskip("dp_accounting")

import torch
from flwr.app import Context, RecordDict
from opacus.schedulers import ExponentialGradClip, ExponentialNoise
from torch import nn
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    Subset,
    TensorDataset,
)

from flower_ldp.clients.admission import Admission, ReleaseRequest
from flower_ldp.errors import RefusalError, ReleaseError
from flower_ldp.training import PrivateTraining, make_private
from tests.messages import UnrecordedPermit

pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook is firing:UserWarning")

ITEMS, WIDTH = 40, 6


class Charges(Admission):
    """Admits all and counts."""

    def __init__(self) -> None:
        self.terms: list[dict[str, Any]] = []

    def admit(self, request: ReleaseRequest, context: Context) -> UnrecordedPermit:
        self.terms.append(json.loads(request.parameters))
        return UnrecordedPermit()


def data(items: int = ITEMS) -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(items, WIDTH, generator=generator)
    return TensorDataset(features, torch.arange(items) % 3)


def prepared(model: nn.Module | None = None, **changes: Any) -> PrivateTraining:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, 3)) if model is None else model
    dataset = changes.pop("dataset", None) or data()
    size = changes.pop("batch_size", 10)
    optimizer = changes.pop("optimizer", None) or torch.optim.SGD(model.parameters(), lr=0.1)
    collate, workers = changes.pop("collate_fn", None), changes.pop("num_workers", 0)
    loader = DataLoader(dataset, batch_size=size, collate_fn=collate, num_workers=workers)
    context = Context(run_id=1, node_id=0, node_config={}, state=RecordDict(), run_config={})
    settings = {"epsilon": 8.0, "delta": 1e-5, "epochs": 5, "max_grad_norm": 1.0, **changes}
    settings.setdefault("admission", Charges())
    return make_private(model, optimizer, loader, context=context, **settings)


def backward(training: PrivateTraining, batch: Any) -> None:
    features, labels = batch
    training.optimizer.zero_grad()
    nn.functional.cross_entropy(training.model(features), labels).backward()


def weights(training: PrivateTraining) -> torch.Tensor:
    return torch.cat([p.detach().flatten().clone() for p in training.model.parameters()])


def refused(training: PrivateTraining, attempt: Callable[[], Any], match: str) -> None:
    """Assert that an attempt is refused, moves no weight and leaves no gradient to move by."""
    before = weights(training)
    with pytest.raises((ReleaseError, ValueError), match=match):
        attempt()
    assert torch.equal(weights(training), before)


def test_a_second_step_on_one_backward_is_refused() -> None:
    training = prepared()
    backward(training, next(iter(training.loader)))
    training.optimizer.step()
    refused(training, training.optimizer.step, "no fresh gradients")
    training.optimizer.zero_grad()
    refused(training, training.optimizer.step, "no fresh gradients")
    assert training.optimizer.steps_left == training.plan.steps - 1


def test_a_second_pass_over_one_batch_is_refused() -> None:
    training = prepared()
    batch = next(iter(training.loader))
    backward(training, batch)
    training.optimizer.step()
    refused(training, lambda: backward(training, batch), "draw a new batch")
    refused(training, training.optimizer.step, "no fresh gradients|newly drawn batch")


def test_a_pass_that_was_given_up_is_not_repeated() -> None:
    training = prepared()
    batch = next(iter(training.loader))
    backward(training, batch)
    refused(training, lambda: backward(training, batch), "has passed through the model")


def test_batches_kept_from_an_epoch_are_refused() -> None:
    training = prepared()
    kept = list(training.loader)
    backward(training, kept[-1])
    training.optimizer.step()
    for batch in kept:
        refused(training, lambda batch=batch: backward(training, batch), "draw a new batch")


def test_a_batch_of_another_draw_is_refused() -> None:
    training = prepared()
    kept = list(training.loader)
    stale = next(batch for batch in kept if len(batch[0]) != len(kept[-1][0]))
    backward(training, stale)
    refused(training, training.optimizer.step, "one row")


def test_gradients_of_several_batches_do_not_gather() -> None:
    training = prepared()
    batches = iter(training.loader)
    for _ in range(2):
        features, labels = next(batches)
        nn.functional.cross_entropy(training.model(features), labels).backward()
    refused(training, training.optimizer.step, "zero_grad")
    with pytest.raises(NotImplementedError):
        training.optimizer.signal_skip_step()


def test_a_step_needs_the_pass_of_its_own_batch() -> None:
    training = prepared()
    batches = iter(training.loader)
    backward(training, next(batches))
    next(batches)
    refused(training, training.optimizer.step, "passed through the model once")


def test_a_closure_counts_like_any_other_pass() -> None:
    training = prepared()
    batch = next(iter(training.loader))
    before = weights(training)
    training.optimizer.step(lambda: backward(training, batch))
    assert not torch.equal(weights(training), before)
    again = "draw a new batch"
    refused(training, lambda: training.optimizer.step(lambda: backward(training, batch)), again)


def test_parts_of_a_step_count_like_a_whole_one() -> None:
    training = prepared()
    backward(training, next(iter(training.loader)))
    training.optimizer.clip_and_accumulate()
    assert training.optimizer.steps_left == training.plan.steps - 1
    training.optimizer.add_noise()
    refused(training, training.optimizer.add_noise, "not been noised")
    refused(training, training.optimizer.clip_and_accumulate, "no fresh gradients")
    refused(training, training.optimizer.pre_step, "no fresh gradients")


def test_a_step_that_fails_is_counted() -> None:
    class Fails(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:
            raise OSError("disk full")

    model = nn.Sequential(nn.Linear(WIDTH, 3))
    training = prepared(model, optimizer=Fails(model.parameters(), lr=0.1))
    backward(training, next(iter(training.loader)))
    with pytest.raises(OSError, match="disk full"):
        training.optimizer.step()
    assert training.optimizer.steps_left == training.plan.steps - 1
    refused(training, training.optimizer.step, "no fresh gradients")


def test_no_other_optimizer_learns_from_what_was_not_noised() -> None:
    model = nn.Sequential(nn.Linear(WIDTH, 3))
    given = torch.optim.SGD(model.parameters(), lr=0.1)
    training = prepared(model, optimizer=given)
    other = torch.optim.SGD(model.parameters(), lr=0.1)
    before = weights(training)
    backward(training, next(iter(training.loader)))
    assert all(p.grad is None for p in model.parameters())
    other.step()
    assert torch.equal(weights(training), before)
    refused(training, given.step, "has no noise")


def test_steps_noise_and_clipping_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        prepared().optimizer.steps_left = 99  # type: ignore[misc]
    for scheduler in (ExponentialNoise, ExponentialGradClip):
        training = prepared()
        backward(training, next(iter(training.loader)))
        scheduler(training.optimizer, gamma=0.5).step()
        refused(training, training.optimizer.step, "not those that were paid for")
    training = prepared()
    training.optimizer.param_groups.append({"params": [nn.Parameter(torch.zeros(1))], "lr": 1.0})
    backward(training, next(iter(training.loader)))
    refused(training, training.optimizer.step, "not those that were paid for")


def test_copies_step_no_further() -> None:
    """A copied generator would repeat noise; a copied loader would repeat its coins."""
    training = prepared()
    for copying in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="cannot be copied"):
            copying(training.optimizer)
    with pytest.raises(TypeError, match="cannot be copied"):
        copy.deepcopy(training)
    copied = copy.deepcopy(training.model)  # as averaging of weights does
    with torch.no_grad():
        copied(torch.zeros(2, WIDTH))
    refused(training, lambda: copied(torch.zeros(2, WIDTH)), "draw a new batch")


def test_a_second_training_of_one_model_is_refused_before_it_is_charged() -> None:
    model, charges = nn.Sequential(nn.Linear(WIDTH, 3)), Charges()
    prepared(model)
    with pytest.raises(ValueError, match="hooks"):
        prepared(model, admission=charges)
    assert not charges.terms


def test_after_training_the_model_is_an_ordinary_one() -> None:
    training = prepared()
    model = training.model.to_standard_module()
    model(torch.ones(2, WIDTH)).sum().backward()
    assert all(p.grad is not None for p in model.parameters())


def test_a_refused_charge_leaves_model_and_optimizer_as_they_were() -> None:
    class Refuses(Admission):
        def admit(self, request: ReleaseRequest, context: Context) -> UnrecordedPermit:
            raise RefusalError("ldp:refused:budget", "no")

    model = nn.Sequential(nn.Linear(WIDTH, 3))
    given = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(RefusalError):
        prepared(model, optimizer=given, admission=Refuses())
    before = model[0].weight.detach().clone()
    model(torch.ones(2, WIDTH)).square().sum().backward()
    given.step()
    assert not torch.equal(model[0].weight, before)


def test_workers_load_the_same_batches() -> None:
    training = prepared(num_workers=1, epochs=1)
    for batch in training.loader:
        backward(training, batch)
        training.optimizer.step()
    assert training.optimizer.steps_left == 0


def doubled(items: list[Any]) -> Any:
    return torch.utils.data.default_collate([row for item in items for row in (item, item)])


def first_twice(items: list[Any]) -> Any:
    return torch.utils.data.default_collate([items[0]] * len(items))


def mixed(items: list[Any]) -> Any:
    features, labels = torch.utils.data.default_collate(items)
    return (features + features.flip(0)) / 2, labels


def test_a_collate_that_makes_two_rows_of_an_item_is_refused() -> None:
    training = prepared(collate_fn=doubled)
    with pytest.raises(ValueError, match="exactly one row"):
        next(iter(training.loader))


@pytest.mark.parametrize("collate", [first_twice, mixed])
def test_whatever_the_collate_each_row_is_of_its_item(collate: Callable[[list[Any]], Any]) -> None:
    features, labels = next(iter(prepared(collate_fn=collate).loader))
    items = {tuple(row.tolist()): int(label) for row, label in data()}
    assert [items.pop(tuple(row.tolist())) for row in features] == labels.tolist()


def test_rows_share_no_memory_with_the_data() -> None:
    dataset = data()
    known = dataset.tensors[0].clone()
    training = prepared(dataset=dataset, collate_fn=lambda items: [t[None] for t in items[0]])
    for features, _ in training.loader:
        features.zero_()
    assert torch.equal(dataset.tensors[0], known)


def test_items_that_the_app_doubles_are_refused() -> None:
    training = prepared()
    features, labels = next(iter(training.loader))
    backward(training, (torch.cat([features, features]), torch.cat([labels, labels])))
    refused(training, training.optimizer.step, "one row")


class Several(Dataset[Any]):
    """Gives two items for each index, if it is asked for many."""

    def __len__(self) -> int:
        return ITEMS

    def __getitem__(self, index: int) -> Any:
        return data()[index]

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices for _ in range(2)]


def test_a_data_set_gives_one_item_for_an_index() -> None:
    batches = [features for features, _ in prepared(dataset=Several()).loader]
    assert all(len({tuple(row.tolist()) for row in rows}) == len(rows) for rows in batches)


@pytest.mark.parametrize(
    "dataset",
    [
        Subset(data(), [0, 1, 1, 2] * 5),
        ConcatDataset([data()] * 2),
        Subset(ConcatDataset([data()] * 2), list(range(50))),
    ],
    ids=["subset", "joined", "subset of joined"],
)
def test_data_that_hold_an_item_twice_are_refused(dataset: Dataset[Any]) -> None:
    charges = Charges()
    with pytest.raises(ValueError, match="must occur once"):
        prepared(dataset=dataset, admission=charges)
    assert not charges.terms


class Running(nn.Module):
    """Keeps a running mean, under no name that a list of layers could know."""

    def __init__(self, *, persistent: bool = True, rate: float = 0.5) -> None:
        super().__init__()
        self.rate = rate
        self.register_buffer("seen", torch.zeros(WIDTH), persistent=persistent)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        if len(rows):
            self.seen.lerp_(rows.detach().mean(0), self.rate)
        return rows


class Late(nn.Module):
    """Makes its buffer when it first sees data."""

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        self.register_buffer("seen", rows.detach().sum(0))
        return rows


class FrozenWeight(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.seen = nn.Parameter(torch.zeros(WIDTH), requires_grad=False)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        self.seen.data = rows.detach().sum(0)
        return rows


@pytest.mark.parametrize(
    "layer", [Running(), Running(persistent=False), Late(), FrozenWeight()], ids=str
)
@pytest.mark.parametrize("without_gradient", [False, True])
def test_what_a_forward_pass_keeps_is_undone_and_refused(
    layer: nn.Module, without_gradient: bool
) -> None:
    training = prepared(nn.Sequential(layer, nn.Linear(WIDTH, 3)))
    features, _ = next(iter(training.loader))

    def attempt() -> None:
        with torch.set_grad_enabled(not without_gradient):
            training.model(features)

    with pytest.raises(ReleaseError, match="has been undone"):
        attempt()
    assert not any(value.any() for value in (*layer.buffers(), *layer.parameters()))


def test_a_buffer_changed_past_the_model_is_refused_at_the_step() -> None:
    layer = Running(rate=0.0)
    training = prepared(nn.Sequential(layer, nn.Linear(WIDTH, 3)))
    batch = next(iter(training.loader))
    backward(training, batch)
    layer.seen += batch[0].sum(0)
    refused(training, training.optimizer.step, "has been undone")
    assert not layer.seen.any()


@pytest.mark.parametrize(
    "layer",
    [
        nn.BatchNorm1d(WIDTH),
        nn.BatchNorm1d(WIDTH, affine=False),
        nn.BatchNorm1d(WIDTH, affine=False, track_running_stats=False),
        nn.Sequential(
            nn.Unflatten(1, (1, WIDTH)),
            nn.InstanceNorm1d(1, track_running_stats=True),
            nn.Flatten(),
        ),
    ],
    ids=str,
)
def test_layers_that_gather_statistics_are_refused_before_the_charge(layer: nn.Module) -> None:
    charges = Charges()
    with pytest.raises(ValueError, match="cannot be trained so"):
        prepared(nn.Sequential(layer, nn.Linear(WIDTH, 3)), admission=charges)
    assert not charges.terms


class Centred(nn.Module):
    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return rows - rows.mean(0)


class AttendsAcross(nn.Module):
    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return torch.softmax(rows @ rows.T, 1) @ rows


@pytest.mark.parametrize("layer", [Centred(), AttendsAcross()], ids=str)
def test_layers_that_mix_rows_are_refused_before_they_see_data(layer: nn.Module) -> None:
    training = prepared(nn.Sequential(layer, nn.Linear(WIDTH, 3)))
    batch = next(iter(training.loader))
    refused(training, lambda: backward(training, batch), "mixes the rows")


class Weighted(nn.Module):
    """A weight of its own, which Opacus handles by functorch; a constant buffer; options."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(WIDTH))

    def forward(self, rows: torch.Tensor, shift: Any = None) -> torch.Tensor:
        return rows * self.scale


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Dropout(0.5), nn.Linear(WIDTH, 3)),
        nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3)),
        nn.Sequential(Weighted(), nn.Linear(WIDTH, 3)),
        nn.Sequential(nn.Unflatten(1, (2, 3)), nn.GroupNorm(1, 2), nn.Flatten(), nn.Linear(6, 3)),
        nn.Sequential(nn.Linear(WIDTH, 3).requires_grad_(False), nn.Linear(3, 3)),
        nn.Sequential(nn.BatchNorm1d(WIDTH, affine=False).eval(), nn.Linear(WIDTH, 3)),
    ],
    ids=str,
)
def test_layers_that_do_neither_are_trained(model: nn.Module) -> None:
    training = prepared(model)
    for batch in training.loader:
        backward(training, batch)
        training.optimizer.step()
    with torch.no_grad():
        training.model(torch.zeros(2, WIDTH))
    assert training.optimizer.steps_left == training.plan.steps - len(training.loader)


def test_an_optimizer_of_other_parameters_is_refused_before_the_charge() -> None:
    charges = Charges()
    other = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    with pytest.raises(ValueError, match="parameters only"):
        prepared(optimizer=other, admission=charges)
    model = nn.Sequential(nn.Linear(WIDTH, 3).requires_grad_(False), nn.Linear(3, 3))
    none = torch.optim.SGD(model[0].parameters(), lr=0.1)
    with pytest.raises(ValueError, match="can be trained"):
        prepared(model, optimizer=none, admission=charges)
    assert not charges.terms


def test_parameters_that_the_pass_does_not_reach_are_refused() -> None:
    model = nn.ModuleDict({"used": nn.Linear(WIDTH, 3), "idle": nn.Linear(WIDTH, 3)})
    model.forward = lambda rows: model["used"](rows)  # type: ignore[method-assign]
    training = prepared(model)
    backward(training, next(iter(training.loader)))
    refused(training, training.optimizer.step, "for every parameter")


def test_dividing_by_the_size_of_the_batch_is_refused() -> None:
    """It would tell how many took part, and with that who did."""
    training = prepared()
    batch = next(iter(training.loader))
    backward(training, batch)
    training.optimizer.expected_batch_size = len(batch[0]) + 11
    refused(training, training.optimizer.step, "not those that were paid for")


def test_gradients_from_before_do_not_move_frozen_parameters() -> None:
    model = nn.Sequential(nn.Linear(WIDTH, 6), nn.Linear(6, 3))
    model(data()[:5][0]).sum().backward()
    model[0].requires_grad_(False)
    kept = model[0].weight.clone()
    training = prepared(model)
    backward(training, next(iter(training.loader)))
    for p in model[0].parameters():
        p.grad = torch.ones_like(p)
    training.optimizer.step()
    assert torch.equal(model[0].weight, kept)


class InitialisedByData(nn.Module):
    """Scales its weights by the first batch, as some initialisations do."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if torch.is_grad_enabled():
            self.layer.weight.data = self.layer.weight.data / x.std()
        return self.layer(x)  # type: ignore[no-any-return]


def test_weights_that_a_pass_changes_are_put_back() -> None:
    training = prepared(InitialisedByData())
    batch = next(iter(training.loader))
    refused(training, lambda: backward(training, batch), "training changed")


@pytest.mark.parametrize("frozen_first", [False, True])
def test_what_learns_cannot_be_chosen_anew(frozen_first: bool) -> None:
    model = nn.Sequential(nn.Linear(WIDTH, 6), nn.Linear(6, 3))
    model[0].requires_grad_(not frozen_first)
    training = prepared(model, optimizer=torch.optim.SGD(model[1].parameters(), lr=0.1))
    model[0].requires_grad_(frozen_first)
    batch = next(iter(training.loader))
    refused(training, lambda: backward(training, batch), "training changed")
    assert model[0].weight.requires_grad is not frozen_first
    backward(training, next(iter(training.loader)))
    training.optimizer.step()


def test_after_a_pass_that_was_given_up_training_goes_on() -> None:
    training = prepared()
    batches = iter(training.loader)
    training.model(next(batches)[0])
    for _ in range(2):
        backward(training, next(batches))
        training.optimizer.step()


@pytest.mark.parametrize("length", [0.0, 5e-324, 1e-200, 1e200, float("inf"), float("nan")])
def test_lengths_that_numbers_cannot_hold_are_refused(length: float) -> None:
    charges = Charges()
    with pytest.raises(ValueError, match="max_grad_norm must be"):
        prepared(max_grad_norm=length, admission=charges)
    assert not charges.terms


class Streamed(IterableDataset[Any]):
    def __len__(self) -> int:
        return ITEMS

    def __iter__(self) -> Any:
        return iter(data())


def test_a_stream_is_refused_before_the_charge() -> None:
    charges = Charges()
    with pytest.raises(ValueError, match="by index"):
        prepared(dataset=Streamed(), admission=charges)
    assert not charges.terms


DATA = data()


@pytest.mark.parametrize(
    "dataset",
    [
        Subset(DATA, torch.tensor([0, 0, *range(20)])),  # type: ignore[arg-type]
        Subset(DATA, [0, -ITEMS, *range(1, 20)]),
        ConcatDataset([DATA, Subset(DATA, [1, 2])]),
        ConcatDataset([Subset(DATA, range(20)), Subset(Subset(DATA, range(30)), range(19, 30))]),
    ],
)
def test_an_item_reached_in_two_ways_is_refused(dataset: Dataset[Any]) -> None:
    with pytest.raises(ValueError, match="each item must occur once"):
        prepared(dataset=dataset)
