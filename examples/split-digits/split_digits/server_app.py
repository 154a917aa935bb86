"""The server: labels, and a top model over what the parties release."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from numpy.typing import NDArray
from torch import nn

from flower_ldp.clients import private_labels
from flower_ldp.mechanisms import CodebookEmbedding, KaryResponse, UnaryEncoding, best_accuracy
from flower_ldp.privacy import Unit
from flower_ldp.split import TorchTop
from flower_ldp.strategies import CodeTop, NoisyLabels, SplitStrategy
from flower_ldp.strategies.split_exchange import Exchange
from split_digits import data

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train over Flower's grid."""
    run(grid, context)


def run(grid: Grid | Exchange, context: Context) -> None:
    """Train, print a table and write the result."""
    config = context.run_config
    source, epsilon = str(config["data"]), float(config["epsilon"])
    own = data.tables(source, int(config["block-size"]))
    labels = {table: target for table, (_, target) in data.load(source).items()}
    codes = config["mode"] == "codes"
    if codes:
        strategy = _codes(config, own, labels, _noisy(context, labels["train"]))
    else:
        strategy = _bits(config, own, labels)
    checkpoint = None if codes else str(config["checkpoint"]) or None
    epochs = 1 if codes else int(config["epochs"])
    result = strategy.start(grid, epochs=epochs, checkpoint=checkpoint)
    for party in result.parties:
        print(party.statement(strategy.mechanism.record_epsilon), flush=True)
    for row in result.history:
        accuracy = row.get("accuracy-test", float("nan"))
        print(
            f"epoch {row['epoch']:.0f}: loss {row['loss']:.3f}, test accuracy {accuracy:.3f}",
            flush=True,
        )
    releases = 1 if codes else len(result.history)
    total = releases * strategy.mechanism.record_epsilon
    print(f"epsilon of a training record, at each party: at most {total:g} in this run", flush=True)
    if strategy.noisy_labels is not None:
        print(strategy.noisy_labels.statement(), flush=True)
        limit = best_accuracy(epsilon * len(result.parties), 10)
        print(f"no mechanism names a digit more often than {limit:.4f} at this epsilon", flush=True)
    if config["output"]:
        history = {"epsilon-record": total, "history": result.history}
        Path(str(config["output"])).write_text(json.dumps(history, indent=2) + "\n")
    print("finished", flush=True)


def _bits(config: Mapping[str, Any], own: Any, labels: Any) -> SplitStrategy:
    width, rate = int(config["width"]), float(config["learning-rate"])
    torch.manual_seed(1)
    module = nn.Sequential(nn.Linear(2 * width, 128), nn.ReLU(), nn.Linear(128, 10))
    top = TorchTop(module, lambda parameters: torch.optim.Adam(parameters, rate))
    return SplitStrategy(top, UnaryEncoding(float(config["epsilon"]), width), own, labels)


def _codes(config: Mapping[str, Any], own: Any, labels: Any, noisy: NoisyLabels) -> SplitStrategy:
    mechanism = CodebookEmbedding(float(config["epsilon"]), 10)
    return SplitStrategy(CodeTop(10), mechanism, own, labels, noisy_labels=noisy)


def _noisy(context: Context, labels: NDArray[np.int64]) -> NoisyLabels:
    """Randomize the labels, or take from the ledger what came out when that was done.

    The server's operator says with FLOWER_LDP_POLICY which policy, and so which ledger. Another
    epsilon is another draw: it has another name, and is paid for beside the first.
    """
    response = KaryResponse(float(context.run_config["label-epsilon"]), 10, unit=Unit.LABEL)
    name = f"train at {response.epsilon!r}"
    return NoisyLabels(private_labels(context, labels, mechanism=response, name=name))
