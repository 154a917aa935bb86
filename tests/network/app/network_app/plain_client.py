"""An ordinary FedAvg client, with no mod: sends its weights and its number of examples."""

from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from network_app import canary, task

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train on this node's part."""
    part, parts = (int(context.node_config[k]) for k in ("partition-id", "num-partitions"))
    weights = task.train(task.weights_of(message.content["arrays"]), part, parts)
    weights[-1, :] += canary.number(part)  # a constant column: no accuracy is lost by it
    metrics = {"num-examples": canary.count(part), "loss": canary.number(part)}
    reply = RecordDict({"arrays": task.record(weights), "metrics": MetricRecord(metrics)})
    return Message(reply, reply_to=message)
