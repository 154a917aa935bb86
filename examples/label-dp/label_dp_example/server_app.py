"""The server: priors from counts of randomized labels, federated averaging, a history file."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from flower_ldp.strategies import grid_with_deadlines
from label_dp_example import data, model
from label_dp_example.priors import ask_record, connected, find_priors

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Find priors if the method wants them, train, evaluate after each round, write a file."""
    config = context.run_config
    grid = grid_with_deadlines(grid)
    method, seed = str(config["method"]), int(config["seed"])
    _, held = data.load(*data.source(context))
    labels = torch.from_numpy(held.labels)
    rounds = int(config["num-server-rounds"])
    first = int(config["first-stage-rounds"]) if method == "lp-2st" else 0
    net = model.build(held.side, seed)
    history: list[dict[str, float]] = []

    def train(arrays: ArrayRecord, before: int, rounds: int) -> ArrayRecord:
        """Train for some rounds, after others, and return the model."""

        def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
            if before and not server_round:
                return None  # evaluated as the last of the rounds before
            net.load_state_dict(arrays.to_torch_state_dict())
            right = model.accuracy(net, held.images, labels)
            number = before + server_round
            history.append({"round": number, "accuracy": round(right, 6)})
            print(f"{method}, round {number}/{total}: accuracy {right:.4f}", flush=True)
            return MetricRecord({"accuracy": right})

        told = ConfigRecord({"rounds": rounds})
        result = FedAvg(fraction_evaluate=0.0).start(
            grid, arrays, num_rounds=rounds, train_config=told, evaluate_fn=evaluate
        )
        return result.arrays

    total = first + rounds
    uses_priors = method in ("local-priors", "lp-2st")
    found = find_priors(grid, config, held.side**2) if uses_priors else {}
    arrays = ArrayRecord(net.state_dict())
    if first:
        arrays = train(arrays, 0, first)
        ask_record(grid, connected(grid), "query.second", arrays)
        print("the second stage's labels are randomized, with the model as prior", flush=True)
    train(arrays, first, rounds)
    path = Path(str(config["output-dir"])) / f"{method}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    body = {"config": dict(config), "priors": found, "rounds": history}
    path.write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")
    print(f"wrote {path.name}", flush=True)
