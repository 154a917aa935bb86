"""What a server sees of each record: cut layers of one party, trained and ready to be drawn from.

Three kinds. ``float`` sends the 128 numbers of the embedding as they are. ``bits`` sends their
signs, through unary encoding at a published label, or bare (epsilon None). Both are trained
through the top, as published. ``codes`` sends one code of ten; its bottom is trained on labels
that were randomized once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import _bottoms as bottoms
import numpy as np
import torch
from _split_bench import CLASSES, Bench
from numpy.typing import NDArray
from torch import Tensor, nn

from flower_ldp.mechanisms import BottomModelClaim, CodebookEmbedding, RandomSource, UnaryEncoding
from flower_ldp.split import EmbeddingDP, TorchParty
from flower_ldp.strategies import NoisyLabels

WIDTH, HIDDEN, EPOCHS, BATCH = 128, 128, 4, 128
RATE_BOTTOM, RATE_TOP = 5e-4, 1e-3

Rows = NDArray[np.int64]
#: Releases the embeddings of some rows of a table once more, as rows of numbers.
Draw = Callable[[str, Rows], Tensor]


@dataclass(frozen=True)
class Setting:
    """What crosses the cut.

    Parameters
    ----------
    kind : {"float", "bits", "codes"}
    epsilon : float or None
        The published label of ``bits``, None for no noise; of a record for ``codes``.
    releases : int
        How many independent releases of each record the attacker has.
    """

    kind: Literal["float", "bits", "codes"]
    epsilon: float | None = None
    releases: int = 1

    @property
    def name(self) -> str:
        """For tables and pictures."""
        if self.kind == "float":
            return "float"
        if self.epsilon is None:
            return "bits, no noise"
        label = "label" if self.kind == "bits" else "epsilon"
        times = f", {self.releases} releases" if self.releases > 1 else ""
        return f"{self.kind}, {label} {self.epsilon:g}{times}"

    @property
    def record_epsilon(self) -> float | None:
        """Return what the releases of one record cost in all; None if nothing bounds it."""
        if self.epsilon is None:
            return None
        if self.kind == "codes":
            return self.releases * CodebookEmbedding(self.epsilon, CLASSES).record_epsilon
        return self.releases * UnaryEncoding(self.epsilon, WIDTH).record_epsilon


@dataclass(frozen=True)
class CutLayer:
    """A trained party and top.

    Parameters
    ----------
    draw : callable
        One release of each of some rows.
    accuracy : float
        On the test records, each released once.
    """

    draw: Draw
    accuracy: float


def trained_through(
    bench: Bench, side: str, epsilon: float | None, bits: bool, seed: int
) -> CutLayer:
    """Train bottom and top in one piece, with the cut layer between them."""
    torch.manual_seed(seed)
    features, labels = bench.features(side), bench.data.labels
    bottom = nn.Linear(features["train"].shape[1], WIDTH)
    cut: nn.Module = EmbeddingDP(epsilon) if bits else nn.Identity()
    top = nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, CLASSES))
    groups = [
        {"params": bottom.parameters(), "lr": RATE_BOTTOM},
        {"params": top.parameters(), "lr": RATE_TOP},
    ]
    optimizer = torch.optim.Adam(groups)
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(labels["train"])).split(BATCH):
            inputs = _inputs(features["train"], rows.numpy())
            loss = nn.functional.cross_entropy(
                top(cut(bottom(inputs))), torch.from_numpy(labels["train"])[rows]
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    embeddings = {table: _embeddings(bottom, found) for table, found in features.items()}
    draw = _draw_bits(embeddings, cut) if bits else _draw_floats(embeddings)
    with torch.no_grad():
        scores = top(cut(embeddings["test"]))
    accuracy = float((scores.argmax(1).numpy() == labels["test"]).mean())
    return CutLayer(draw, accuracy)


@dataclass(frozen=True)
class CodeParty:
    """A party whose bottom gives codes, trained once on labels told once."""

    bench: Bench
    party: TorchParty
    noisy: NoisyLabels

    @classmethod
    def of(cls, bench: Bench, side: str, seed: int) -> CodeParty:
        """Return a party that is not trained yet: its first release trains it."""
        claim = BottomModelClaim("conditional")
        party = bench.party(side, CLASSES, claim, seed, bottoms.adam)
        return cls(bench, party, bench.noisy_labels())

    def accuracy(self, epsilon: float) -> float:
        """Release all records at epsilon and return the accuracy on the test records."""
        return self.bench.codes([self.party], epsilon, self.noisy)

    def codes(self, table: str) -> NDArray[np.int64]:
        """Return the true code of every record of a table."""
        rows = np.arange(len(self.bench.data.labels[table]))
        return np.asarray(self.party.embed(table, rows).argmax(axis=1), dtype=np.int64)


def _inputs(features: NDArray[np.float16], rows: Rows) -> Tensor:
    return torch.from_numpy(features[rows].astype(np.float32))


def _embeddings(bottom: nn.Module, features: NDArray[np.float16]) -> Tensor:
    parts = np.array_split(np.arange(len(features)), -(-len(features) // 1_000))
    with torch.no_grad():
        return torch.cat([bottom(_inputs(features, rows)) for rows in parts])


def _draw_bits(embeddings: dict[str, Tensor], cut: nn.Module) -> Draw:
    return lambda table, rows: 2 * cut(embeddings[table][torch.from_numpy(rows)]) - 1


def _draw_floats(embeddings: dict[str, Tensor]) -> Draw:
    middle, spread = embeddings["train"].mean(0), embeddings["train"].std(0)
    scaled = {table: (rows - middle) / (spread + 1e-6) for table, rows in embeddings.items()}
    return lambda table, rows: scaled[table][torch.from_numpy(rows)]


def released(mechanism: CodebookEmbedding, codes: Rows) -> Rows:
    """Return one release of each true code."""
    return mechanism.response.randomize_array(codes, RandomSource.from_os())
