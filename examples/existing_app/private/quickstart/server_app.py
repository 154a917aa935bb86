"""The server."""

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

from flower_ldp.mechanisms import Codeword
from flower_ldp.strategies import CodewordStrategy
from quickstart import task

app = ServerApp()
strategy = CodewordStrategy(Codeword(epsilon=8.0))


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train; evaluate on the server after each round."""

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        return MetricRecord({"accuracy": task.accuracy(arrays)})

    result = strategy.start(
        grid,
        task.initial_weights(),
        num_rounds=int(context.run_config["num-server-rounds"]),
        evaluate_fn=evaluate,
    )
    final = result.evaluate_metrics_serverapp[max(result.evaluate_metrics_serverapp)]
    print(f"final accuracy {final['accuracy']:.4f}", flush=True)
