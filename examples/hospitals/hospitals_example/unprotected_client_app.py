"""The same hospital without the gate, for FedAvg and sites alone that ``run.py`` compares with."""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from hospitals_example import centred, data

app = ClientApp()
_STEPS, _RATE = 50, 0.25


@app.train()
def train(message: Message, context: Context) -> Message:
    """Take steps of ordinary gradient descent; the weights leave as they are."""
    config = context.run_config
    sites, _ = data.load(str(config["evaluate-on"]), int(config["seed"]))
    ward = sites[int(context.node_config["partition-id"])]
    columns, malignant = map(
        torch.stack, zip(*(ward[row] for row in range(len(ward))), strict=True)
    )
    model = centred.Centred()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    taken = _STEPS * (int(message.content["config"]["server-round"]) - 1)
    optimizer = centred.Descent(list(model.parameters()), _RATE, taken)
    for _ in range(_STEPS):
        optimizer.zero_grad()
        centred.loss(model(columns), malignant).backward()
        optimizer.step()
    metrics = MetricRecord({"num-examples": len(ward)})
    arrays = ArrayRecord(model.state_dict())
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)
