"""A client with the gate whose update and predictions are known: only the noise is random."""

from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from flower_ldp.clients import LaplaceEvalRelease, LdpMod, SignDSRelease
from network_app import known, task

app = ClientApp(mods=[LdpMod(train=SignDSRelease(), evaluate=LaplaceEvalRelease())])


@app.train()
def train(message: Message, context: Context) -> Message:
    """Move the model by the known update."""
    weights = task.weights_of(message.content["arrays"]) + known.update()
    return Message(RecordDict({"arrays": task.record(weights)}), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Return the known rows and the known loss."""
    rows = ArrayRecord({"rows": Array(known.rows(int(context.run_config["rows"])))})
    metrics = MetricRecord({"loss": known.LOSS})
    return Message(RecordDict({"predictions": rows, "metrics": metrics}), reply_to=message)
