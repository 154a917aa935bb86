"""The server: Flower's FedAvg over the five sites, each counting the same, or over each alone."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import torch
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from flower_ldp.safe_files import replacing
from flower_ldp.strategies import DPSGDStrategy, grid_with_deadlines
from hospitals_example import centred, data

app = ServerApp()


class _OneSite:
    """A grid that has one of the sites; everything else is passed on."""

    def __init__(self, grid: Grid, node: int) -> None:
        self._grid, self._node = grid, node

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)

    def get_node_ids(self) -> Iterable[int]:
        """Return the site's."""
        return [self._node]


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train, evaluating on the held-out patients after each round, and write a history."""
    config = context.run_config
    patient = grid_with_deadlines(grid, float(config["node-wait"]))
    if config["sites"] == "together":
        histories = [_train(patient, context, data.SITES)]
    elif config["sites"] == "alone":
        nodes = sorted(patient.get_node_ids())
        histories = [_train(cast(Grid, _OneSite(patient, node)), context, 1) for node in nodes]
    else:
        raise ValueError(f"sites must be 'together' or 'alone', got {config['sites']!r}")
    means = [sum(some) / len(histories) for some in zip(*histories, strict=True)]
    for number, accuracy in enumerate(means):
        print(f"round {number}/{len(means) - 1}: accuracy {accuracy:.4f}", flush=True)
    folder = Path(str(config["output-dir"]))
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{config['title']}-history.json"
    found = {"config": dict(config), "accuracy": means, "last": [one[-1] for one in histories]}
    with replacing(path) as file:
        file.write((json.dumps(found, indent=1) + "\n").encode())
    print(f"wrote {path.resolve()}", flush=True)


def _train(grid: Grid, context: Context, sites: int) -> list[float]:
    """Return the accuracy before the first round and after each."""
    config = context.run_config
    _, held = data.load(str(config["evaluate-on"]), int(config["seed"]))
    columns, malignant = map(
        torch.stack, zip(*(held[row] for row in range(len(held))), strict=True)
    )
    model, accuracies = centred.Centred(), list[float]()

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        model.load_state_dict(arrays.to_torch_state_dict())
        with torch.no_grad():
            right = centred.is_right(model(columns), malignant)
        accuracies.append(float(right.mean()))
        return MetricRecord({"accuracy": accuracies[-1]})

    fedavg = FedAvg(fraction_evaluate=0.0, min_train_nodes=sites, min_available_nodes=sites)
    DPSGDStrategy(fedavg).start(
        grid,
        ArrayRecord(model.state_dict()),
        num_rounds=int(config["num-server-rounds"]),
        timeout=float(config["round-timeout"]),
        evaluate_fn=evaluate,
    )
    return accuracies
