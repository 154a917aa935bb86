"""The client: ordinary training behind a gate that lets a SignDS report out and nothing else."""

from __future__ import annotations

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from flower_ldp.clients import LdpMod, SignDSRelease
from signdsfl import dataset, model

app = ClientApp(mods=[LdpMod(train=SignDSRelease())])


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train on this client's images; the gate turns the reply into a private report."""
    config, node = context.run_config, context.node_config
    source, seed = str(config["data"]), int(config["seed"])
    all_images = dataset.load(source)[0]
    mine = dataset.partitions(
        source, int(node["num-partitions"]), float(config["dirichlet-alpha"]), seed
    )[int(node["partition-id"])]
    images = dataset.Images(all_images.images[mine], all_images.labels[mine])
    net = model.build(str(config["model"]), int(images.images.shape[-1]), seed)
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    model.train(
        net,
        images,
        int(config["local-epochs"]),
        int(config["batch-size"]),
        float(config["learning-rate"]),
    )
    metrics = MetricRecord({"num-examples": int(np.size(mine))})
    return Message(
        RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics}),
        reply_to=message,
    )
