"""The client."""

import numpy as np
from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from flower_ldp.clients import CodewordRelease, LdpMod, Rehearsal
from quickstart import task

rehearsal = Rehearsal(train=lambda message, _: train_on(message, np.eye(10, 64), np.arange(10)))
app = ClientApp(mods=[LdpMod(train=CodewordRelease(), rehearsal=rehearsal)])


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train on this client's images."""
    node = context.node_config
    share = task.share(int(node["partition-id"]), int(node["num-partitions"]))
    return train_on(message, *share)


def train_on(message: Message, images: task.Array, labels: task.Array) -> Message:
    """Train on these images."""
    arrays = task.fit(message.content["arrays"], images, labels)
    metrics = MetricRecord({"num-examples": len(labels)})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)
