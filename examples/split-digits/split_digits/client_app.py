"""A feature party: half of each image, and a bottom model that never leaves it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from flwr.app import Context
from numpy.typing import NDArray
from torch import Tensor, nn

from flower_ldp.clients import split_client_app
from flower_ldp.mechanisms import BottomModelClaim
from flower_ldp.split import ForwardCorrected, TorchParty
from split_digits import data


def train(
    bottom: nn.Module, features: NDArray[Any], labels: Tensor, loss: ForwardCorrected
) -> None:
    """Train a bottom at its party, on labels that the server randomized."""
    optimizer = torch.optim.Adam(bottom.parameters(), 0.003)
    inputs = torch.from_numpy(features)
    for _ in range(max(10, 100_000 // len(inputs))):
        for rows in torch.randperm(len(inputs)).split(128):
            optimizer.zero_grad()
            loss(bottom(inputs[rows]), labels[rows]).backward()
            optimizer.step()


def load(context: Context) -> TorchParty:
    """Return the party that this node is.

    Its operator says so with --node-config 'side="left" party-folder="/var/lib/party"'; in a
    simulation the partition decides.
    """
    config, node = context.run_config, context.node_config
    side = str(node.get("side") or data.SIDES[int(node["partition-id"])])
    source = str(node.get("data", config["data"]))
    folder = Path(str(node.get("party-folder", config["party-folder"])))
    codes = config["mode"] == "codes"
    width = 10 if codes else int(config["width"])
    # Runs of one mode and width go on with the same bottom; others have one of their own.
    folder = folder / f"{config['mode']}-{width}" / side
    own = data.tables(source, int(config["block-size"]))
    torch.manual_seed(1)
    bottom = nn.Sequential(
        nn.Linear(data.half(source, side, "train").shape[1], 128), nn.Tanh(), nn.Linear(128, width)
    )
    rate = float(config["learning-rate"])
    return TorchParty(
        side,
        own,
        lambda table: data.half(source, side, table),
        bottom,
        # Trained on the records, and not by DP-SGD: so the epsilon is conditional.
        BottomModelClaim("conditional"),
        folder,
        lambda parameters: torch.optim.Adam(parameters, rate),
        train,
    )


app = split_client_app(load)
