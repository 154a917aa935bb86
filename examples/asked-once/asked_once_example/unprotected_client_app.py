"""The same client without the gate, for the FedAvg baseline that ``run.py`` compares with."""

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from asked_once_example import training

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train as usual; the trained weights leave as they are."""
    return training.train(message, context)
