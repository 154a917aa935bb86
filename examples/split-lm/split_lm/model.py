"""A causal transformer, cut after its embedding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from split_lm.text import TOKENS


class Bottom(nn.Module):
    """The party's part: embeddings of tokens and of their places, added.

    Small numbers to begin with: gradients pass the quantizer where they are in [-1, 1].

    Parameters
    ----------
    context, width : int
        Tokens of a window, and numbers of an embedding.
    """

    def __init__(self, context: int, width: int) -> None:
        super().__init__()
        self.token = nn.Embedding(TOKENS, width)
        self.place = nn.Parameter(torch.randn(context, width) * 0.1)
        nn.init.normal_(self.token.weight, std=0.5)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return embeddings, shape (windows, context * width); tokens may be floats."""
        return (self.token(tokens.long()) + self.place).flatten(1)


class Top(nn.Module):
    """The server's part: the backbone, which sees at each place what is not behind it.

    It has places of its own: where a token is, is no secret, and need not come through noise.

    Parameters
    ----------
    context, width, layers : int
        Tokens of a window, bits of an embedding and numbers of the backbone's, its layers.
    """

    def __init__(self, context: int, width: int, layers: int) -> None:
        super().__init__()
        self.shape = (context, width)
        self.first = nn.Linear(width, width)
        self.place = nn.Parameter(torch.randn(context, width) * 0.02)
        layer = nn.TransformerEncoderLayer(
            width, 4, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(width)
        self.last = nn.Linear(width, TOKENS)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(context))

    def forward(self, embeddings: Tensor) -> Tensor:
        """Return scores, shape (windows, tokens, context), as cross-entropy wants them."""
        found = self.first(2 * embeddings.unflatten(1, self.shape) - 1) + self.place
        return self.last(self.norm(self.layers(found, mask=self.mask, is_causal=True))).mT


def bottom(config: Mapping[str, Any]) -> Bottom:
    """Return the party's part with its first weights."""
    torch.manual_seed(2 * int(config["seed"]))
    return Bottom(int(config["context"]), int(config["width"]))


def top(config: Mapping[str, Any]) -> Top:
    """Return the server's part with its first weights."""
    torch.manual_seed(2 * int(config["seed"]) + 1)
    return Top(int(config["context"]), int(config["width"]), int(config["layers"]))
