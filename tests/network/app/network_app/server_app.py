"""The server: trains, evaluates on examples that no client has, and writes all it received."""

import json
from collections.abc import Iterable
from pathlib import Path

from flwr.app import ArrayRecord, Context, Message, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from flower_ldp.mechanisms import MagRR, SignDS
from flower_ldp.strategies import LearnedStep, SignDSStrategy
from network_app import task

#: The digits are split into this many parts; the last is the server's.
PARTS = 4

app = ServerApp()
transcript: list[str] = []


def _write_down(server_round: int, replies: Iterable[Message]) -> list[Message]:
    kept = list(replies)
    for reply in kept:
        content = f"{reply.error}" if reply.has_error() else f"{dict(reply.content)!r}"
        transcript.append(f"round {server_round} {vars(reply.metadata)} {content}")
    return kept


class CuriousSignDS(SignDSStrategy):
    """Keeps a transcript of the replies."""

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Write the replies down, then aggregate them."""
        return super().aggregate_train(server_round, _write_down(server_round, replies))


class CuriousFedAvg(FedAvg):
    """Keeps a transcript of the replies."""

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Write the replies down, then aggregate them."""
        return super().aggregate_train(server_round, _write_down(server_round, replies))


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train and report."""
    config = context.run_config
    nodes = int(config["nodes"])
    sampling = {
        "fraction_evaluate": 0.0,
        "min_train_nodes": nodes,
        "min_available_nodes": nodes,
    }

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        accuracy = task.accuracy(task.weights_of(arrays), PARTS - 1, PARTS)
        print(f"round {server_round}: accuracy {accuracy:.4f}", flush=True)
        return MetricRecord({"accuracy": accuracy})

    if config["strategy"] == "fedavg":
        strategy = CuriousFedAvg(**sampling)
    else:
        selection = SignDS(epsilon=float(config["epsilon"]), k=0.2)
        sampling.pop("fraction_evaluate")
        strategy = CuriousSignDS(selection, LearnedStep(MagRR(epsilon=1.0)), **sampling)
    result = strategy.start(
        grid,
        task.initial_model(),
        num_rounds=int(config["num-server-rounds"]),
        timeout=float(config["timeout"]),
        evaluate_fn=evaluate,
    )
    found: dict[str, object] = {
        "transcript": transcript,
        "metrics": {n: dict(m) for n, m in result.train_metrics_clientapp.items()},
        "accuracy": {n: m["accuracy"] for n, m in result.evaluate_metrics_serverapp.items()},
    }
    if isinstance(strategy, SignDSStrategy):
        report = strategy.privacy_spent()
        print(report, flush=True)
        found["spent"] = {
            node: {unit.value: spent.epsilon for unit, spent in units.items()}
            for node, units in report.clients.items()
        }
    if config["received"]:
        Path(str(config["received"])).write_text(json.dumps(found), encoding="utf-8")
    print("finished", flush=True)
