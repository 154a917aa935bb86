"""The server: the backbone, and the next token at every place of a window."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from flower_ldp.mechanisms import UnaryEncoding
from flower_ldp.split import TorchTop
from flower_ldp.strategies import SplitStrategy
from flower_ldp.strategies.split_exchange import Exchange
from split_lm import model, text

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train over Flower's grid."""
    run(grid, context.run_config)


class Progress:
    """Prints the loss as training goes, and keeps it.

    Parameters
    ----------
    every : int
        Steps from one line to the next. A line has the mean over them.
    """

    def __init__(self, every: int) -> None:
        self.losses: list[float] = []
        self._every = every

    def __call__(self, step: int, loss: float) -> None:
        """Note the loss of a step."""
        self.losses.append(loss)
        if step == 1 or step % self._every == 0:
            mean = float(np.mean(self.losses[-self._every :]))
            print(f"step {step} loss {mean:.3f}", flush=True)


def run(grid: Grid | Exchange, config: Mapping[str, Any]) -> None:
    """Train, and write what was found."""
    own, found = text.tables(config), text.windows(config)
    width, rate = int(config["width"]), float(config["learning-rate"])
    mechanism = UnaryEncoding(float(config["epsilon"]), int(config["context"]) * width)
    top = TorchTop(model.top(config), lambda parameters: torch.optim.Adam(parameters, rate))
    labels = {table: part.following for table, part in found.items()}
    strategy = SplitStrategy(top, mechanism, own, labels, parties=1)
    progress, epochs = Progress(int(config["log-every"])), int(config["epochs"])
    # No evaluation before the last epoch: test windows are released too, each time.
    result = strategy.start(
        grid,
        epochs=epochs,
        evaluate_every=epochs,
        checkpoint=str(config["checkpoint"]) or None,
        on_step=progress,
    )
    (party,) = result.parties
    print(party.statement(mechanism.record_epsilon), flush=True)
    loss = result.history[-1]["loss-test"]
    print(f"held-out loss {loss:.3f}, perplexity {math.exp(loss):.2f}", flush=True)
    if config["output"]:
        body = {
            "label-epsilon": mechanism.epsilon,
            "bits": mechanism.bits,
            "epsilon-record": epochs * mechanism.record_epsilon,
            "claim": party.claim.kind,
            "held-out": loss,
            "losses": progress.losses,
        }
        Path(str(config["output"])).write_text(json.dumps(body) + "\n", encoding="utf-8")
    print("finished", flush=True)
