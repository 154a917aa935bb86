"""Local training, the same for the private app and the unprotected baseline."""

from __future__ import annotations

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from torch import nn

from signds_example import data, model


def train(message: Message, context: Context) -> Message:
    """Train the server's model on this client's images; an ordinary Flower handler."""
    config = context.run_config
    source, split = str(config["data"]), str(config["evaluate-on"])
    seed = int(config["seed"])
    train_data = data.load(source, split, seed).train
    mine = data.partitions(
        source,
        split,
        seed,
        int(context.node_config["num-partitions"]),
        str(config["partition"]),
        float(config["dirichlet-alpha"]),
    )[int(context.node_config["partition-id"])]

    torch.set_num_threads(1)
    net = model.build(str(config["model"]), int(train_data.images.shape[-1]), seed)
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(net.parameters(), lr=float(config["learning-rate"]))
    net.train()
    order = torch.as_tensor(mine)
    batch_size = int(config["batch-size"])
    for _ in range(int(config["local-steps"])):
        batch = order[torch.randint(len(order), (batch_size,))]
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(
            net(train_data.images[batch]), train_data.labels[batch]
        )
        loss.backward()
        optimizer.step()
    return Message(
        RecordDict(
            {
                "arrays": ArrayRecord(net.state_dict()),
                "metrics": MetricRecord({"num-examples": len(mine), "loss": loss.item()}),
            }
        ),
        reply_to=message,
    )
