"""The client: what leaves it is what signds.yaml says, if the data owner's policy allows it."""

from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from flower_ldp.clients import Rehearsal
from flower_ldp.config import from_config
from signds_example import training

rehearsal = Rehearsal(train=training.rehearse)
run = from_config(Path(__file__).parent / "signds.yaml")
app = ClientApp(mods=run.client_mods(rehearsal))


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train as usual; the mod turns the reply into a private report."""
    return training.train(message, context)
