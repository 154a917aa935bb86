"""A client whose behaviour in each round is written in a file on its node."""

import json
import os
import time
from pathlib import Path

import numpy as np
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from network_app import task

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train, or do what the file says of this round."""
    part, parts = (int(context.node_config[k]) for k in ("partition-id", "num-partitions"))
    server_round = str(message.content["config"]["server-round"])
    behaviour = json.loads(Path(str(context.node_config["behaviour"])).read_text())
    weights = task.weights_of(message.content["arrays"])
    way = behaviour.get(server_round, "trains")
    print(f"round {server_round}: {way}", flush=True)
    if way == "hangs":
        time.sleep(1_000_000)
    if way == "dies":
        os._exit(1)
    if way == "sends garbage":
        garbage = np.full((3,), np.nan, dtype=np.float32)
        return Message(RecordDict({"arrays": task.record(garbage)}), reply_to=message)
    weights = task.train(weights, part, parts)
    return Message(RecordDict({"arrays": task.record(weights)}), reply_to=message)
