"""The server."""

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from flower_ldp.strategies import DPSGDStrategy
from sites import task

app = ServerApp()
strategy = DPSGDStrategy(FedAvg(fraction_evaluate=0.0))


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train; evaluate on public test rows after each round."""

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        model = task.make_model()
        model.load_state_dict(arrays.to_torch_state_dict())
        return MetricRecord({"accuracy": task.accuracy(model)})

    rounds = int(context.run_config["num-server-rounds"])
    first = ArrayRecord(task.make_model().state_dict())
    result = strategy.start(grid, first, num_rounds=rounds, evaluate_fn=evaluate)
    final = result.evaluate_metrics_serverapp[max(result.evaluate_metrics_serverapp)]
    print(f"final accuracy {final['accuracy']:.4f}", flush=True)
