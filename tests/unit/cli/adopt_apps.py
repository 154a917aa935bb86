"""Small Flower apps as texts, in the shape of each library, for ``flower-ldp adopt``."""

from __future__ import annotations

from pathlib import Path

PROJECT = """\
[project]
name = "ward"
version = "1.0.0"
license = "Apache-2.0"
dependencies = [
    "flwr>=1.32",
]

[tool.flwr.app]
publisher = "nobody"

[tool.flwr.app.components]
serverapp = "ward.server_app:app"
clientapp = "ward.client_app:app"

[tool.flwr.app.config]
num-server-rounds = 4
"""
SERVER = '''\
"""The server."""

from flwr.app import ArrayRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

from ward.task import Net

app = ServerApp()


@app.main()
def main(grid, context):
    strategy = FedAvg(fraction_train=0.5, min_available_nodes=3)
    strategy.start(grid=grid, initial_arrays=ArrayRecord(Net().state_dict()), num_rounds=4)
'''
#: An umlaut before the app shows that columns are counted in bytes.
CLIENT = '''\
"""The client."""

from flwr.app import ArrayRecord, Message, RecordDict
from flwr.clientapp import ClientApp

from ward.task import Net, load_data
from ward.task import train as train_fn

"Größe"; app = ClientApp()


@app.train()
def train(msg, context):
    model = Net()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    model.to("cuda:0")
    trainloader, _ = load_data(context.node_config["partition-id"])
    loss = train_fn(
        model,
        trainloader,
    )
    print(loss)
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict())}), reply_to=msg)


@app.evaluate()
def evaluate(msg, context):
    return Message(RecordDict(), reply_to=msg)
'''
#: Nothing of an app is imported: this module cannot be.
TASK = '''\
"""Model and data."""

import torch
import torch.nn.functional as F
from torch import nn

raise RuntimeError("this module was imported")


def train(model, trainloader):
    criterion = nn.CrossEntropyLoss().to("cuda:0")
    for images, labels in trainloader:
        criterion(model(images), labels).backward()
'''
LIGHTNING = """\
import pytorch_lightning as pl
from flwr.clientapp import ClientApp
from ward.task import Net, load

app = ClientApp()


@app.train()
def train(msg, context):
    model = Net()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    trainer = pl.Trainer(max_epochs=1)
    train_loader = load()
    trainer.fit(model, train_loader)
"""
FASTAI = """\
from fastai.learner import Learner
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def train(msg, context):
    learn = Learner(None, None)
    with learn.no_bar():
        learn.fit_one_cycle(1)
"""
TRANSFORMERS = """\
from flwr.clientapp import ClientApp
from transformers import Trainer
from ward.task import get_model, load_data

app = ClientApp()


@app.train()
def train(msg, ctx):
    model = get_model()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    trainset = load_data(ctx)
    model.train()
    trainer = Trainer(model, train_dataset=trainset)
    trainer.train()


@app.evaluate()
def evaluate(msg, ctx):
    trainer = Trainer(get_model())
    return trainer.evaluate()
"""
SKLEARN = """\
from flwr.clientapp import ClientApp
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
from ward.task import load

app = ClientApp()
scaler = StandardScaler()


@app.train()
def train(msg, context):
    X, y = load()
    scaler.fit(X)
    model = LogisticRegression()
    model.fit(X, y)
"""
OLD = """\
from flwr.client import NumPyClient
from flwr.client.mod import fixedclipping_mod, secaggplus_mod
from flwr.clientapp import ClientApp
from ward.mods import noting
from ward.task import Net, train


class Ward(NumPyClient):
    def fit(self, parameters, config):
        found = train(self.net, self.trainloader)
        return self.net, 1, found


app = ClientApp(client_fn=lambda context: Ward(), mods=[secaggplus_mod, noting, fixedclipping_mod])
"""
QUERY = """\
from flwr.clientapp import ClientApp

app = ClientApp()


@app.query()
def query(msg, context):
    return msg
"""
HISTOGRAMS = """\
import numpy as np
from flwr.app import Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.query()
def query(msg, context):
    frame = load()[["age", "weight"]]
    counts = {}
    for name in frame.columns:
        found, _ = np.histogram(frame[name], bins=np.linspace(0, 100, 6))
        counts[name] = found.tolist()
    return Message(RecordDict({"counts": MetricRecord(counts)}), reply_to=msg)
"""
TIMES = """\
from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.query()
def query(msg, context):
    times, events = load()
    return Message(RecordDict({"rows": ArrayRecord({"T": times, "E": events})}), reply_to=msg)
"""
ASKING = """\
import numpy as np
from flwr.app import Message, RecordDict
from flwr.serverapp import ServerApp

app = ServerApp()


@app.main()
def main(grid, context):
    content = RecordDict()
    messages = [Message(content=content, message_type="query", dst_node_id=node) for node in nodes]
    later = Message(content=content, message_type="query", dst_node_id=1)
    replies = grid.send_and_receive(messages)
    print(sums(replies))
"""
PARTY = (
    QUERY
    + """

@app.train("apply_gradients")
def train(msg, context):
    embedding.backward(msg.content["gradients"])
"""
)


def write(folder: Path, client: str = CLIENT, task: str = TASK, server: str = SERVER) -> Path:
    """Write an app and return its folder."""
    package = folder / "ward"
    package.mkdir(parents=True)
    (folder / "pyproject.toml").write_text(PROJECT)
    files = {"__init__": "", "client_app": client, "task": task, "server_app": server}
    for name, text in files.items():
        (package / f"{name}.py").write_text(text, encoding="utf-8")
    return folder
