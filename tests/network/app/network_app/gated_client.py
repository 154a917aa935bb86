"""A client with the gate, under the data owner's policy and ledger."""

from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from flower_ldp.clients import LaplaceEvalRelease, LdpMod, SignDSRelease
from network_app import task

app = ClientApp(mods=[LdpMod(train=SignDSRelease(), evaluate=LaplaceEvalRelease())])


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train on this node's part."""
    part, parts = (int(context.node_config[k]) for k in ("partition-id", "num-partitions"))
    weights = task.train(task.weights_of(message.content["arrays"]), part, parts)
    return Message(RecordDict({"arrays": task.record(weights)}), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Predict this node's part."""
    part, parts = (int(context.node_config[k]) for k in ("partition-id", "num-partitions"))
    rows, loss = task.predictions(task.weights_of(message.content["arrays"]), part, parts)
    predicted = {"predictions": ArrayRecord({"rows": Array(rows)})}
    metrics = MetricRecord({"loss": loss, "num-examples": len(rows)})
    return Message(RecordDict({**predicted, "metrics": metrics}), reply_to=message)
