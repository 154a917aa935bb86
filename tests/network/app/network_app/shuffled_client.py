"""A client whose update is known and whose reports are codewords."""

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from flower_ldp.clients import CodewordRelease, LdpMod
from network_app import known, task

app = ClientApp(mods=[LdpMod(train=CodewordRelease())])


@app.train()
def train(message: Message, context: Context) -> Message:
    """Move the model by the known update."""
    weights = task.weights_of(message.content["arrays"]) + known.update()
    return Message(RecordDict({"arrays": task.record(weights)}), reply_to=message)
