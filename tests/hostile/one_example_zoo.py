"""Models of every kind of layer that torch offers, with the rows that they are for.

Layers of one kind share a model where each sees its own part of the input.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations, parametrize

Make = Callable[[], nn.Module]
Loss = Callable[[Any, torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Form:
    """Shape of a row's part, and whether its entries are real numbers or integers below a bound."""

    shape: tuple[int, ...] = ()
    below: int = 0
    dtype: torch.dtype = torch.float32


@dataclass(frozen=True)
class Member:
    """A model of the zoo."""

    name: str
    make: Make
    features: Form
    target: Form
    loss: Loss
    #: Parameters whose gradient is zero by nature, or depends on the row.
    may_be_zero: tuple[str, ...] = ()


ZOO: dict[str, Member] = {}
LABEL = Form((), 5)


def add(
    name: str,
    make: Make,
    features: Form | tuple[int, ...],
    target: Form = LABEL,
    loss: Loss = functional.cross_entropy,
    may_be_zero: tuple[str, ...] = (),
) -> None:
    form = features if isinstance(features, Form) else Form(features)
    ZOO[name] = Member(name, make, form, target, loss, may_be_zero)


class Of(nn.Module):
    """Layers, and the function that uses them."""

    def __init__(self, function: Callable[..., Any], **layers: nn.Module | nn.Parameter) -> None:
        super().__init__()
        self.function = function
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(self, x)


def of(function: Callable[..., Any], **makers: Callable[[], Any]) -> Make:
    return lambda: Of(function, **{name: make() for name, make in makers.items()})


def chain(*makers: Callable[[], nn.Module]) -> Make:
    return lambda: nn.Sequential(*(make() for make in makers))


def linear(inputs: int, outputs: int = 5, **more: Any) -> Make:
    return lambda: nn.Linear(inputs, outputs, **more)


def parameter(*shape: int) -> Callable[[], nn.Parameter]:
    return lambda: nn.Parameter(torch.randn(shape))


def ended(layer: Callable[[], nn.Module], entries: int) -> Make:
    """Return a layer, ReLU and the classes."""
    return chain(layer, nn.ReLU, nn.Flatten, linear(entries))


def quiet(make: Make) -> Make:
    """Return what makes a model without the warnings of layers that torch advises against."""

    def made() -> nn.Module:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return make()

    return made


# Linear layers.

for features in (30, 33, 64, 784):
    add(f"linear {features}", ended(linear(features, 24), 24), (features,))
add("wide", chain(linear(784, 256), nn.ReLU, linear(256, 64), nn.ReLU, linear(64)), (784,))
add("bilinear", of(lambda m, x: m.two(x, x.flip(1)), two=lambda: nn.Bilinear(9, 9, 5)), (9,))
add("without a bias", linear(33, 5, bias=False), (33,))


