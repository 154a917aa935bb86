"""The torch module: bits forward, a clipped straight-through gradient backward."""

from __future__ import annotations

import copy
import math

import pytest

pytest.importorskip("torch")

import torch
from torch import nn

from flower_ldp.mechanisms import NoProtectionWarning, UnaryEncoding
from flower_ldp.split import EmbeddingDP

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("eps", [None, 0.0, 5.0])
@pytest.mark.parametrize("shape", [(6,), (4, 6), (0, 6)])
def test_shape_and_dtype_are_kept_and_values_are_bits(
    dtype: torch.dtype, eps: float | None, shape: tuple[int, ...]
) -> None:
    h = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    before = h.clone()
    found = EmbeddingDP(eps)(h)
    assert (found.shape, found.dtype, found.device) == (h.shape, h.dtype, h.device)
    assert set(found.flatten().tolist()) <= {0.0, 1.0}
    assert torch.equal(h, before)
    if eps is None:
        assert torch.equal(found, (h > 0).to(dtype))


@pytest.mark.parametrize("eps", [None, 0.0, 5.0])
def test_the_gradient_passes_where_h_is_within_one_and_nowhere_else(eps: float | None) -> None:
    h = torch.tensor([[-3.0, -1.0, -0.5, 0.0], [0.5, 1.0, 1.0001, math.inf]], requires_grad=True)
    weight = torch.tensor([[1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]])
    (EmbeddingDP(eps)(h) * weight).sum().backward()
    expected = torch.tensor([[0.0, 2.0, 3.0, 4.0], [5.0, 6.0, 0.0, 0.0]])
    assert h.grad is not None
    assert torch.equal(h.grad, expected)


def test_no_gradient_is_kept_where_none_is_asked_for() -> None:
    assert not EmbeddingDP(5.0)(torch.zeros(3)).requires_grad
    with torch.no_grad():
        assert not EmbeddingDP(5.0)(torch.zeros(3, requires_grad=True)).requires_grad


def test_noise_is_drawn_in_both_modes_and_no_seed_repeats_it() -> None:
    module, h = EmbeddingDP(1.0), torch.ones(64, 64)
    for mode in (True, False):
        module.train(mode)
        torch.manual_seed(1)
        first = module(h)
        torch.manual_seed(1)
        assert not torch.equal(first, module(h))
        # of 4096 bits a share of 0.378 is flipped, with a standard deviation of 0.0076
        assert abs(first.mean().item() - 1 / (1 + math.exp(-0.5))) < 0.05


def test_a_state_dict_is_the_same_with_and_without_it() -> None:
    plain = nn.Sequential(nn.Linear(4, 3), nn.Tanh())
    private = nn.Sequential(nn.Linear(4, 3), EmbeddingDP(5.0))
    assert plain.state_dict().keys() == private.state_dict().keys()
    private.load_state_dict(plain.state_dict())
    assert repr(copy.deepcopy(private)[1]) == "EmbeddingDP(eps=5.0)"


def test_a_bottom_trains_through_it() -> None:
    torch.manual_seed(0)
    x = torch.randn(256, 8)
    y = (x[:, 0] * x[:, 1] > 0).long()
    bottom = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 16))
    start = copy.deepcopy(bottom.state_dict())
    top = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 2))
    optimizer = torch.optim.Adam([*bottom.parameters(), *top.parameters()], 0.01)
    losses = []
    for _ in range(300):
        loss = nn.functional.cross_entropy(top(EmbeddingDP(6.0)(bottom(x))), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert sum(losses[-20:]) / 20 < 0.5 < 0.6 < losses[0]
    assert not torch.equal(start["0.weight"], bottom.state_dict()["0.weight"])


@pytest.mark.parametrize("eps", [-0.1, math.nan, math.inf, True, "1"])
def test_a_wrong_epsilon_is_an_error(eps: float) -> None:
    with pytest.raises(ValueError, match="epsilon must be in"):
        EmbeddingDP(eps)


def test_a_label_above_100_has_the_noise_of_100_and_is_warned_of() -> None:
    with pytest.warns(NoProtectionWarning, match="epsilon 1000000.0 protects nothing"):
        module = EmbeddingDP(1e6)
    assert module.mechanism(8) == UnaryEncoding(100.0, 8)
    with pytest.warns(NoProtectionWarning):
        mechanism = UnaryEncoding.from_published(100.5, 8, one_hot=True)
    assert mechanism == UnaryEncoding(100.0, 8, one_hot=True)
    assert UnaryEncoding.from_published(100.0, 8) == UnaryEncoding(100.0, 8)
    with pytest.raises(ValueError, match="epsilon must be in"):
        UnaryEncoding(100.5, 8)  # what a server proposes is not lowered


@pytest.mark.parametrize("h", [torch.zeros(2, 2, 2), torch.zeros(()), torch.zeros(3, 0)])
def test_a_wrong_shape_is_an_error(h: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="h must have shape"):
        EmbeddingDP(1.0)(h)


@pytest.mark.parametrize("eps", [None, 0.0, 1.0])
def test_nan_becomes_a_fair_bit_without_a_gradient(eps: float | None) -> None:
    h = torch.zeros(4_000, 3)
    h[:, 1] = math.nan
    h.requires_grad_()
    bits = EmbeddingDP(eps)(h)
    bits.sum().backward()
    bits = bits.detach()
    # five standard deviations of a fair coin; the other bits are zeros
    assert abs(float(bits[:, 1].mean()) - 0.5) < 5 * 0.5 / math.sqrt(4_000)
    assert h.grad is not None
    assert h.grad.sum(dim=0).tolist() == [4_000.0, 0.0, 4_000.0]


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.bool])
def test_zeros_and_ones_may_be_integers(dtype: torch.dtype) -> None:
    h = torch.tensor([[0, 1], [1, 0]], dtype=dtype)
    bits = EmbeddingDP(100.0)(h)
    assert bits.dtype == dtype
    assert torch.equal(bits, h)  # but for 1 in 10^21


def test_complex_numbers_are_refused() -> None:
    with pytest.raises(TypeError, match="real numbers"):
        EmbeddingDP(1.0)(torch.zeros(2, dtype=torch.complex64))


def test_one_hot_rows_are_priced_and_others_become_one() -> None:
    module = EmbeddingDP(2.0, one_hot=True)
    assert module(torch.eye(4)).shape == (4, 4)
    assert module.mechanism(128).record_epsilon == 2.0
    assert EmbeddingDP(2.0).mechanism(128).record_epsilon == 128.0
    places = EmbeddingDP(100.0, one_hot=True)(torch.ones(4_000, 4))
    assert places.sum(dim=1).eq(1).all()
    # five standard deviations for each place
    assert (places.mean(dim=0) - 0.25).abs().max() < 5 * math.sqrt(0.25 * 0.75 / 4_000)
