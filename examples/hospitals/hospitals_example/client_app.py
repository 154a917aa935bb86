"""A hospital: the gate lets out the model that private training made, and nothing else."""

import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from flower_ldp.clients import DPSGDRelease, LdpMod
from flower_ldp.training import private_training
from hospitals_example import centred, data

app = ClientApp(mods=[LdpMod(train=DPSGDRelease())])
LIKE = (torch.zeros(data.COLUMNS), torch.tensor(0.0))  # a public row


@app.train()
def train(message: Message, context: Context) -> Message:
    """Take a round's noisy steps on this site's patients."""
    config = context.run_config
    sites, _ = data.load(str(config["evaluate-on"]), int(config["seed"]))
    ward = sites[int(context.node_config["partition-id"])]
    # The centre is the mean of all rounds so far; which round it is is public.
    number = int(message.content["config"]["server-round"])
    reply = private_training(
        context,
        centred.Centred(),
        centred.loss,
        ward,
        optimizer=lambda p: centred.descent(p, float(config["learning-rate"]), 1 / number),
        like=LIKE,
        groups=ward.patients.tolist(),
    )
    return Message(reply, reply_to=message)
