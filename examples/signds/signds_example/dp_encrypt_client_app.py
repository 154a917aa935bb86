"""The client of the baseline DP_ENCRYPT: the gate lets a clipped and noised update out."""

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from flower_ldp.clients import GaussianRelease, LdpMod
from signds_example import training

app = ClientApp(mods=[LdpMod(train=GaussianRelease())])


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train as usual; the gate turns the reply into a private report."""
    return training.train(message, context)
