"""The private client: the gate lets a SignDS report out, and nothing else."""

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from flower_ldp.clients import LdpMod, SignDSRelease
from signds_example import training

app = ClientApp(mods=[LdpMod(train=SignDSRelease())])


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train as usual; the gate turns the reply into a private report."""
    return training.train(message, context)
