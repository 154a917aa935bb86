"""The private client: the gate lets a SignDS report out, and nothing else."""

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from flower_ldp.clients import LdpMod, Rehearsal, SignDSRelease
from signds_example import training

rehearsal = Rehearsal(train=training.rehearse)
app = ClientApp(mods=[LdpMod(train=SignDSRelease(), rehearsal=rehearsal)])


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train as usual; the gate turns the reply into a private report."""
    return training.train(message, context)
