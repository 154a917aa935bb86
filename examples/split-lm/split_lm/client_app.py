"""The feature party: a text, and the embedding of a language model that never leaves it."""

from __future__ import annotations

from pathlib import Path

import torch
from flwr.app import Context

from flower_ldp.clients import split_client_app
from flower_ldp.mechanisms import BottomModelClaim
from flower_ldp.split import TorchParty
from split_lm import model, text


def load(context: Context) -> TorchParty:
    """Return the party that this node is.

    Its operator says where things are with --node-config
    'party-folder="/var/lib/party" text="/srv/notes.txt"'.
    """
    own = ("text", "eval-text", "party-folder")
    node = {name: context.node_config[name] for name in own if name in context.node_config}
    config = {**context.run_config, **node}
    rate = float(config["learning-rate"])
    return TorchParty(
        "text",
        text.tables(config),
        lambda table: text.windows(config)[table].tokens,
        model.bottom(config),
        # Trained on the text through the server's top: so the epsilon is conditional.
        BottomModelClaim("conditional"),
        Path(str(config["party-folder"])) / "text",
        lambda parameters: torch.optim.Adam(parameters, rate),
    )


app = split_client_app(load)
