"""The server: SignDS, evaluated on held-out images after each round."""

from __future__ import annotations

from pathlib import Path

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

from signdsfl import dataset, model, strategy, utils

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train, evaluate, and write a history."""
    config = context.run_config
    held_out = dataset.load(str(config["data"]))[1]
    net = model.build(str(config["model"]), int(held_out.images.shape[-1]), int(config["seed"]))

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        net.load_state_dict(arrays.to_torch_state_dict())
        return MetricRecord({"accuracy": model.accuracy(net, held_out)})

    result = strategy.make(config).start(
        grid,
        ArrayRecord(net.state_dict()),
        num_rounds=int(config["num-server-rounds"]),
        evaluate_fn=evaluate,
    )
    utils.write_history(result, config, Path(str(config["output-dir"])) / "history.json")
