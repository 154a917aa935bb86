"""Private training and a party of split learning: claims that rest on what this app computes."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from flwr.app import Context, Message
from numpy.typing import NDArray

from flower_ldp.clients import DPSGDRelease, LdpMod, split_client_app
from flower_ldp.mechanisms import BottomModelClaim
from flower_ldp.training import private_training, supervised
from network_app.listed_server import TABLES

GAIN = 1.0
PUBLIC = BottomModelClaim("public")
LIKE = (torch.zeros(2), torch.zeros(1))
ROWS = [(torch.tensor([float(i), 1.0]), torch.tensor([float(i % 3)])) for i in range(8)]


@dataclass(frozen=True)
class Halves:
    """A party whose bottom is public: it doubles numbers."""

    name: str = "left"
    claim: BottomModelClaim = PUBLIC
    tables: Any = TABLES
    step: str = ""

    def digest(self) -> str:
        """Return what tells this bottom from another."""
        return "0" * 64

    def embed(self, table: str, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return two columns for each record."""
        return GAIN * np.column_stack((rows, -rows)).astype(np.float64)


def compute(message: Message, context: Context) -> Message:
    """Take a round's noisy steps."""
    reply = private_training(
        context,
        torch.nn.Linear(2, 1),
        ROWS,
        supervised(torch.nn.functional.mse_loss),
        optimizer=lambda weights: torch.optim.SGD(weights, lr=float(context.run_config["rate"])),
        like=LIKE,
    )
    return Message(reply, reply_to=message)


app = split_client_app(lambda _: Halves())
gate = LdpMod(train=DPSGDRelease())


@app.train()
def train(message: Message, context: Context) -> Message:
    """Answer through the gate; the party's own messages pass theirs."""
    return gate(message, context, compute)
