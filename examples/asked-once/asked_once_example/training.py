"""Local training, the same for the private app and the unprotected baseline."""

from __future__ import annotations

from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from numpy.typing import NDArray

from asked_once_example import data, head


def train(message: Message, context: Context) -> Message:
    """Train the server's layer on this client's images; an ordinary Flower handler."""
    config = context.run_config
    seed = int(config["seed"])
    train_data, _ = data.load(str(config["data"]), str(config["evaluate-on"]), seed)
    mine = data.partitions(
        len(train_data.labels), seed, int(context.node_config["num-partitions"])
    )[int(context.node_config["partition-id"])]
    return _train_on(train_data.features[mine], train_data.labels[mine], message, context)


def rehearse(message: Message, context: Context) -> Message:
    """Do the same on made-up images that are nobody's, before the run is charged for anything."""
    noise = np.random.default_rng(0).normal(size=(20, 8, 8))
    return _train_on(head.features(noise), np.arange(20) % head.CLASSES, message, context)


def _train_on(
    inputs: NDArray[np.float64],
    labels: NDArray[np.integer[Any]],
    message: Message,
    context: Context,
) -> Message:
    config = context.run_config
    weights, loss = head.trained(
        message.content["arrays"]["weight"].numpy(),
        inputs,
        labels,
        steps=int(config["local-steps"]),
        rate=float(config["learning-rate"]),
    )
    return Message(
        RecordDict(
            {
                "arrays": ArrayRecord({"weight": Array(weights)}),
                "metrics": MetricRecord({"num-examples": len(labels), "loss": loss}),
            }
        ),
        reply_to=message,
    )
