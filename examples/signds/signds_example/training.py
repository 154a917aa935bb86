"""Local training, the same for the private app and the unprotected baseline."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from numpy.typing import NDArray
from torch import nn

from signds_example import data, model

# A process's first optimizer imports what takes torch seconds: here, before workers are copied
# from this process, and not in each of them.
torch.optim.SGD([torch.zeros(1)])


def train(message: Message, context: Context) -> Message:
    """Train the server's model on this client's images; an ordinary Flower handler."""
    config = context.run_config
    source, split = str(config["data"]), str(config["evaluate-on"])
    seed = int(config["seed"])
    mine = data.partitions(
        source,
        split,
        seed,
        int(context.node_config["num-partitions"]),
        str(config["partition"]),
        float(config["dirichlet-alpha"]),
    )[int(context.node_config["partition-id"])]
    return _train_on(data.load(source, split, seed).train, mine, message, context)


def rehearse(message: Message, context: Context) -> Message:
    """Do the same on a sample that is nobody's, before the run is charged for anything."""
    sample = data.sample(int(message.content["config"].get("side", 28)))
    return _train_on(sample, np.arange(len(sample)), message, context)


def _train_on(
    train_data: data.Split, mine: NDArray[np.int64], message: Message, context: Context
) -> Message:
    config = context.run_config
    torch.set_num_threads(1)
    side = int(train_data.images.shape[-1])
    net = model.build(str(config["model"]), side, int(config["seed"]))
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(net.parameters(), lr=_learning_rate(message, context))
    net.to(memory_format=torch.channels_last).train()  # half as long again on a CPU without
    for batch in batches(
        torch.as_tensor(mine), int(config["local-steps"]), int(config["batch-size"])
    ):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(train_data.images[batch]), train_data.labels[batch])
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


def _learning_rate(message: Message, context: Context) -> float:
    """Return the rate of this round, which falls linearly over the run."""
    first = float(context.run_config["learning-rate"])
    last = float(context.run_config["final-learning-rate"])
    rounds = int(context.run_config["num-server-rounds"])
    server_round = int(message.content["config"]["server-round"])
    return first + (last - first) * min((server_round - 1) / rounds, 1.0)


def batches(indices: torch.Tensor, steps: int, batch_size: int) -> Iterator[torch.Tensor]:
    """Return ``steps`` batches, going through all images before any comes again."""
    passes = -(-steps * batch_size // len(indices))
    order = torch.cat([indices[torch.randperm(len(indices))] for _ in range(passes)])
    return iter(order.split(batch_size)[:steps])
