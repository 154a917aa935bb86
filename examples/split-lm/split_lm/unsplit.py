"""The same model in one piece, to compare: in floats, with bare bits, and with random bits.

These runs protect nothing or say nothing, so there is nothing to release: no party, no policy.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from flower_ldp.split import EmbeddingDP
from split_lm import model, text
from split_lm.server_app import Progress

#: What takes the place of the randomizer.
CUTS: dict[str, nn.Module] = {
    "float": nn.Identity(),
    "quantized": EmbeddingDP(None),
    "random bits": EmbeddingDP(0.0),
}


def train(cut: nn.Module, config: Mapping[str, Any]) -> dict[str, Any]:
    """Train with the same windows in the same blocks; return losses and held-out loss."""
    own, found = text.tables(config), text.windows(config)
    module = nn.Sequential(model.bottom(config), cut, model.top(config))
    optimizer = torch.optim.Adam(module.parameters(), float(config["learning-rate"]))
    progress = Progress(int(config["log-every"]))

    def loss(table: str, rows: NDArray[np.int64]) -> torch.Tensor:
        tokens = torch.from_numpy(found[table].tokens[rows].astype(np.int64))
        following = torch.from_numpy(found[table].following[rows])
        return nn.functional.cross_entropy(module(tokens), following)

    order = np.random.default_rng(int(config["seed"]))
    for _ in range(int(config["epochs"])):
        for block in order.permutation(own.blocks("train")):
            found_loss = loss("train", own.rows("train", int(block)))
            optimizer.zero_grad()
            found_loss.backward()
            optimizer.step()
            progress(len(progress.losses) + 1, found_loss.item())
    module.eval()
    total = 0.0
    with torch.no_grad():
        for block in range(own.blocks("test")):
            rows = own.rows("test", block)
            total += loss("test", rows).item() * len(rows)
    held_out = total / len(found["test"].tokens)
    print(f"held-out loss {held_out:.3f}", flush=True)
    return {"held-out": held_out, "losses": progress.losses}
