"""A hospital: the gate lets out the model that private training made, and nothing else."""

import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from flower_ldp.clients import DPSGDRelease, LdpMod
from flower_ldp.training import private_training, supervised
from hospitals_example import centred, data

app = ClientApp(mods=[LdpMod(train=DPSGDRelease())])
LIKE = (torch.zeros(data.COLUMNS), torch.tensor(0.0))  # a public row


@app.train()
def train(message: Message, context: Context) -> Message:
    """Take a round's noisy steps on this site's patients."""
    config = context.run_config
    sites, _ = data.load(str(config["evaluate-on"]), int(config["seed"]))
    ward = sites[int(context.node_config["partition-id"])]
    # Which round it is is public.
    taken = int(config["steps"]) * (int(message.content["config"]["server-round"]) - 1)
    reply = private_training(
        context,
        centred.Centred(),
        ward,
        supervised(centred.loss),
        optimizer=lambda p: centred.Descent(p, float(config["learning-rate"]), taken),
        like=LIKE,
        groups=ward.patients.tolist(),
    )
    return Message(reply, reply_to=message)
