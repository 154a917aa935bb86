"""Apps for the comparison of engines: they do nothing, send a model back, or train on a record.

The server prints a line of JSON when a round begins and when it ends, so that a run that is ended
from outside has told how far it was.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from time import perf_counter, sleep
from typing import Any

import numpy as np
from flwr.app import (
    ArrayRecord,
    ConfigRecord,
    Context,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

#: LeNet-5's parameters for 28 x 28 images: d = 61,706.
LENET = [
    *[(6, 1, 5, 5), (6,), (16, 6, 5, 5), (16,)],
    *[(120, 400), (120,), (84, 120), (84,), (10, 84), (10,)],
]

nothing = ClientApp()
model = ClientApp()
record = ClientApp()


@nothing.train()
def do_nothing(message: Message, context: Context) -> Message:
    """Answer."""
    return Message(RecordDict({"metrics": MetricRecord({"num-examples": 1})}), reply_to=message)


@model.train()
def change_model(message: Message, context: Context) -> Message:
    """Send back another model of the same size."""
    arrays = [one + 1 for one in message.content.array_records["arrays"].to_numpy_ndarrays()]
    return _trained(message, arrays)


@record.train()
def train_on_a_record(message: Message, context: Context) -> Message:
    """Take one step of a logistic regression on one of scikit-learn's digits."""
    images, labels = _digits()
    which = int(context.node_config["partition-id"]) % len(labels)
    (weights,) = message.content.array_records["arrays"].to_numpy_ndarrays()
    scores = np.exp(images[which] @ weights)
    wrong = scores / scores.sum()
    wrong[labels[which]] -= 1
    return _trained(message, [weights - 0.1 * np.outer(images[which], wrong)])


def _trained(message: Message, arrays: list[Any]) -> Message:
    metrics = MetricRecord({"num-examples": 1})
    content = RecordDict({"arrays": ArrayRecord(arrays), "metrics": metrics})
    return Message(content, reply_to=message)


@lru_cache(maxsize=1)
def _digits() -> tuple[Any, Any]:
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    return images / 16, labels


#: The client app of each kind, and the shapes of what it is sent.
CLIENTS: dict[str, tuple[ClientApp, list[tuple[int, ...]]]] = {
    "nothing": (nothing, []),
    "lenet": (model, LENET),
    "record": (record, [(64, 10)]),
}


@dataclass
class Clock:
    """A server that asks all nodes in each round, and says how many seconds it took.

    Parameters
    ----------
    kind : str
        Of the clients.
    nodes, rounds : int
        How many. The first round warms up.
    average : bool
        Whether replies are averaged, as FedAvg does.
    """

    kind: str
    nodes: int
    rounds: int
    average: bool

    def app(self) -> ServerApp:
        """Return the server app."""
        app = ServerApp()
        app.main()(self.serve)
        return app

    def serve(self, grid: Grid, context: Context) -> None:
        """Ask round by round."""
        while len(list(grid.get_node_ids())) < self.nodes:
            sleep(0.01)  # Flower's engine registers them one by one
        shapes = CLIENTS[self.kind][1]
        arrays = ArrayRecord([np.zeros(shape, np.float32) for shape in shapes])
        strategy = FedAvg(fraction_evaluate=0.0)
        for number in range(self.rounds):
            print(json.dumps({"begun": number}), flush=True)
            start = perf_counter()
            content = RecordDict({"config": ConfigRecord({"server-round": number})})
            if shapes:
                content["arrays"] = arrays
            messages = [Message(content, n, MessageType.TRAIN) for n in grid.get_node_ids()]
            replies = list(grid.send_and_receive(messages))
            bad = [reply.error.reason for reply in replies if reply.has_error()]
            if bad or len(replies) < self.nodes:
                raise RuntimeError(f"{len(replies)} replies, {len(bad)} failed: {bad[:1]}")
            if self.average:
                averaged, _ = strategy.aggregate_train(number, replies)
                arrays = averaged or arrays
            del messages, replies
            print(json.dumps({"ended": number, "seconds": perf_counter() - start}), flush=True)
