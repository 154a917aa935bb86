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


def test_forward_loss_is_the_log_probability_of_the_reports() -> None:
    logits = torch.randn(6, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    reports = [0, 1, 2, 3, 3, 0]
    mixed = logits.softmax(dim=1) @ torch.tensor(RESPONSE.transition())
    expected = -mixed[range(6), reports].log().mean()
    found = forward_loss(logits, torch.tensor(RESPONSE.likelihood(reports)))
    assert float(found) == pytest.approx(float(expected))


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


def minimizer(loss: object, weights: np.ndarray, told: np.ndarray) -> np.ndarray:
    """Return what a loss converges to if each report comes as often as its weight says."""
    logits = torch.zeros(1, 4, requires_grad=True, dtype=torch.float64)
    optimizer = torch.optim.LBFGS([logits], max_iter=500, line_search_fn="strong_wolfe")
    rows = list(zip(weights.tolist(), torch.tensor(told).split(1), strict=True))

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        value = sum(weight * loss(logits, one) for weight, one in rows)  # type: ignore[operator]
        value.backward()
        return value

    optimizer.step(closure)
    return logits.softmax(dim=1).detach().numpy()[0]


def test_what_each_loss_converges_to() -> None:
    chances, sets = RESPONSE.likelihood(range(4)), SubsetSelection(1.0, 4, 2)
    of_sets = sets.likelihood([r for r in range(16) if r.bit_count() == 2])
    law = chances @ TRUTH
    for loss, weights, told, expected in (
        (plain_loss, law, np.arange(4), law),
        (forward_loss, law, chances, TRUTH),
        (forward_loss, of_sets @ TRUTH, of_sets, TRUTH),
        (soft_target_loss, law, posterior(chances, TRUTH), TRUTH),
    ):
        np.testing.assert_allclose(minimizer(loss, weights, told), expected, atol=2e-3)


def test_shapes_that_differ_are_refused() -> None:
    logits = torch.zeros(3, 4)
    with pytest.raises(ValueError, match="likelihood must have the shape"):
        forward_loss(logits, torch.ones(4))
    with pytest.raises(ValueError, match="targets must have the shape"):
        soft_target_loss(logits, torch.ones(3, 3))