class Activations(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(33, 8)
        self.layers = nn.ModuleList(
            make()
            for make in (
                *(nn.ReLU, nn.ReLU6, nn.GELU, nn.Tanh, nn.Sigmoid, nn.Softplus, nn.SiLU, nn.Mish),
                *(nn.ELU, nn.CELU, nn.SELU, nn.PReLU, nn.LeakyReLU, nn.RReLU, nn.Hardtanh),
                *(nn.Hardswish, nn.Hardsigmoid, nn.Softsign, nn.Softshrink, nn.Hardshrink),
                *(nn.Tanhshrink, nn.LogSigmoid, lambda: nn.GELU("tanh"), lambda: nn.Softmin(1)),
                *(lambda: nn.Softmax(1), lambda: nn.LogSoftmax(1), lambda: nn.Threshold(0.1, 0.5)),
            )
        )
        self.out = nn.Linear(8 * len(self.layers) + 4, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.hidden(x)
        parts = [layer(hidden) for layer in self.layers]
        return self.out(torch.cat([*parts, functional.glu(hidden)], 1))  # type: ignore[no-any-return]


add("activations", Activations, (33,))

# Convolutions and pooling.

add("conv1d", ended(lambda: nn.Conv1d(3, 8, 5, padding=2), 8 * 33), (3, 33))
add("conv2d", ended(lambda: nn.Conv2d(1, 8, 3), 8 * 26 * 26), (1, 28, 28))
add("conv2d, strides", ended(lambda: nn.Conv2d(4, 8, 3, 2, 2, 2, groups=4), 8 * 4 * 4), (4, 8, 8))
add(
    "conv2d, circular",
    ended(lambda: nn.Conv2d(3, 4, 3, 1, 1, 1, 1, True, "circular"), 256),
    (3, 8, 8),
)
add("conv3d", ended(lambda: nn.Conv3d(2, 4, 3), 4 * 27), (2, 5, 5, 5))
add("conv transposed 1d", ended(lambda: nn.ConvTranspose1d(3, 4, 3, 2), 4 * 19), (3, 9))
add("conv transposed 2d", ended(lambda: nn.ConvTranspose2d(3, 4, 3, 2, 1, 1), 4 * 64), (3, 4, 4))
add("conv transposed 3d", ended(lambda: nn.ConvTranspose3d(2, 3, 2), 3 * 64), (2, 3, 3, 3))
add(
    "max pool",
    chain(lambda: nn.Conv2d(1, 6, 3, padding=1), lambda: nn.MaxPool2d(2), nn.Flatten, linear(294)),
    (1, 14, 14),
)


def _pooled(model: Any, x: torch.Tensor) -> torch.Tensor:
    plane, line = model.plane(x), model.line(x.flatten(2))
    parts = [
        functional.max_pool1d(line, 3),
        functional.avg_pool2d(plane, 2),
        functional.adaptive_avg_pool2d(plane, 3),
        functional.adaptive_max_pool2d(plane, 3),
        functional.lp_pool2d(plane.abs() + 0.1, 2.0, 2),
        functional.max_pool3d(plane[:, None], 2),
        functional.fractional_max_pool2d(plane, 2, output_size=3),
        functional.max_unpool2d(*functional.max_pool2d(plane, 2, return_indices=True), 2),
    ]
    return model.out(torch.cat([part.flatten(1) for part in parts], 1))  # type: ignore[no-any-return]


add(
    "more pools",
    of(
        _pooled,
        line=lambda: nn.Conv1d(2, 4, 1),
        plane=lambda: nn.Conv2d(2, 4, 3, padding=1),
        out=linear(4 * 21 + 4 * 16 + 3 * 36 + 4 * 16 + 2 * 16 + 4 * 64),
    ),
    (2, 8, 8),
)
add(
    "padding and resizing",
    chain(
        lambda: nn.Conv2d(2, 4, 3),
        lambda: nn.ReflectionPad2d(1),
        lambda: nn.ReplicationPad2d(1),
        lambda: nn.CircularPad2d(1),
        lambda: nn.Upsample(size=(9, 9), mode="bilinear"),
        lambda: nn.Upsample(size=(8, 8), mode="bicubic"),
        lambda: nn.PixelUnshuffle(2),
        lambda: nn.ChannelShuffle(4),
        lambda: nn.PixelShuffle(2),
        lambda: nn.Unfold(4, stride=4),
        lambda: nn.Fold((8, 8), 4, stride=4),
        lambda: nn.Softmax2d(),
        nn.Flatten,
        linear(256),
    ),
    (2, 6, 6),
)
add(
    "a spatial transformer",
    of(
        lambda m, x: m.out(
            functional.grid_sample(
                x,
                functional.affine_grid(
                    torch.tanh(m.where(x.flatten(1))).reshape(-1, 2, 3),
                    list(x.shape),
                    align_corners=False,
                ),
                align_corners=False,
            ).flatten(1)
        ),
        where=linear(64, 6),
        out=linear(64),
    ),
    (1, 8, 8),
)

# Norms.

add("layer norm", chain(linear(30, 16), lambda: nn.LayerNorm(16), nn.ReLU, linear(16)), (30,))
add("rms norm", chain(linear(33, 16), lambda: nn.RMSNorm(16), nn.Tanh, linear(16)), (33,))
add(
    "group norm",
    chain(lambda: nn.Conv2d(3, 8, 3), lambda: nn.GroupNorm(4, 8), nn.ReLU, nn.Flatten, linear(288)),
    (3, 8, 8),
)
add(
    "instance norm",
    chain(
        lambda: nn.Conv2d(3, 4, 3),
        lambda: nn.InstanceNorm2d(4, affine=True),
        lambda: nn.LocalResponseNorm(2),
        nn.Flatten,
        linear(144),
    ),
    (3, 8, 8),
    may_be_zero=("0.bias",),
)


def _with_averages(*layers: nn.Module) -> nn.Module:
    model = nn.Sequential(*layers).eval()
    for buffer in model.buffers():
        if buffer.is_floating_point():
            buffer.copy_(torch.rand(buffer.shape) + 0.5)
    return model


add(
    "batch norm in evaluation mode",
    lambda: _with_averages(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.BatchNorm1d(144)
    ).append(nn.Linear(144, 5)),
    (1, 8, 8),
)
add(
    "instance norm in evaluation mode",
    lambda: _with_averages(
        nn.Conv1d(2, 4, 3), nn.InstanceNorm1d(4, track_running_stats=True), nn.Flatten()
    ).append(nn.Linear(28, 5)),
    (2, 9),
)
for kind, norm in (("old", nn.utils.weight_norm), ("new", parametrizations.weight_norm)):
    add(
        f"weight norm, {kind}",
        quiet(lambda norm=norm: ended(lambda: norm(nn.Linear(33, 9)), 9)()),
        (33,),
    )
for kind, norm in (("old", nn.utils.spectral_norm), ("new", parametrizations.spectral_norm)):
    add(
        f"spectral norm in evaluation mode, {kind}",
        quiet(lambda norm=norm: ended(lambda: norm(nn.Linear(30, 9)), 9)().eval()),
        (30,),
    )
add(
    "a cached parametrization",
    of(
        lambda m, x: _cached(m, x),
        layer=lambda: parametrizations.weight_norm(nn.Linear(8, 8)),
        out=linear(8),
    ),
    (8,),
)
add(
    "orthogonal",
    chain(lambda: parametrizations.orthogonal(nn.Linear(6, 6)), nn.Tanh, linear(6)),
    (6,),
)


def _cached(model: Any, x: torch.Tensor) -> torch.Tensor:
    with parametrize.cached():
        return model.out(torch.relu(model.layer(torch.tanh(model.layer(x)))))  # type: ignore[no-any-return]


# Embeddings. Rows of words.

WORDS = Form((12,), 40)


def embedded(layer: Callable[[], nn.Module]) -> Make:
    return of(lambda m, x: m.out(m.words(x).reshape(1, -1)), words=layer, out=linear(12 * 6))


add("embedding", embedded(lambda: nn.Embedding(40, 6, padding_idx=0)), WORDS)
add("embedding, clipped", embedded(lambda: nn.Embedding(40, 6, max_norm=1.0)), WORDS)
add("embedding, sparse", embedded(lambda: nn.Embedding(40, 6, sparse=True)), WORDS)
add("embedding, by count", embedded(lambda: nn.Embedding(40, 6, scale_grad_by_freq=True)), WORDS)
for mode in ("sum", "mean", "max"):
    add(
        f"embedding bag, {mode}",
        chain(lambda mode=mode: nn.EmbeddingBag(40, 8, mode=mode, max_norm=2.0), linear(8)),
        WORDS,
    )
add("embedding bag, sparse", chain(lambda: nn.EmbeddingBag(40, 8, sparse=True), linear(8)), WORDS)

# Recurrent layers.


def recurrent(layer: Callable[[], nn.Module], width: int) -> Make:
    return of(lambda m, x: m.out(m.layer(x)[0].mean(1)), layer=layer, out=linear(width))


SEQUENCE = (7, 5)
add("rnn", recurrent(lambda: nn.RNN(5, 8, batch_first=True), 8), SEQUENCE)
add("rnn, relu", recurrent(lambda: nn.RNN(5, 8, 2, "relu", batch_first=True), 8), SEQUENCE)
add("lstm", recurrent(lambda: nn.LSTM(5, 8, batch_first=True), 8), SEQUENCE)
add("gru", recurrent(lambda: nn.GRU(5, 8, batch_first=True), 8), SEQUENCE)
add(
    "lstm, both ways",
    recurrent(lambda: nn.LSTM(5, 8, 2, batch_first=True, bidirectional=True), 16),
    SEQUENCE,
)
add(
    "lstm, dropout",
    recurrent(lambda: nn.LSTM(5, 8, 2, batch_first=True, dropout=0.5, proj_size=4), 4),
    SEQUENCE,
)
add(
    "gru, packed",
    of(
        lambda m, x: m.out(
            m.layer(nn.utils.rnn.pack_padded_sequence(x, torch.tensor([5]), batch_first=True))[1][
                -1
            ]
        ),
        layer=lambda: nn.GRU(5, 8, batch_first=True, bidirectional=True),
        out=linear(8),
    ),
    SEQUENCE,
    may_be_zero=(
        "layer.weight_ih_l0",
        "layer.weight_hh_l0",
        "layer.bias_ih_l0",
        "layer.bias_hh_l0",
    ),
)


def _cells(model: Any, x: torch.Tensor) -> torch.Tensor:
    one, two, (three, kept) = (torch.zeros(1, 6), torch.zeros(1, 6), (torch.zeros(1, 6),) * 2)
    for word in x.unbind(1):
        one, two = model.rnn(word, one), model.gru(word, two)
        three, kept = model.lstm(word, (three, kept))
    return model.out(torch.cat([one, two, three], 1))  # type: ignore[no-any-return]


add(
    "cells",
    of(
        _cells,
        rnn=lambda: nn.RNNCell(5, 6),
        gru=lambda: nn.GRUCell(5, 6),
        lstm=lambda: nn.LSTMCell(5, 6),
        out=linear(18),
    ),
    SEQUENCE,
)

# Attention.

TEXT = (6, 8)
add(
    "attention",
    of(
        lambda m, x: m.out(m.layer(x, x, x)[0].flatten(1)),
        layer=lambda: nn.MultiheadAttention(8, 2, batch_first=True),
        out=linear(48),
    ),
    TEXT,
)
add(
    "attention, masked",
    of(
        lambda m, x: m.out(
            m.layer(x, x, x, attn_mask=torch.ones(6, 6).tril() == 0, need_weights=False)[0].flatten(
                1
            )
        ),
        layer=lambda: nn.MultiheadAttention(
            8, 2, 0.25, add_bias_kv=True, add_zero_attn=True, batch_first=True
        ),
        out=linear(48),
    ),
    TEXT,
)
add(
    "attention, causal",
    of(
        lambda m, x: m.out(
            functional.scaled_dot_product_attention(
                *m.layer(x).reshape(1, 6, 2, 12).transpose(1, 2).chunk(3, -1), is_causal=True
            ).flatten(1)
        ),
        layer=linear(8, 24),
        out=linear(48),
    ),
    TEXT,
)
add(
    "transformer encoder",
    chain(
        lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True),
        lambda: nn.TransformerEncoderLayer(
            8, 2, 16, 0.0, "gelu", batch_first=True, norm_first=True
        ),
        nn.Flatten,
        linear(48),
    ),
    TEXT,
)
add(
    "transformer encoder in evaluation mode",
    lambda: nn.Sequential(
        nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), nn.Flatten(), nn.Linear(48, 5)
    ).eval(),
    TEXT,
)
add(
    "transformer",
    of(
        lambda m, x: m.out(m.layer(x, x.flip(1)).flatten(1)),
        layer=lambda: nn.Transformer(8, 2, 1, 1, 16, 0.1, batch_first=True),
        out=linear(48),
    ),
    TEXT,
)

