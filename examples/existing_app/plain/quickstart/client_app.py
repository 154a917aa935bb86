"""The client."""

from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from quickstart import task

app = ClientApp()


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
