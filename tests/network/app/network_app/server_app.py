"""The server: trains, evaluates on examples that no client has, and writes all it received."""

import json
import time
from pathlib import Path

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import Strategy

from flower_ldp.mechanisms import BoundedMean, Laplace, MagRR, SignDS
from flower_ldp.strategies import BestModel, LearnedStep, grid_with_deadlines
from network_app import task
from network_app.curious import CuriousEvaluation, CuriousFedAvg, CuriousSignDS, Transcript

#: The digits are split into this many parts; the last is the server's.
PARTS = 4

app = ServerApp()


def _strategy(config: dict[str, bool | bytes | float | int | str], written: Transcript) -> Strategy:
    nodes = int(config["nodes"])
    sampling = {"min_train_nodes": nodes, "min_available_nodes": nodes}
    if config["strategy"] == "fedavg":
        plain = CuriousFedAvg(fraction_evaluate=0.0, **sampling)
        plain.transcript = written
        return plain
    training = CuriousSignDS(
        SignDS(epsilon=float(config["epsilon"]), k=0.2),
        LearnedStep(MagRR(epsilon=float(config["magnitude-epsilon"]))),
        **sampling,
    )
    training.transcript = written
    training.insists = bool(config["insists"])
    if not config["rows"]:
        return training
    evaluating = CuriousEvaluation(
        training,
        Laplace(float(config["row-epsilon"]), task.LABELS, rows=int(config["rows"])),
        metrics={"loss": BoundedMean(1.0, 0.0, 4.0)},
        every=int(config["every"]),
        min_evaluate_nodes=nodes,
        min_available_nodes=nodes,
    )
    evaluating.transcript = written
    return evaluating


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train and report."""
    config = dict(context.run_config)
    written = Transcript()
    strategy = _strategy(config, written)
    ends = [time.monotonic()]

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        accuracy = task.accuracy(task.weights_of(arrays), PARTS - 1, PARTS)
        ends.append(time.monotonic())
        took = ends[-1] - ends[-2]
        print(f"round {server_round}: accuracy {accuracy:.4f} after {took:.1f} s", flush=True)
        return MetricRecord({"accuracy": accuracy, "seconds": took})

    result = strategy.start(
        grid_with_deadlines(grid, float(config["patience"])),
        task.initial_model(),
        num_rounds=int(config["num-server-rounds"]),
        timeout=float(config["timeout"]),
        evaluate_fn=BestModel(str(config["best"]), evaluate) if config["best"] else evaluate,
    )
    found: dict[str, object] = {
        "transcript": written.replies,
        "exchanges": written.exchanges,
        "metrics": {n: dict(m) for n, m in result.train_metrics_clientapp.items()},
        "private": {n: dict(m) for n, m in result.evaluate_metrics_clientapp.items()},
        "evaluation": {n: dict(m) for n, m in result.evaluate_metrics_serverapp.items()},
    }
    if isinstance(strategy, CuriousSignDS | CuriousEvaluation):
        report = strategy.privacy_spent()
        print(report, flush=True)
        found["spent"] = {
            node: {unit.value: spent.epsilon for unit, spent in units.items()}
            for node, units in report.clients.items()
        }
    if config["received"]:
        Path(str(config["received"])).write_text(json.dumps(found), encoding="utf-8")
    print("finished", flush=True)