# What is random in a pass.

add("dropout", chain(linear(64, 32), nn.ReLU, lambda: nn.Dropout(0.5), linear(32)), (64,))
add(
    "more dropout",
    chain(
        lambda: nn.Conv2d(2, 6, 3),
        lambda: nn.Dropout2d(0.3),
        nn.SELU,
        lambda: nn.FeatureAlphaDropout(0.2),
        lambda: nn.AlphaDropout(0.2),
        nn.Flatten,
        linear(54),
    ),
    (2, 5, 5),
)


def _noisy(model: Any, x: torch.Tensor) -> torch.Tensor:
    hidden = model.hidden(x)
    hidden = hidden * (1 + torch.randn_like(hidden)) + random.gauss(0, 1)
    hidden = hidden * torch.as_tensor(np.random.random(hidden.shape), dtype=x.dtype)  # noqa: NPY002
    picked = functional.gumbel_softmax(hidden) * torch.bernoulli(torch.full_like(hidden, 0.7))
    return model.out(hidden + picked)  # type: ignore[no-any-return]


add("noise", of(_noisy, hidden=linear(16, 16), out=linear(16)), (16,))

# Numbers.

add("float64", ended(linear(33, 16, dtype=torch.float64), 16), (33,))
ZOO["float64"] = Member(
    "float64",
    lambda: ended(linear(33, 16), 16)().double(),
    Form((33,), dtype=torch.float64),
    LABEL,
    functional.cross_entropy,
)
add(
    "two precisions",
    of(
        lambda m, x: m.out(m.first(x).double()),
        first=lambda: nn.Linear(30, 9).requires_grad_(False),
        out=linear(9, dtype=torch.float64),
    ),
    (30,),
)


