"""Two feature parties and a server over scikit-learn's handwritten digits, in one process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")

import torch
from flwr.app import Context, RecordDict
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from torch import nn

from flower_ldp.clients import Authorizer, Permit, ReleaseRequest, ReplyTiming, split_client_app
from flower_ldp.mechanisms import BottomModelClaim
from flower_ldp.split import ForwardCorrected, TorchParty
from flower_ldp.strategies import LocalExchange
from flower_ldp.wire.record_ids import Records, RecordTables

HALVES = {"left": slice(0, 4), "right": slice(4, 8)}
SIZES = {"train": 1500, "test": 297}
#: Where learning is not the point, one record in ten: a bottom computes each of them by itself.
FEW, BLOCK = 10, 25


@cache
def digits() -> tuple[NDArray[Any], NDArray[np.int64]]:
    found = load_digits()
    order = np.random.default_rng(0).permutation(len(found.target))
    return found.images[order] / 16.0, found.target[order].astype(np.int64)


def rows_of(table: str) -> slice:
    return slice(0, SIZES["train"]) if table == "train" else slice(SIZES["train"], None)


@cache
def tables(shuffle: int = 0, block: int = BLOCK, one_in: int = FEW) -> RecordTables:
    """Ids of the first rows of each table; a holder may have its rows in any order."""
    found = {}
    for name, all_of_it in SIZES.items():
        size = -(-all_of_it // one_in)
        order = np.random.default_rng(shuffle).permutation(size) if shuffle else range(size)
        found[name] = Records.of(f"{name}-{row}" for row in order)
    return RecordTables(found, block)


@cache
def row_numbers(records: Records) -> NDArray[np.int64]:
    """The rows of the data that a holder's records are."""
    return np.array([int(name.split("-")[1]) for name in records.ids])


def columns(side: str, table: str, own: RecordTables) -> NDArray[Any]:
    """The pixels of one side, in the holder's order."""
    images, _ = digits()
    order = row_numbers(own.tables[table])
    return images[rows_of(table)][order][:, :, HALVES[side]].reshape(len(order), -1)


def labels(own: RecordTables) -> dict[str, NDArray[np.int64]]:
    _, target = digits()
    return {
        table: target[rows_of(table)][row_numbers(records)] for table, records in own.tables.items()
    }


def bottom(width: int, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, width))


def train(
    module: nn.Module, features: NDArray[Any], labels: torch.Tensor, loss: ForwardCorrected
) -> None:
    optimizer = torch.optim.Adam(module.parameters(), 0.01)
    for _ in range(60):
        optimizer.zero_grad()
        loss(module(torch.tensor(features).float()), labels).backward()
        optimizer.step()


@dataclass
class Side:
    """What it takes to load a party anew for each message, as a deployment does."""

    side: str
    folder: Path
    claim: BottomModelClaim
    width: int = 32
    shuffle: int = 0
    block: int = BLOCK
    one_in: int = FEW

    def __call__(self, _: Context) -> TorchParty:
        own = tables(self.shuffle, self.block, self.one_in)
        return TorchParty(
            self.side,
            own,
            lambda table: columns(self.side, table, own),
            bottom(self.width, seed=len(self.side)),
            self.claim,
            self.folder / self.side,
            lambda parameters: torch.optim.Adam(parameters, 0.01),
            train,
        )


@dataclass(frozen=True)
class Everything:
    """Admits all and keeps nothing."""

    is_simulation: bool = True

    def authorize(self, request: ReleaseRequest, context: Context) -> Permit:
        return Permit(ReplyTiming(self.is_simulation), lambda report, last: None)

    def acknowledge(self, message_type: str, context: Context) -> ReplyTiming:
        return ReplyTiming(self.is_simulation)


def local(sides: Mapping[int, Side], authorizer: Authorizer | None = None) -> LocalExchange:
    apps = {}
    for node, side in sides.items():
        context = Context(
            run_id=1,
            node_id=node,
            node_config={"partition-id": node},
            state=RecordDict(),
            run_config={},
        )
        apps[node] = (split_client_app(side, authorizer=authorizer), context)
    return LocalExchange(apps)
