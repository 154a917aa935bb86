"""The client: a site with many people's rows."""

import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from flower_ldp.clients import DPSGDRelease, LdpMod
from flower_ldp.training import private_training, supervised
from sites import task

app = ClientApp(mods=[LdpMod(train=DPSGDRelease())])
PUBLIC_ROW = (torch.zeros(30), torch.tensor(0))


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train on this site's rows."""
    node, model = context.node_config, task.make_model()
    rows = task.share(int(node["partition-id"]), int(node["num-partitions"]))
    loss = supervised(torch.nn.functional.cross_entropy)
    reply = private_training(
        context, model, rows, loss, optimizer=lambda w: torch.optim.SGD(w, 1.0), like=PUBLIC_ROW
    )
    return Message(reply, reply_to=message)
