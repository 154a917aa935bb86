"""Clients that train and evaluate; the evaluate reply holds more than may leave."""

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from eval_app.task import data, loss, probabilities, train
from flower_ldp.clients import LaplaceEvalRelease, LdpMod, SignDSRelease

CANARY = "canary-7f3a91"

app = ClientApp(mods=[LdpMod(train=SignDSRelease(), evaluate=LaplaceEvalRelease())])


def own_part(context: Context) -> tuple[np.ndarray, np.ndarray]:
    """Return this client's images and labels."""
    part = int(context.node_config["partition-id"])
    parts = int(context.node_config["num-partitions"])
    _, images, labels = data()
    return images[part::parts], labels[part::parts]


@app.train()
def train_model(message: Message, context: Context) -> Message:
    """Train on the own part."""
    weights = train(message.content["arrays"]["weights"].numpy(), *own_part(context))
    arrays = ArrayRecord({"weights": Array(weights)})
    return Message(RecordDict({"arrays": arrays}), reply_to=message)


@app.evaluate()
def evaluate_model(message: Message, context: Context) -> Message:
    """Return class probabilities of all own images, and a few metrics."""
    if context.node_config["partition-id"] == 0:
        raise ValueError(CANARY)
    images, labels = own_part(context)
    rows = probabilities(message.content["arrays"]["weights"].numpy(), images)
    metrics = {"loss": loss(rows, labels), "num-examples": 719_934_208, CANARY: 1234.56789}
    content = RecordDict(
        {
            "predictions": ArrayRecord({"rows": Array(rows)}),
            "metrics": MetricRecord(metrics),
            CANARY: ConfigRecord({"note": CANARY}),
        }
    )
    return Message(content, reply_to=message)
