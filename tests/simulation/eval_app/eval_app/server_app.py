"""A server that trains, evaluates, and writes down every evaluate reply and score."""

import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord
from flwr.serverapp import Grid, ServerApp
from sklearn.metrics import silhouette_score

from eval_app.task import data, loss, probabilities
from flower_ldp.mechanisms import BoundedMean, Laplace, SignDS
from flower_ldp.strategies import FixedStep, LaplaceEvalStrategy, ProxyCodebook, SignDSStrategy

app = ServerApp()


class Curious(LaplaceEvalStrategy):
    """Keeps a full transcript of the evaluate replies."""

    transcript: list[str]

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Write down the replies, then score them."""
        kept = list(replies)
        for reply in kept:
            what = reply.error if reply.has_error() else dict(reply.content)
            self.transcript.append(f"{vars(reply.metadata)} {what!r}")
        return super().aggregate_evaluate(server_round, kept)


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train and evaluate, then write the transcript and the metrics."""
    public, images, labels = data()

    def proxy(arrays: ArrayRecord) -> np.ndarray:
        return probabilities(arrays["weights"].numpy(), public)

    def evaluate(_: int, arrays: ArrayRecord) -> MetricRecord:
        rows = probabilities(arrays["weights"].numpy(), images)
        guesses = rows.argmax(axis=1)
        found = {"accuracy": float((guesses == labels).mean()), "loss": loss(rows, labels)}
        if len(set(guesses.tolist())) > 1:
            found["score"] = float(silhouette_score(rows, guesses))
        return MetricRecord(found)

    kinds = {
        "laplace": Laplace(100.0, 10, rows=20),
        "codebook": ProxyCodebook(20.0, proxy, rows=20),
    }
    strategy = Curious(
        SignDSStrategy(SignDS(epsilon=20.0, k=0.25), FixedStep(1.0)),
        kinds[str(context.run_config["mechanism"])],
        metrics={"loss": BoundedMean(100.0, 0.0, 2.3)},
        cluster_client_num=8,
    )
    strategy.transcript = []
    result = strategy.start(
        grid,
        ArrayRecord({"weights": Array(np.zeros((65, 10), dtype=np.float32))}),
        num_rounds=int(context.run_config["num-server-rounds"]),
        evaluate_fn=evaluate,
    )
    target = Path(str(context.run_config["received"]))
    last = int(context.run_config["num-server-rounds"])
    found = {
        "transcript": strategy.transcript,
        "private": dict(result.evaluate_metrics_clientapp[last]),
        "true": dict(result.evaluate_metrics_serverapp[last]),
        "epsilon": max(s.epsilon for s in strategy.privacy_spent().units.values()),
    }
    target.write_text(json.dumps(found))
    print(f"wrote {target}", flush=True)
