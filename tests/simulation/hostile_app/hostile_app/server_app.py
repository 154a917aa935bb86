"""A server that writes down everything it receives."""

import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord
from flwr.serverapp import Grid, ServerApp

from flower_ldp.mechanisms import MagRR, SignDS
from flower_ldp.strategies import LearnedStep, SignDSStrategy

app = ServerApp()


class Curious(SignDSStrategy):
    """Keeps a full transcript of the replies."""

    transcript: list[str]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Write down the replies, then aggregate them."""
        kept = list(replies)
        for reply in kept:
            what = reply.error if reply.has_error() else dict(reply.content)
            self.transcript.append(f"{vars(reply.metadata)} {what!r}")
        return super().aggregate_train(server_round, kept)


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train, then write the transcript and the metrics."""
    strategy = Curious(SignDS(epsilon=20.0, k=0.2), LearnedStep(MagRR(epsilon=1.0)))
    strategy.transcript = []
    model = {
        "weights": Array(np.zeros((30, 40), dtype=np.float32)),
        "counter": Array(np.array(4, dtype=np.int64)),
        "scale": Array(np.array(1.0, dtype=np.float32)),
    }
    result = strategy.start(
        grid, ArrayRecord(model), num_rounds=int(context.run_config["num-server-rounds"])
    )
    target = Path(str(context.run_config["received"]))
    metrics = {number: dict(m) for number, m in result.train_metrics_clientapp.items()}
    norm = float(np.linalg.norm(result.arrays["weights"].numpy()))
    target.write_text(
        json.dumps({"transcript": strategy.transcript, "metrics": metrics, "norm": norm})
    )
    print(f"wrote {target}", flush=True)