def _autocast(model: Any, x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        hidden = torch.relu(model.hidden(x))
        hidden = hidden + torch.relu(model.hidden(x + 1))
    return model.out(hidden.float())  # type: ignore[no-any-return]


add("autocast", of(_autocast, hidden=linear(64, 32), out=linear(32)), (64,))
add(
    "complex numbers",
    of(
        lambda m, x: m.out(
            torch.view_as_real(
                torch.fft.rfft(m.hidden(x)) * torch.view_as_complex(m.filter)
            ).flatten(1)
        ),
        hidden=linear(30, 32),
        filter=parameter(17, 2),
        out=linear(34),
    ),
    (30,),
)


def _algebra(model: Any, x: torch.Tensor) -> torch.Tensor:
    square = torch.tanh(model.hidden(x)).reshape(-1, 4, 4)
    good = square @ square.mT + torch.eye(4)
    found = [torch.linalg.inv(good), torch.linalg.cholesky(good), torch.matrix_exp(square)]
    values = [
        torch.linalg.eigvalsh(good),
        torch.linalg.svdvals(square),
        torch.logdet(good)[:, None],
    ]
    near = torch.cdist(square, good) + torch.einsum("bij,bjk,bkl->bil", square, good, square)
    return model.out(torch.cat([one.flatten(1) for one in (*found, *values, near)], 1))  # type: ignore[no-any-return]


add("algebra", of(_algebra, hidden=linear(9, 16), out=linear(64 + 9)), (9,))


def _sorted(model: Any, x: torch.Tensor) -> torch.Tensor:
    hidden = model.hidden(x)
    top, where = hidden.topk(5)
    parts = [
        hidden.sort(1).values.cumsum(1),
        top,
        hidden.gather(1, where.flip(1)),
        hidden.cumprod(1),
    ]
    parts.append(torch.zeros_like(hidden).index_add(1, where[0] // 2, top))
    parts.append(torch.zeros_like(hidden).scatter_reduce(1, where // 3, top, "amax"))
    parts.append(torch.sparse.mm(hidden[0].reshape(4, 4).to_sparse(), model.mixed).reshape(1, -1))
    parts.append(hidden.logsumexp(1, keepdim=True) + hidden.median() + hidden.amax() + hidden.std())
    return model.out(torch.cat(parts, 1))  # type: ignore[no-any-return]


add("sorting", of(_sorted, hidden=linear(30, 16), mixed=parameter(4, 3), out=linear(87)), (30,))

# Parameters.


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 16)
        self.second.weight = self.first.weight
        self.words = nn.Linear(16, 5, bias=False)
        self.register_buffer("centre", torch.randn(16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.words(torch.relu(self.second(torch.tanh(self.first(x - self.centre)))))  # type: ignore[no-any-return]


class Frozen(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(33, 16), nn.Linear(16, 5)
        self.body.requires_grad_(False)
        self.scales = nn.ParameterList([torch.ones(16), torch.zeros(16)])
        self.more = nn.ParameterDict({"shift": torch.zeros(5)})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(self.body(x)) * self.scales[0] + self.scales[1]
        return self.head(hidden) + self.more["shift"]  # type: ignore[no-any-return]


add("tied", Tied, (16,))
add("frozen", Frozen, (33,))
add(
    "an unused parameter",
    of(lambda m, x: m.used(x), used=linear(9), unused=linear(9)),
    (9,),
    may_be_zero=("unused.weight", "unused.bias"),
)

# Programs.


class Rebinding(nn.Module):
    """Keeps a centre of what it saw, a count, and layers that it makes anew."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.out = nn.Linear(16, 16), nn.Linear(16, 5)
        self.centre, self.calls = torch.zeros(16), 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.centre = 0.5 * self.centre + 0.5 * x.mean(0)
        hidden = self.hidden(x - self.centre) * self.calls
        self.out.scale = float(x.detach().abs().max())
        self.hidden, self.extra = nn.Identity(), nn.Linear(2, 2)
        return self.out(torch.relu(hidden))  # type: ignore[no-any-return]


add("rebinding", Rebinding, (16,))


def scripted(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    first = torch.tanh(x @ weight)
    second = torch.sigmoid(first) * first + first * 1.3 - first / 3.7
    third = torch.exp(torch.sin(second)) * second
    return nn.functional.gelu(third) + nn.functional.layer_norm(third, [int(third.size(1))])


def scripted_loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    apart = torch.sigmoid(output) * output.tanh() - output / 3.7
    return torch.nn.functional.cross_entropy(torch.exp(torch.sin(apart)) * apart, target)


add(
    "scripted", of(lambda m, x: m.out(scripted(x, m.w)), w=parameter(33, 64), out=linear(64)), (33,)
)
add("scripted loss", linear(33), (33,), loss=scripted_loss)


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, *found: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return 2 * x * found[0]


def _own_gradient(model: Any, x: torch.Tensor) -> torch.Tensor:
    hidden = Doubled.apply(model.hidden(x))
    slope = torch.autograd.grad(model.out(torch.tanh(hidden)).sum(), hidden, create_graph=True)[0]
    side_by_side = torch.func.vmap(lambda one: torch.tanh(model.hidden(one)))(x.repeat(3, 1))
    return model.out(hidden + slope + side_by_side.sum(0))  # type: ignore[no-any-return]


add("gradients of gradients", of(_own_gradient, hidden=linear(9, 9), out=linear(9)), (9,))


def _routed(model: Any, x: torch.Tensor) -> torch.Tensor:
    gates = torch.softmax(model.gate(x), 1)
    best = int(gates[0].argmax())
    hidden = model.experts[best](x) * gates[:, best]
    steps = 1 + int(x.detach().abs().max() > 2)
    for _ in range(steps):
        hidden = torch.relu(model.again(hidden))
    return model.out(hidden)  # type: ignore[no-any-return]


add(
    "routing",
    of(
        _routed,
        gate=linear(12, 3),
        experts=lambda: nn.ModuleList([nn.Linear(12, 8) for _ in range(3)]),
        again=linear(8, 8),
        out=linear(8),
    ),
    (12,),
    may_be_zero=tuple(f"experts.{i}.{part}" for i in range(3) for part in ("weight", "bias")),
)

# Losses.

REAL = Form((5,))
LOSSES: dict[str, tuple[Loss, Form]] = {
    "mean squares": (nn.MSELoss(), REAL),
    "huber": (functional.huber_loss, REAL),
    "l1": (functional.l1_loss, REAL),
    "two classes": (lambda o, t: functional.binary_cross_entropy_with_logits(o, t.sigmoid()), REAL),
    "likelihood": (lambda o, t: functional.nll_loss(o.log_softmax(1), t), LABEL),
    "smoothed": (nn.CrossEntropyLoss(torch.arange(1.0, 6.0), label_smoothing=0.1), LABEL),
    "kl": (lambda o, t: functional.kl_div(o.log_softmax(1), t.softmax(1), reduction="sum"), REAL),
    "poisson": (lambda o, t: functional.poisson_nll_loss(torch.tanh(o), t.exp()), REAL),
    "gaussian": (lambda o, t: functional.gaussian_nll_loss(o, t, o * o + 1), REAL),
    "cosine": (lambda o, t: 1 - functional.cosine_similarity(o, t), REAL),
    "triplet": (lambda o, t: functional.triplet_margin_loss(o, t, -t, 9.0), REAL),
    "margins": (functional.multi_margin_loss, LABEL),
    "focal": (lambda o, t: (functional.cross_entropy(o, t).neg().exp() - 1) ** 2 * o.std(), LABEL),
}
for name, (measure, form) in LOSSES.items():
    add(f"loss: {name}", ended(linear(30, 9), 9), (30,), form, measure)
add(
    "loss: ctc",
    of(lambda m, x: m.out(x).log_softmax(2).transpose(0, 1), out=linear(8, 6)),
    (9, 8),
    Form((3,), 4),
    lambda o, t: functional.ctc_loss(o, t + 1, torch.tensor([9]), torch.tensor([3])),
)
add(
    "loss: adaptive softmax",
    of(
        lambda m, x: (m, m.hidden(x)),
        hidden=linear(12, 12),
        out=lambda: nn.AdaptiveLogSoftmaxWithLoss(12, 20, [5, 10], div_value=2.0),
    ),
    (12,),
    Form((), 20),
    lambda o, t: o[0].out(o[1], t).loss,
    may_be_zero=tuple(f"out.tail.{i}.{j}.weight" for i in range(2) for j in range(2)),
)
