"""The private client: the gate lets one codeword out, and nothing else."""

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from asked_once_example import training
from flower_ldp.clients import CodewordRelease, LdpMod, Rehearsal

rehearsal = Rehearsal(train=training.rehearse)
app = ClientApp(mods=[LdpMod(train=CodewordRelease(), rehearsal=rehearsal)])


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train as usual; the gate turns the reply into a private report."""
    return training.train(message, context)
