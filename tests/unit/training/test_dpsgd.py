"""DP-SGD: the charge, the coins, the clipped sum, the noise, and training on real data."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("opacus")
pytest.importorskip("dp_accounting")
pytest.importorskip("sklearn")

import numpy as np
import torch
from flwr.app import Context, RecordDict
from scipy import stats
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from flower_ldp.accounting.dpsgd import SampledGaussian
from flower_ldp.accounting.ledger import Ledger
from flower_ldp.errors import RefusalError, ReleaseError
from flower_ldp.mechanisms import RandomSource
from flower_ldp.privacy import PrivacyEvent, Unit
from flower_ldp.training import ExactDPOptimizer, PoissonBatches, PrivateTraining, make_private
from flower_ldp.training.draws import Draws

pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook is firing:UserWarning")

FAILURE = 1e-6
POLICY = """
data_id: digits
ledger: ledger.sqlite
mode: simulation
messages:
  train:
    dpsgd: {epsilon: 8.0, delta: 1.0e-4, unit: example}
budgets:
  example:
    life: {epsilon: 8.0, delta: 1.0e-4}
"""


@pytest.fixture
def owner(tmp_path: Path) -> Context:
    path = tmp_path / "policy.yaml"
    path.write_text(POLICY)
    return Context(
        run_id=3,
        node_id=7,
        node_config={"ldp-policy": str(path), "partition-id": 0},
        state=RecordDict(),
        run_config={},
    )


def digits() -> TensorDataset:
    images, labels = load_digits(return_X_y=True)
    return TensorDataset(torch.tensor(images / 16.0, dtype=torch.float32), torch.tensor(labels))


def prepared(context: Context, **changes: Any) -> PrivateTraining:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 10))
    settings: dict[str, Any] = {
        "epsilon": 8.0,
        "delta": 1e-4,
        "epochs": 2,
        "max_grad_norm": 1.0,
        **changes,
    }
    loader = DataLoader(digits(), batch_size=settings.pop("batch_size", 100))
    model = settings.pop("model", model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    return make_private(model, optimizer, loader, context=context, **settings)


def trained(training: PrivateTraining, epochs: int) -> float:
    for _ in range(epochs):
        for features, labels in training.loader:
            training.optimizer.zero_grad()
            nn.functional.cross_entropy(training.model(features), labels).backward()
            training.optimizer.step()
    images, labels = digits().tensors
    with torch.no_grad():
        return float((training.model(images).argmax(1) == labels).float().mean())


def test_training_is_charged_per_example_and_learns(owner: Context, tmp_path: Path) -> None:
    training = prepared(owner)
    assert training.event == PrivacyEvent("dpsgd", 8.0, 1e-4, Unit.EXAMPLE)
    assert training.plan == SampledGaussian(training.plan.noise_multiplier, 100 / 1797, 36)
    assert training.plan.epsilon(1e-4) <= 8.0
    with Ledger.open(tmp_path / "ledger.sqlite", read_only=True) as ledger:
        (entry,) = list(ledger.entries())
        (event,) = entry.events
        assert (event.mechanism, event.unit, str(event.cost)) == (
            "dpsgd",
            "example",
            "epsilon 8, delta 0.0001",
        )
        assert '"steps":36' in entry.parameters
    assert trained(training, 2) > 0.6
    with pytest.raises(ReleaseError, match="all steps that were paid for"):
        trained(training, 1)


def test_a_second_training_is_charged_again_and_the_budget_ends(owner: Context) -> None:
    prepared(owner)
    with pytest.raises(RefusalError) as caught:
        prepared(owner)
    assert caught.value.code == "ldp:refused:budget"


def test_a_refused_training_leaves_the_model_as_it_was(owner: Context) -> None:
    model = nn.Sequential(nn.Linear(64, 10))
    with pytest.raises(RefusalError):
        prepared(owner, model=model, epsilon=9.0)
    prepared(owner, model=model)
    with pytest.raises(ValueError, match="hooks"):
        prepared(owner, model=model)


def test_without_a_policy_there_is_no_training(owner: Context) -> None:
    owner.node_config.pop("ldp-policy")
    with pytest.raises(RefusalError) as caught:
        prepared(owner)
    assert caught.value.code == "ldp:refused:policy"


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({"epsilon": 0.0}, "epsilon must be in"),
        ({"delta": 0.0}, "delta must be in"),
        ({"epochs": 0}, "epochs must be an integer"),
        ({"max_grad_norm": math.inf}, "max_grad_norm must be in"),
        ({"batch_size": 2_000}, "batch size in"),
        ({"batch_size": None}, "must have a batch size"),
        ({"model": nn.Sequential(nn.Linear(64, 10), nn.BatchNorm1d(10))}, "cannot be trained so"),
    ],
)
def test_what_is_wrong_is_refused_before_it_is_charged(
    changes: dict[str, Any], wanted: str, owner: Context, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=wanted):
        prepared(owner, **changes)
    assert not (tmp_path / "ledger.sqlite").exists()


def test_batches_take_each_example_by_its_own_coin() -> None:
    batches = list(PoissonBatches(200, 50, 4_000, RandomSource.seeded(1)))
    assert len(batches) == 4_000
    counts = np.bincount(np.concatenate([np.array(b, int) for b in batches]), minlength=200)
    spread = ((counts - 1_000) ** 2 / (4_000 * 0.25 * 0.75)).sum()
    assert stats.chi2(200).sf(spread) > FAILURE
    assert stats.chi2(200).cdf(spread) > FAILURE
    # sizes are binomial, not fixed
    sizes = np.array([len(b) for b in batches])
    assert sizes.var() == pytest.approx(200 * 0.25 * 0.75, rel=0.15)
    assert all(b == sorted(set(b)) for b in batches)


def test_batches_of_all_and_refusals() -> None:
    assert list(PoissonBatches(5, 5, 2, RandomSource.seeded(1))) == [[0, 1, 2, 3, 4]] * 2
    for arguments in ((0, 1, 1), (5, 0, 1), (5, 6, 1), (5, 2, 0)):
        with pytest.raises(ValueError, match="must be"):
            PoissonBatches(*arguments)


def stepped(
    gradients: list[list[float]], *, noise: float = 1e-6, norm: float = 1.0, seed: int = 1
) -> torch.Tensor:
    """Return the noisy gradient of one step on these examples' gradients."""
    parameter = nn.Parameter(torch.zeros(len(gradients[0])))
    parameter.grad_sample = torch.tensor(gradients)
    draws = Draws()
    draws.drawn(len(gradients))
    draws.passed()
    optimizer = ExactDPOptimizer(
        torch.optim.SGD([parameter], lr=1.0),
        noise_multiplier=noise,
        max_grad_norm=norm,
        expected_batch_size=1,
        steps=1,
        draws=draws,
        rng=RandomSource.seeded(seed),
    )
    optimizer.step()
    assert optimizer.steps_left == 0
    return -parameter.detach()


