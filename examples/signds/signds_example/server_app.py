"""The server: SignDS (or a baseline), a table, a history file and a plot."""

from pathlib import Path

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg, Strategy

from flower_ldp.config import from_config
from flower_ldp.errors import ConfigError
from flower_ldp.strategies import BestModel, grid_with_deadlines
from signds_example import data, model, report

app = ServerApp()


def make_strategy(context: Context) -> Strategy:
    """Return the strategy that the run configuration names."""
    config = context.run_config
    fraction = float(config["fraction-train"])
    if config["strategy"] == "fedavg":
        return FedAvg(fraction_train=fraction, fraction_evaluate=0.0)
    if config["strategy"] not in ("signds", "dp-encrypt"):
        raise ValueError(
            f"strategy must be 'signds', 'dp-encrypt' or 'fedavg', got {config['strategy']!r}"
        )
    # A relative path is looked up beside this file, an absolute one is taken as it is.
    source = Path(__file__).parent / str(config[f"{config['strategy']}-config"])
    run = from_config(source)
    wanted = {"signds": "SIGNDS", "dp-encrypt": "DP_ENCRYPT"}[str(config["strategy"])]
    if run.config.encrypt.encrypt_train_type != wanted:
        raise ConfigError(f"{source}: encrypt_train_type must be {wanted}")
    return run.strategy(fraction_train=fraction)


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train, evaluating on held-out images after each round, and report."""
    config = context.run_config
    seed = int(config["seed"])
    held = data.load(str(config["data"]), str(config["evaluate-on"]), seed)
    net = model.build(str(config["model"]), held.side, seed).to(memory_format=torch.channels_last)
    rounds, every = int(config["num-server-rounds"]), int(config["evaluate-every"])
    folder = Path(str(config["output-dir"]))

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
        evaluate_fn=BestModel(folder / f"{config['strategy']}-best.npz", evaluate),
    )
    report.publish(result, dict(config), folder)
