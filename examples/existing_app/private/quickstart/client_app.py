"""The client."""

from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from flower_ldp.clients import CodewordRelease, LdpMod
from quickstart import task

app = ClientApp(mods=[LdpMod(train=CodewordRelease())])


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train on this client's images."""
    arrays, examples = task.fit(
        message.content["arrays"],
        int(context.node_config["partition-id"]),
        int(context.node_config["num-partitions"]),
    )
    metrics = MetricRecord({"num-examples": examples})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)
