"""Losses on randomized labels: what they are, and what their minimizers are."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import numpy as np
import torch

from flower_ldp.labels import posterior
from flower_ldp.labels.losses import forward_loss, plain_loss, soft_target_loss
from flower_ldp.mechanisms import KaryResponse, SubsetSelection

RESPONSE = KaryResponse(1.0, 4)
TRUTH = np.array([0.7, 0.2, 0.1, 0.0])


def likelihood(reports: torch.Tensor) -> torch.Tensor:
    return torch.tensor(RESPONSE.likelihood(reports.numpy()), dtype=torch.float32)


def test_forward_loss_is_the_log_probability_of_the_reports() -> None:
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(6, 4, generator=generator)
    reports = torch.tensor([0, 1, 2, 3, 3, 0])
    mixed = logits.softmax(dim=1).double() @ torch.tensor(RESPONSE.transition())
    expected = -mixed[torch.arange(6), reports].log().mean()
    assert float(forward_loss(logits, likelihood(reports))) == pytest.approx(
        float(expected), rel=1e-5
    )


def test_without_noise_all_losses_are_cross_entropy() -> None:
    logits, labels = torch.tensor([[1.0, 2.0, -1.0], [0.0, 0.5, 3.0]]), torch.tensor([1, 0])
    sure = torch.nn.functional.one_hot(labels, 3).float()
    expected = float(torch.nn.functional.cross_entropy(logits, labels))
    assert float(plain_loss(logits, labels)) == expected
    assert float(soft_target_loss(logits, sure)) == pytest.approx(expected)
    assert float(forward_loss(logits, sure)) == pytest.approx(expected)


def test_losses_stay_finite_where_a_report_is_all_but_impossible() -> None:
    logits = torch.tensor([[200.0, -200.0]], requires_grad=True)
    loss = forward_loss(logits, torch.tensor([[0.0, 1.0]]))
    loss.backward()
    assert float(loss.detach()) == pytest.approx(400.0)
    assert torch.isfinite(logits.grad).all()


def minimizer(loss: object) -> np.ndarray:
    logits = torch.zeros(1, 4, requires_grad=True)
    optimizer = torch.optim.LBFGS([logits], max_iter=500, line_search_fn="strong_wolfe")

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        value = loss(logits)  # type: ignore[operator]
        value.backward()
        return value

    optimizer.step(closure)
    return logits.softmax(dim=1).detach().numpy()[0]


def test_the_forward_loss_of_sets_converges_to_the_truth() -> None:
    mechanism = SubsetSelection(1.0, 4, 2)
    # All reports of one input, each as often as the law says.
    reports = np.array([r for r in range(16) if r.bit_count() == 2])
    chances = mechanism.likelihood(reports)
    weights, seen = torch.tensor(chances @ TRUTH), torch.tensor(chances)

    def forward(logits: torch.Tensor) -> torch.Tensor:
        each = [forward_loss(logits.double(), row[None]) for row in seen]
        return (weights * torch.stack(each)).sum()

    np.testing.assert_allclose(minimizer(forward), TRUTH, atol=2e-3)


def test_what_each_loss_converges_to() -> None:
    # All reports of one input, each as often as the law says.
    law = TRUTH @ RESPONSE.transition()
    reports = torch.arange(4)
    weights = torch.tensor(law, dtype=torch.float32)

    def plain(logits: torch.Tensor) -> torch.Tensor:
        each = [plain_loss(logits, reports[i : i + 1]) for i in range(4)]
        return (weights * torch.stack(each)).sum()

    def forward(logits: torch.Tensor) -> torch.Tensor:
        each = [forward_loss(logits, likelihood(reports[i : i + 1])) for i in range(4)]
        return (weights * torch.stack(each)).sum()

    targets = torch.tensor(posterior(RESPONSE.likelihood(np.arange(4)), TRUTH), dtype=torch.float32)

    def soft(logits: torch.Tensor) -> torch.Tensor:
        each = [soft_target_loss(logits, targets[i : i + 1]) for i in range(4)]
        return (weights * torch.stack(each)).sum()

    np.testing.assert_allclose(minimizer(plain), law, atol=1e-3)
    np.testing.assert_allclose(minimizer(forward), TRUTH, atol=2e-3)
    np.testing.assert_allclose(minimizer(soft), TRUTH, atol=1e-3)


def test_shapes_that_differ_are_refused() -> None:
    logits = torch.zeros(3, 4)
    with pytest.raises(ValueError, match="likelihood must have the shape"):
        forward_loss(logits, torch.ones(4))
    with pytest.raises(ValueError, match="targets must have the shape"):
        soft_target_loss(logits, torch.ones(3, 3))
