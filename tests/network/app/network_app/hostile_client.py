"""A client that tries one way out after another, as its author could write it."""

import numpy as np
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Error,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp

from network_app import canary, runtime_api, task

app = ClientApp()

#: Number of partitions that try the ways in turn; a further one is for the control.
NODES = 3


@app.train()
def train(message: Message, context: Context) -> Message:
    """Leak in the way of this round and node."""
    part = int(context.node_config["partition-id"])
    server_round = int(message.content["config"]["server-round"])
    if part == NODES:  # the control, on a plain node: the simplest ways, which must be found
        way = (raw_under_other_names, exception_text)[server_round % 2]
    else:
        way = WAYS[((server_round - 1) * NODES + part) % len(WAYS)]
    print(f"trying {way.__name__}", flush=True)
    print(f"it hides {canary.text(part)}", flush=True)
    return way(message, context, part)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Leak in the way of this node; the control does what finds its canary."""
    part = int(context.node_config["partition-id"])
    way = (sure_predictions, exception_text, raw_predictions, raw_predictions)[part]
    print(f"trying {way.__name__} of predictions", flush=True)
    return way(message, context, part)


def sure_predictions(message: Message, context: Context, part: int) -> Message:
    """Send rows of the right form, with data in metrics and beside them."""
    rows = np.eye(task.LABELS, dtype=np.float32)
    metrics = {"loss": canary.number(part), canary.text(part): canary.number(part)}
    records = {
        "predictions": ArrayRecord({canary.text(part): Array(rows)}),
        "metrics": MetricRecord({"num-examples": canary.count(part), **metrics}),
        canary.text(part): ConfigRecord({"note": canary.text(part)}),
    }
    return Message(RecordDict(records), reply_to=message)


def raw_predictions(message: Message, context: Context, part: int) -> Message:
    """Send data in place of probabilities."""
    raw = np.full((4, task.LABELS), canary.number(part), dtype=np.float32)
    metrics = {"loss": 1.0, "num-examples": canary.count(part)}
    reply = {"predictions": ArrayRecord({"rows": Array(raw)}), "metrics": MetricRecord(metrics)}
    return Message(RecordDict(reply), reply_to=message)


def raw_under_other_names(message: Message, context: Context, part: int) -> Message:
    """Send raw values in every kind of record, beside a model that looks right."""
    raw = np.full((7, 5), canary.number(part), dtype=np.float32)
    weights = task.weights_of(message.content["arrays"]) + 1
    records = {
        "arrays": ArrayRecord({"weights": Array(weights), canary.text(part): Array(raw)}),
        "second": ArrayRecord({"raw": Array(raw)}),
        "metrics": MetricRecord({"num-examples": canary.count(part), "loss": canary.number(part)}),
        canary.text(part): ConfigRecord({canary.text(part): canary.text(part).encode()}),
    }
    return Message(RecordDict(records), reply_to=message)


def exception_text(message: Message, context: Context, part: int) -> Message:
    """Raise an error that quotes data."""
    raise ValueError(f"{canary.text(part)} {canary.number(part):.4f} {canary.count(part)}")


def error_reply(message: Message, context: Context, part: int) -> Message:
    """Answer with an error that quotes data."""
    return Message(Error(code=canary.count(part), reason=canary.text(part)), reply_to=message)


def metrics_beside_the_model(message: Message, context: Context, part: int) -> Message:
    """Send a model of the right form, its numbers and data in metrics."""
    weights = np.full_like(task.weights_of(message.content["arrays"]), canary.number(part))
    metrics = {"num-examples": canary.count(part), canary.text(part): canary.number(part)}
    reply = RecordDict({"arrays": task.record(weights), "metrics": MetricRecord(metrics)})
    return Message(reply, reply_to=message)


def made_up_report(message: Message, context: Context, part: int) -> Message:
    """Pretend that the mod made a report."""
    record = ConfigRecord({"payload": canary.text(part).encode()})
    return Message(RecordDict({"ldp.report": record}), reply_to=message)


def metadata(message: Message, context: Context, part: int) -> Message:
    """Put data into the reply's own metadata."""
    reply = Message(RecordDict({canary.text(part): ConfigRecord({"a": 1})}), reply_to=message)
    reply.metadata.__dict__["_group_id"] = canary.text(part)
    reply.metadata.__dict__["_message_type"] = "query"
    reply.metadata.__dict__["_dst_node_id"] = canary.count(part)
    reply.metadata.__dict__["_created_at"] = canary.number(part)
    reply.metadata.__dict__["_ttl"] = canary.number(part)
    return reply


def message_ids(message: Message, context: Context, part: int) -> Message:
    """Name another message than the server's, of an identity that holds data."""
    reply = Message(RecordDict({"a": ConfigRecord({"a": 1})}), reply_to=message)
    reply.metadata.__dict__["_reply_to_message_id"] = canary.text(part)
    return reply


def every_runtime_call(message: Message, context: Context, part: int) -> Message:
    """Call everything that Flower's runtime API offers, with the app's own token."""
    runtime_api.call_everything(message, canary.text(part))
    return raw_under_other_names(message, context, part)


def forged_report(message: Message, context: Context, part: int) -> Message:
    """Send data as the indices of a report of the right form and length."""
    data = canary.text(part).encode().ljust(26, b"x")
    record = ConfigRecord({"payload": b"\x01\x02" + data})
    return Message(RecordDict({"ldp.report": record}), reply_to=message)


WAYS = (
    raw_under_other_names,
    exception_text,
    error_reply,
    metrics_beside_the_model,
    made_up_report,
    metadata,
    message_ids,
    every_runtime_call,
    forged_report,
)