def test_each_example_is_clipped_by_itself() -> None:
    found = stepped([[30.0, 40.0], [0.1, 0.0], [0.0, -2e30]])
    torch.testing.assert_close(found, torch.tensor([0.7, -0.2]), atol=1e-4, rtol=0)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_an_example_whose_gradient_is_not_finite_counts_as_zero(bad: float) -> None:
    found = stepped([[bad, 0.0], [0.3, 0.4]])
    torch.testing.assert_close(found, torch.tensor([0.3, 0.4]), atol=1e-4, rtol=0)


def test_noise_has_the_stated_deviation_and_follows_the_normal_law() -> None:
    found = stepped([[0.0] * 20_000], noise=3.0, norm=0.5).numpy()
    assert stats.kstest(found / 1.5, "norm").pvalue > FAILURE


def test_the_noisy_sum_lies_on_the_grid_whatever_the_gradients() -> None:
    """In double precision the grid is seen: low-order bits tell nothing about the sum."""
    parameter = nn.Parameter(torch.zeros(1_000, dtype=torch.float64))
    parameter.grad_sample = torch.full((3, 1_000), 1 / 3, dtype=torch.float64) / 40
    draws = Draws()
    draws.drawn(3)
    draws.passed()
    optimizer = ExactDPOptimizer(
        torch.optim.SGD([parameter], lr=1.0),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        expected_batch_size=1,
        steps=1,
        draws=draws,
    )
    optimizer.clip_and_accumulate()
    optimizer.add_noise()
    steps = parameter.grad.numpy() / optimizer.unit  # type: ignore[union-attr]
    np.testing.assert_allclose(steps, np.round(steps), atol=1e-3)
    assert len(np.unique(steps)) == 1_000


def test_an_empty_batch_is_noise_alone(owner: Context) -> None:
    training = prepared(owner, batch_size=1, epochs=1)
    features, labels = next(batch for batch in training.loader if not len(batch[0]))
    assert features.shape == (0, 64)
    assert labels.dtype == torch.int64
    before = [p.detach().clone() for p in training.model.parameters()]
    training.optimizer.zero_grad()
    nn.functional.cross_entropy(training.model(features), labels).backward()
    training.optimizer.step()
    moves = [p.detach() - b for p, b in zip(training.model.parameters(), before, strict=True)]
    assert moves[0].isfinite().all()
    assert float(moves[0].std()) == pytest.approx(training.plan.noise_multiplier, rel=0.15)
