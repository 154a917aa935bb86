"""The server: the training that signds.yaml names, a table, a history file and a plot."""

from pathlib import Path

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import Strategy

from flower_ldp.config import ConfiguredRun, from_config
from flower_ldp.strategies import BestModel, grid_with_deadlines
from flower_ldp.strategies.training import TrainingOptions
from signds_example import data, model, report

app = ServerApp()
#: Names of the histories, by the YAML file's encrypt_train_type.
NAMES = {
    "SIGNDS": "signds",
    "CODEWORD": "codeword",
    "DP_ENCRYPT": "dp-encrypt",
    "NOT_ENCRYPT": "fedavg",
}


def configured(context: Context) -> ConfiguredRun:
    """Return the run of the YAML file, by an absolute path or beside this file."""
    return from_config(Path(__file__).parent / str(context.run_config["signds-config"]))


def make_strategy(context: Context) -> Strategy:
    """Return the strategy that the YAML file names."""
    run = configured(context)
    options: TrainingOptions = {"fraction_train": float(context.run_config["fraction-train"])}
    if run.config.encrypt.encrypt_train_type == "CODEWORD":
        # Codewords ask each client once by default. Here they are asked as often as the others.
        options["answers_per_client"] = None
    return run.strategy(**options)


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train, evaluating on held-out images after each round, and report."""
    config = context.run_config
    seed = int(config["seed"])
    held = data.load(str(config["data"]), str(config["evaluate-on"]), seed)
    net = model.build(str(config["model"]), held.side, seed).to(memory_format=torch.channels_last)
    rounds, every = int(config["num-server-rounds"]), int(config["evaluate-every"])
    folder = Path(str(config["output-dir"]))
    name = NAMES[str(configured(context).config.encrypt.encrypt_train_type)]

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
        if server_round % every and server_round != rounds:
            return None
        net.load_state_dict(arrays.to_torch_state_dict())
        accuracy, loss = model.accuracy_and_loss(net, held.held_out.images, held.held_out.labels)
        print(
            f"round {server_round}/{rounds}: accuracy {accuracy:.4f}, loss {loss:.4f}", flush=True
        )
        return MetricRecord({"accuracy": accuracy, "loss": loss})

    result = make_strategy(context).start(
        grid_with_deadlines(grid, float(config["node-wait"])),
        ArrayRecord(net.state_dict()),
        num_rounds=rounds,
        timeout=float(config["round-timeout"]),
        train_config=ConfigRecord({"side": held.side}),
        evaluate_fn=BestModel(folder / f"{name}-best.npz", evaluate),
    )
    report.publish(result, {**config, "strategy": name}, folder)
