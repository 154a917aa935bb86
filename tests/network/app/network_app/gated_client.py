"""A client with the gate, under the data owner's policy and ledger."""

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from flower_ldp.clients import LdpMod, SignDSRelease
from network_app import task

app = ClientApp(mods=[LdpMod(train=SignDSRelease())])


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train on this node's part."""
    part, parts = (int(context.node_config[k]) for k in ("partition-id", "num-partitions"))
    weights = task.train(task.weights_of(message.content["arrays"]), part, parts)
    return Message(RecordDict({"arrays": task.record(weights)}), reply_to=message)
