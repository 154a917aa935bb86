"""Parties and servers over MNIST, in one process: what the benchmark of embeddings measures."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _images import read
from _wavelets import wavelet_features
from flwr.app import Context, RecordDict
from flwr.clientapp import ClientApp
from numpy.typing import NDArray
from torch import nn

from flower_ldp.clients import Permit, ReleaseRequest, ReplyTiming, split_client_app
from flower_ldp.labels import RandomizedLabels
from flower_ldp.mechanisms import BottomModelClaim, CodebookEmbedding, KaryResponse, RandomSource
from flower_ldp.privacy import Unit
from flower_ldp.split import TorchParty, Train
from flower_ldp.strategies import CodeTop, LocalExchange, NoisyLabels, SplitStrategy
from flower_ldp.wire.record_ids import Records, RecordTables

LABEL_EPSILON, CLASSES, BLOCK = 4.0, 10, 128
HALVES = {"left": slice(0, 14), "right": slice(14, 28)}


@dataclass(frozen=True)
class Data:
    """Images and labels of both tables."""

    images: Mapping[str, NDArray[np.uint8]]
    labels: Mapping[str, NDArray[np.int64]]

    def tables(self) -> RecordTables:
        """Return the records: their ids are their places."""
        ids = {
            table: Records.of(f"{table}-{row}" for row in range(len(labels)))
            for table, labels in self.labels.items()
        }
        return RecordTables(ids, BLOCK)


def load(path: Path, held_out: bool) -> Data:
    """Read an npz file in MNIST's layout."""
    split = read(path).evaluated_on("validation" if held_out else "test")
    images = {"train": split.x, "test": split.held_x}
    return Data(images, {"train": split.y, "test": split.held_y})


def new_top(width: int) -> nn.Module:
    """Return a server's network over what crosses."""
    return nn.Sequential(nn.Linear(width, 128), nn.ReLU(), nn.Linear(128, CLASSES))


class Bench:
    """Parties and servers over one set of data."""

    def __init__(self, data: Data, folder: Path) -> None:
        self.data = data
        self.tables = data.tables()
        self._folder = folder
        self._features: dict[str, dict[str, NDArray[Any]]] = {}
        self._made = 0

    def features(self, side: str) -> dict[str, NDArray[Any]]:
        """Return the features of all tables, of whole images or of one half, or all pixels."""
        if side not in self._features:
            columns = HALVES.get(side, slice(None))
            self._features[side] = {
                table: _pixels(images)
                if side == "pixels"
                else wavelet_features(images[:, :, columns])
                for table, images in self.data.images.items()
            }
        return self._features[side]

    def party(
        self,
        side: str,
        width: int,
        claim: BottomModelClaim,
        seed: int,
        train: Train | None = None,
        rate: float = 1e-3,
        bottom: Callable[[int], nn.Module] | None = None,
    ) -> TorchParty:
        """Return a party with a new bottom: a linear layer, or what is made for its features."""
        torch.manual_seed(seed)
        found = self.features(side)
        self._made += 1
        features = found["train"].shape[1]
        return TorchParty(
            side,
            self.tables,
            lambda table: found[table],
            nn.Linear(features, width) if bottom is None else bottom(features),
            claim,
            self._folder / str(self._made),
            lambda parameters: torch.optim.Adam(parameters, rate),
            train,
            save_every=10**9,
        )

    def noisy_labels(self) -> NoisyLabels:
        """Return the training labels, randomized anew: public data, and no ledger."""
        response = KaryResponse(LABEL_EPSILON, CLASSES, "label", Unit.LABEL)
        labels = response.randomize_array(self.data.labels["train"], RandomSource.from_os())
        return NoisyLabels(RandomizedLabels(labels, np.arange(len(labels)), response))

    def codes(
        self,
        parties: list[TorchParty],
        epsilon: float,
        noisy: NoisyLabels | None,
        codes: int = CLASSES,
    ) -> float:
        """Release all records at epsilon, and return the accuracy on the test records."""
        strategy = SplitStrategy(
            CodeTop(CLASSES),
            CodebookEmbedding(epsilon, codes),
            self.tables,
            self.data.labels,
            parties=len(parties),
            noisy_labels=noisy,
        )
        return strategy.start(exchange(parties), epochs=1).history[-1]["accuracy-test"]

    def before_release(self, party: TorchParty) -> float:
        """Return the accuracy of a bottom itself, on the test records."""
        rows = np.arange(len(self.data.labels["test"]))
        scores = party.embed("test", rows)
        return float((scores.argmax(axis=1) == self.data.labels["test"]).mean())


def _pixels(images: NDArray[np.uint8]) -> NDArray[np.float16]:
    return (images.reshape(len(images), -1) / 255).astype(np.float16)


def exchange(parties: list[TorchParty]) -> LocalExchange:
    """Put parties behind their apps."""

    def app_of(party: TorchParty) -> ClientApp:
        return split_client_app(lambda _: party, authorizer=Uncounted())

    apps = {}
    for number, party in enumerate(parties):
        context = Context(
            run_id=1, node_id=number, node_config={}, state=RecordDict(), run_config={}
        )
        apps[number] = (app_of(party), context)
    return LocalExchange(apps)


@dataclass(frozen=True)
class Uncounted:
    """Admits everything and keeps nothing: what is measured has no ledger in it."""

    def authorize(self, request: ReleaseRequest, context: Context) -> Permit:
        """Admit."""
        return Permit(ReplyTiming(is_simulation=True), lambda report, last: None)

    def acknowledge(self, message_type: str, context: Context) -> ReplyTiming:
        """Admit."""
        return ReplyTiming(is_simulation=True)
