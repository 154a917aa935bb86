"""The client: labels are randomized once, and everything after that is made of the reports.

There is no gate here. Label privacy covers the labels and nothing else, so what is made of
randomized labels and of features may leave as it is. Features are **not** protected: sums of
pixels leave in the k-means rounds, and updates tell about images.
"""

from __future__ import annotations

import logging

import numpy as np
from flwr.app import (
    Array,
    ArrayRecord,
    Context,
    Error,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable
from numpy.typing import NDArray

from flower_ldp.labels.clusters import cluster_sums
from label_dp_example import data, private
from label_dp_example.model import fit, probabilities, received

_log = logging.getLogger("flower_ldp")


def constant_errors(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Answer every failure alike: Flower would send the text of an exception to the server."""
    try:
        return call_next(message, context)
    except Exception:
        _log.exception("no reply")
        return Message(Error(code=1_000, reason="label-dp:failed"), reply_to=message)


app = ClientApp(mods=[constant_errors])


@app.query("clusters")
def clusters(message: Message, context: Context) -> Message:
    """Take one step of k-means: sums of pixels and numbers of images. No label is read."""
    features = data.of_client(context).images.flatten(1).numpy()
    found = [cluster_sums(features, some) for some in _array(message, "centers")]
    sums, numbers = (np.stack(part) for part in zip(*found, strict=True))
    return _reply(message, sums=sums, numbers=numbers)


@app.query("counts")
def counts(message: Message, context: Context) -> Message:
    """Count the randomized labels of each cluster."""
    return _reply(message, counts=private.counts(context, _array(message, "centers")))


@app.query("priors")
def priors(message: Message, context: Context) -> Message:
    """Make soft targets of the priors and keep them; nothing leaves."""
    private.keep_priors(context, _array(message, "centers"), _array(message, "priors"))
    return Message(RecordDict(), reply_to=message)


@app.query("second")
def second(message: Message, context: Context) -> Message:
    """Randomize the second stage's labels, with the model's guesses as priors; nothing leaves."""
    net = received(message, context)
    private.begin_second_stage(context, probabilities(net, data.of_client(context).images))
    return Message(RecordDict(), reply_to=message)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train the server's model on images and randomized labels."""
    images, targets, loss = private.task(context)
    net, last = fit(images, targets, loss, message, context)
    metrics = MetricRecord({"num-examples": len(images), "loss": last})
    return Message(
        RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics}),
        reply_to=message,
    )


def _array(message: Message, name: str) -> NDArray[np.generic]:
    return message.content.array_records["arrays"][name].numpy()


def _reply(message: Message, **arrays: NDArray[np.generic]) -> Message:
    record = ArrayRecord({name: Array(value) for name, value in arrays.items()})
    return Message(RecordDict({"arrays": record}), reply_to=message)
