"""An ordinary FedAvg client: sends its weights and its number of examples.

With a gate of its own it is the app that runs under any node; in two parts it has none.
"""

from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable

from flower_ldp.clients import LdpMod, SignDSRelease
from network_app import canary, task

#: Of the node that guards it, and of the control, which sends all of it.
WITHOUT = (0, 3)
gate = LdpMod(train=SignDSRelease())


def gate_of_most(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Be the gate, but in the parts that have none."""
    if context.node_config["partition-id"] in WITHOUT:
        return call_next(message, context)
    return gate(message, context, call_next)


app = ClientApp(mods=[gate_of_most])


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train on this node's part."""
    part, parts = (int(context.node_config[k]) for k in ("partition-id", "num-partitions"))
    weights = task.train(task.weights_of(message.content["arrays"]), part, parts)
    weights[-1, :] += canary.number(part)  # a constant column: no accuracy is lost by it
    metrics = {"num-examples": canary.count(part), "loss": canary.number(part)}
    reply = RecordDict({"arrays": task.record(weights), "metrics": MetricRecord(metrics)})
    return Message(reply, reply_to=message)
