"""Training on the true labels, for the comparison of ``run.py`` and for nothing else."""

from __future__ import annotations

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch.nn.functional import cross_entropy

from label_dp_example import data
from label_dp_example.model import fit

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train the server's model on images and true labels."""
    mine = data.of_client(context)
    net, last = fit(mine.images, torch.from_numpy(mine.labels), cross_entropy, message, context)
    metrics = MetricRecord({"num-examples": len(mine.labels), "loss": last})
    return Message(
        RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics}),
        reply_to=message,
    )
