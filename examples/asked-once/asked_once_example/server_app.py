"""The server: each client asked once (or FedAvg, to compare with), a table, a file and a plot."""

from pathlib import Path

from flwr.app import Array, ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg, Strategy

from asked_once_example import data, head, report
from flower_ldp.config import from_config
from flower_ldp.strategies import BestModel, grid_with_deadlines

app = ServerApp()


def make_strategy(context: Context) -> Strategy:
    """Return the strategy that the run configuration names."""
    config = context.run_config
    rounds = int(config["num-server-rounds"])
    answers = int(config["answers-per-client"])
    # Each client so many times over the whole run: such a share of them in each round.
    # (A share that a rounding puts just below a whole number of clients would lose one.)
    share = min(1.0, answers / rounds * (1 + 1e-9))
    if config["strategy"] == "fedavg":
        return FedAvg(fraction_train=share, fraction_evaluate=0.0)
    if config["strategy"] != "codeword":
        raise ValueError(f"strategy must be 'codeword' or 'fedavg', got {config['strategy']!r}")
    # A relative path is looked up beside this file, an absolute one is taken as it is.
    source = Path(__file__).parent / str(config["codeword-config"])
    return from_config(source).strategy(answers_per_client=answers, fraction_train=share)


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train, evaluating on held-out images after each round, and report."""
    config = context.run_config
    _, held = data.load(str(config["data"]), str(config["evaluate-on"]), int(config["seed"]))
    rounds = int(config["num-server-rounds"])
    folder = Path(str(config["output-dir"]))

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        weights = arrays["weight"].numpy()
        accuracy, loss = head.accuracy_and_loss(weights, held.features, held.labels)
        print(
            f"round {server_round}/{rounds}: accuracy {accuracy:.4f}, loss {loss:.4f}", flush=True
        )
        return MetricRecord({"accuracy": accuracy, "loss": loss})

    result = make_strategy(context).start(
        grid_with_deadlines(grid, float(config["node-wait"])),
        ArrayRecord({"weight": Array(head.initial())}),
        num_rounds=rounds,
        timeout=float(config["round-timeout"]),
        evaluate_fn=BestModel(folder / f"{config['strategy']}-best.npz", evaluate),
    )
    report.publish(result, dict(config), folder)
