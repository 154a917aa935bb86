"""The agreement of public rows' gradients is the mean product of two, and needs enough rows."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from torch import nn

from flower_ldp.training import public_agreement, supervised

SQUARES = supervised(lambda output, target: ((output - target) ** 2).sum())


def rows(number: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    torch.manual_seed(4)
    return [(torch.randn(3) + 0.5, torch.tensor([1.0 + i % 3])) for i in range(number)]


@pytest.mark.parametrize("clip", [None, 2.0])
def test_it_is_the_mean_product_of_two_rows(clip: float | None) -> None:
    torch.manual_seed(5)
    model, data, found = nn.Linear(3, 1), rows(30), []
    before = [p.detach().clone() for p in model.parameters()]
    for x, y in data:
        model.zero_grad()
        ((model(x) - y) ** 2).sum().backward()
        gradient = np.concatenate([p.grad.numpy().ravel() for p in model.parameters()])  # type: ignore[union-attr]
        norm = np.linalg.norm(gradient)
        factor = 1 / (norm + 0.01) if clip is None else min(1.0, clip / norm) / clip
        found.append(factor * gradient)
    products = np.array(found) @ np.array(found).T
    expected = products[~np.eye(30, dtype=bool)].mean()
    assert public_agreement(model, data, SQUARES, clip=clip) == pytest.approx(expected, rel=1e-4)
    assert all(map(torch.equal, before, model.parameters()))


def test_weights_that_do_not_learn_count_nowhere() -> None:
    torch.manual_seed(6)
    whole, data = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1)), rows(25)
    head = nn.Sequential(whole[0], whole[1])
    whole[0].requires_grad_(False)
    features = [(whole[0](x).detach(), y) for x, y in data]
    alone = public_agreement(whole[1], features, SQUARES)
    assert public_agreement(head, data, SQUARES) == pytest.approx(alone, rel=1e-4)


def test_a_frozen_base_may_have_a_dtype_that_numpy_lacks() -> None:
    torch.manual_seed(6)
    base = nn.Linear(3, 2).bfloat16().requires_grad_(False)
    head, data = nn.Linear(2, 1), rows(25)
    widened = [(base(x.bfloat16()).float(), y) for x, y in data]

    class Widened(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.base, self.head = base, head

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = self.head(self.base(x.bfloat16()).float())
            return found

    alone = public_agreement(head, widened, SQUARES)
    assert public_agreement(Widened(), data, SQUARES) == pytest.approx(alone, rel=1e-4)


def test_too_few_rows_are_refused() -> None:
    with pytest.raises(ValueError, match="rows must be at least 20, got 19"):
        public_agreement(nn.Linear(3, 1), rows(19), SQUARES)


def test_a_row_that_fails_is_told() -> None:
    with pytest.raises(ValueError, match="shape"):
        public_agreement(nn.Linear(3, 1), [*rows(25), (torch.zeros(4), torch.zeros(1))], SQUARES)
