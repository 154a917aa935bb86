"""The server: priors from counts of randomized labels, federated averaging, a history file."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from label_dp_example import data, model
from label_dp_example.priors import find_priors

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Find priors if the method wants them, train, evaluate after each round, write a file."""
    config = context.run_config
    method, seed = str(config["method"]), int(config["seed"])
    _, held = data.load(str(config["data"]), str(config["evaluate-on"]), seed)
    labels = torch.from_numpy(held.labels)
    rounds = int(config["num-server-rounds"])
    net = model.build(held.side, seed)
    history: list[dict[str, float]] = []
    found = find_priors(grid, config, held.side**2) if method == "local-priors" else {}

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        net.load_state_dict(arrays.to_torch_state_dict())
        right = model.accuracy(net, held.images, labels)
        history.append({"round": server_round, "accuracy": round(right, 6)})
        print(f"{method}, round {server_round}/{rounds}: accuracy {right:.4f}", flush=True)
        return MetricRecord({"accuracy": right})

    FedAvg(fraction_evaluate=0.0).start(
        grid, ArrayRecord(net.state_dict()), num_rounds=rounds, evaluate_fn=evaluate
    )
    path = Path(str(config["output-dir"])) / f"{method}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    body = {"config": dict(config), "priors": found, "rounds": history}
    path.write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")
    print(f"wrote {path.name}", flush=True)
