"""Trains from reports that an analyzer adds up, asks a node again, and writes all down."""

import json
import time
from collections.abc import Iterable
from pathlib import Path

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord
from flwr.serverapp import Grid, ServerApp

from flower_ldp.mechanisms import Codeword
from flower_ldp.shuffle import Analyzer
from flower_ldp.strategies import CodewordStrategy
from network_app import task

app = ServerApp()


class CuriousCodeword(CodewordStrategy):
    """Keeps what it asked, and what each node answered."""

    def __init__(self, *options: object, **more: object) -> None:
        super().__init__(*options, **more)
        self.asked: list[Message] = []
        self.answers: dict[str, str] = {}

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Keep the messages."""
        asked = list(super().configure_train(server_round, arrays, config, grid))
        self.asked += asked
        return asked

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Keep the replies, then have them added up."""
        kept = list(replies)
        self.answers |= answers_in(kept)
        return super().aggregate_train(server_round, kept)


def answers_in(replies: Iterable[Message]) -> dict[str, str]:
    """Return each node's ciphertext, or why there is none."""
    return {
        str(one.metadata.src_node_id): one.error.reason
        if one.has_error()
        else one.content["ldp.report"]["payload"].hex()
        for one in replies
    }


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train, and ask the node that a file names then for what it was asked before."""
    config = {name: str(value) for name, value in context.run_config.items()}
    strategy = CuriousCodeword(
        Codeword(float(config["epsilon"])),
        analyzer=Analyzer(
            config["analyzer"],
            config["key"],
            token=config["token"],
            certificates=config["certificates"],
        ),
        min_available_nodes=int(config["nodes"]),
    )
    model = task.initial_model()
    result = strategy.start(grid, model, num_rounds=int(config["num-server-rounds"]))
    print(strategy.privacy_spent(), flush=True)
    print("trained", flush=True)
    named = Path(config["again"])
    while not named.exists():
        time.sleep(0.1)
    node = int(named.read_text())
    content = next(one.content for one in strategy.asked if one.metadata.dst_node_id == node)
    again = grid.send_and_receive([Message(content, node, "train")])
    found = {
        "metrics": [dict(one) for one in result.train_metrics_clientapp.values()],
        "model": task.weights_of(result.arrays).tolist(),
        "answers": strategy.answers,
        "again": answers_in(again),
    }
    Path(config["received"]).write_text(json.dumps(found), encoding="utf-8")
    print("finished", flush=True)
