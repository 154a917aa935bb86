"""A vision transformer of 5.4 million weights for images of 28 x 28, and LoRA adapters of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from _networks import batches, descend
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention

PATCH, WIDTH, DEPTH, HEADS, CLASSES = 14, 384, 3, 8, 5
#: Of a layer's adapter: its rank, and the factor of its output times the rank.
RANK, ALPHA = 4, 8
_EPOCHS, _BATCH, _RATE = 3, 64, 5e-4


class Block(nn.Module):
    """Attention and a network of two layers, each after a normalization."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.query, self.key = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.value, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Return tokens, shape (batch, tokens, width), for such."""
        y = self.before(x)
        three = (
            layer(y).unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        x = x + self.out(scaled_dot_product_attention(*three).transpose(1, 2).flatten(2))
        found: Tensor = x + self.down(gelu(self.up(self.between(x))))
        return found


class VisionTransformer(nn.Module):
    """Four patches of an image as tokens, and a linear head on their mean."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(PATCH**2, WIDTH)
        self.place = nn.Parameter(0.02 * torch.randn((28 // PATCH) ** 2, WIDTH))
        self.blocks = nn.Sequential(*(Block() for _ in range(DEPTH)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        """Return outputs, shape (batch, 5), for images, shape (batch, 28, 28)."""
        tokens = images.unfold(1, PATCH, PATCH).unfold(2, PATCH, PATCH).flatten(3).flatten(1, 2)
        found: Tensor = self.head(self.norm(self.blocks(self.embed(tokens) + self.place)).mean(1))
        return found


def public_model(images: Tensor, labels: Tensor, kept: Path) -> VisionTransformer:
    """Return the model trained on public images; it is kept in a file."""
    torch.manual_seed(0)
    model = VisionTransformer()
    if not kept.exists():
        rows = list(batches(len(images), _BATCH, _EPOCHS, whole=True))
        optimizer = torch.optim.AdamW(model.parameters(), lr=_RATE)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, _RATE, total_steps=len(rows))
        descend(optimizer, rows, lambda at: cross_entropy(model(images[at]), labels[at]), schedule)
        torch.save(model.state_dict(), kept)
    model.load_state_dict(torch.load(kept))
    return model


def adapted(model: VisionTransformer, *, head_alone: bool = False) -> Any:
    """Return the model with a new head, and unless ``head_alone`` with adapters of attention.

    The other weights are the model's own, and do not learn.
    """
    nn.init.zeros_(model.head.weight)
    nn.init.zeros_(model.head.bias)
    if head_alone:
        model.requires_grad_(False)
        model.head.requires_grad_(True)
        return model
    torch.manual_seed(0)  # all sites begin with the same adapters
    layers = ["query", "value"]
    return get_peft_model(
        model, LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=layers, modules_to_save=["head"])
    )


def size(model: nn.Module, *, learning: bool = False) -> int:
    """Return the number of weights, or of those that learn."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad or not learning)
