"""The client: a site with many people's rows."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from sites import task

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train on this site's rows."""
    node, model = context.node_config, task.make_model()
    rows = task.share(int(node["partition-id"]), int(node["num-partitions"]))
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    task.fit(model, rows)
    metrics = MetricRecord({"num-examples": len(rows)})
    reply = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    return Message(reply, reply_to=message)
