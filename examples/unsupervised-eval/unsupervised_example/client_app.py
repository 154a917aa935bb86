"""The private client: a SignDS report and one private prediction leave it, and nothing else."""

import torch
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from flower_ldp.clients import LdpMod, ProtectedEvalRelease, SignDSRelease
from unsupervised_example import data, model

app = ClientApp(mods=[LdpMod(train=SignDSRelease(), evaluate=ProtectedEvalRelease())])


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train as usual; the gate turns the reply into a private report."""
    net, images = _received(message, context)
    config = context.run_config
    optimizer = torch.optim.SGD(net.parameters(), lr=float(config["learning-rate"]))
    for _ in range(int(config["local-steps"])):
        batch = images[torch.randperm(len(images))[: int(config["batch-size"])]]
        optimizer.zero_grad()
        net.losses(batch).mean().backward()
        optimizer.step()
    return Message(RecordDict({"arrays": ArrayRecord(net.state_dict())}), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Predict as usual; the gate adds the noise and drops what the policy does not list."""
    net, images = _received(message, context)
    rows, loss = model.prediction_and_loss(net, images)
    content = {
        "predictions": ArrayRecord({"rows": Array(rows)}),
        "metrics": MetricRecord({"loss": loss}),
    }
    return Message(RecordDict(content), reply_to=message)


def _received(
    message: Message, context: Context
) -> tuple[model.ClusteringAutoencoder, torch.Tensor]:
    """Return the server's model and this client's images."""
    config, node = context.run_config, context.node_config
    images = data.of_run(config)
    mine = images.of_client(int(node["partition-id"]))
    torch.set_num_threads(1)
    net = model.ClusteringAutoencoder(images.side, float(config["sharpness"]))
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    return net, mine
