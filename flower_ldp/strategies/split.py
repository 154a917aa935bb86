"""Split learning on the server: labels and a top model here, features at the parties.

A step asks every party for the randomized embeddings of one block of records, moves the top,
and sends each party the gradient of the loss with respect to its embeddings. Parties whose
bottoms are frozen are sent none, and their embeddings are the same in every epoch.

Gradients tell a party about the labels of its records. If labels must be kept from the
parties, randomize them once before they are given to the strategy (docs/embedding.md).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from flwr.serverapp import Grid
from numpy.typing import ArrayLike, NDArray

from flower_ldp.errors import WireError
from flower_ldp.mechanisms.random import RandomSource
from flower_ldp.strategies.split_align import AlignedParty, align
from flower_ldp.strategies.split_exchange import Exchange, GridExchange, PartyError, payloads
from flower_ldp.strategies.split_labels import ToldLabels, tell
from flower_ldp.wire.embedding import (
    BACKWARD,
    EVALUATE,
    FORWARD,
    GRADIENT_KEY,
    STEP_KEY,
    EmbeddingMechanism,
    EmbeddingProposal,
    TableTerms,
    decode_embeddings,
)
from flower_ldp.wire.proposal import PROPOSAL_KEY
from flower_ldp.wire.records import RecordTables

_log = logging.getLogger("flwr")

Rows = NDArray[np.float32]


class Top(Protocol):
    """The server's model over all parties' embeddings."""

    def step(
        self, embeddings: Sequence[Rows], labels: NDArray[np.int64]
    ) -> tuple[float, Sequence[Rows] | None]:
        """Learn from one block.

        Returns
        -------
        loss : float
            Before the step, mean over the block's records.
        gradients : sequence of ndarray or None
            Of the loss, one for each party and shaped as its embeddings; None if this top
            has none to give.
        """

    def predict(self, embeddings: Sequence[Rows]) -> NDArray[np.int64]:
        """Return the label of each record."""


@dataclass
class SplitResult:
    """What a run found.

    Parameters
    ----------
    parties : list of AlignedParty
        In the order of their names.
    history : list of dict
        One for each epoch: ``epoch``, ``loss``, ``steps``, and ``accuracy-<table>`` where a
        table was evaluated.
    """

    parties: list[AlignedParty] = field(default_factory=list)
    history: list[dict[str, float]] = field(default_factory=list)


class SplitStrategy:
    """Training of a top model, and of the parties' bottoms through it.

    Parameters
    ----------
    top : Top
        For example :class:`flower_ldp.split.TorchTop`.
    mechanism : UnaryEncoding or CodebookEmbedding
        The randomizer that parties are asked for; each party accepts it or refuses.
    tables : RecordTables
        The ids of the server's records.
    labels : mapping of str to array of integers
        For each table, one label for each id, in the order of the ids.
    parties : int
        How many feature parties there are; at least 1.
    train_table : str
        The table that is learned from. The others are evaluated.
    told : ToldLabels, optional
        Labels of the training table, randomized once, that parties train their bottoms on
        before anything is released.

    Raises
    ------
    ValueError
        If labels and tables do not fit, or a parameter is outside its interval.
    """

    def __init__(
        self,
        top: Top,
        mechanism: EmbeddingMechanism,
        tables: RecordTables,
        labels: Mapping[str, ArrayLike],
        *,
        parties: int = 2,
        train_table: str = "train",
        told: ToldLabels | None = None,
    ) -> None:
        if parties < 1:
            raise ValueError(f"parties must be at least 1, got {parties}")
        if train_table not in tables.tables:
            raise ValueError(f"train_table must be one of {list(tables.tables)}")
        if not math.isfinite(mechanism.record_epsilon):
            raise ValueError("mechanism must have an epsilon: quantization alone is no release")
        self.top = top
        self.mechanism = mechanism
        self.tables = tables
        self.labels = _checked_labels(tables, labels)
        self.parties = parties
        self.train_table = train_table
        self.told = told
        if told is not None:
            told.check(len(tables.tables[train_table]))
        self._session, self._step = "", 0

    def start(
        self,
        grid: Grid | Exchange,
        *,
        epochs: int,
        evaluate_every: int = 1,
        rng: RandomSource | None = None,
    ) -> SplitResult:
        """Align, train and evaluate.

        Parameters
        ----------
        grid : Grid or Exchange
            Flower's grid, or :class:`~flower_ldp.strategies.LocalExchange`.
        epochs : int
            Passes over the training table; at least 0. Each releases every record once more,
            at its full cost, where bottoms change.
        evaluate_every : int
            Epochs between evaluations of the other tables; 0 for none at all. The last epoch
            is evaluated too. Test records are released as well, and cost as much.
        rng : RandomSource, optional
            For the order of blocks, which is not private.

        Raises
        ------
        PartyError
            If a party refuses, fails or does not answer.
        """
        if epochs < 0 or evaluate_every < 0:
            raise ValueError("epochs and evaluate_every must be at least 0")
        exchange = GridExchange(grid) if isinstance(grid, Grid) else grid
        rng = RandomSource.from_os() if rng is None else rng
        terms = [self._terms(name) for name in self.tables.tables]
        result = SplitResult(align(exchange, terms, self.parties))
        for party in result.parties:
            _log.info("%s", party.statement(self.mechanism.record_epsilon))
        if self.told is not None:
            records = self.tables.tables[self.train_table]
            tell(exchange, result.parties, self._terms(self.train_table), records, self.told)
        self._session = rng.random_bytes(8).hex()
        for epoch in range(1, epochs + 1):
            losses = self._epoch(exchange, result.parties, rng)
            row = {"epoch": float(epoch), "loss": float(np.mean(losses)), "steps": len(losses)}
            if evaluate_every and (epoch % evaluate_every == 0 or epoch == epochs):
                row.update(self.evaluate(exchange, result.parties))
            result.history.append(row)
            _log.info("epoch %d: %s", epoch, {k: round(v, 4) for k, v in row.items()})
        return result

    def evaluate(self, exchange: Exchange, parties: Sequence[AlignedParty]) -> dict[str, float]:
        """Return ``accuracy-<table>`` of every table but the training's."""
        found = {}
        for table in self.tables.tables:
            if table == self.train_table:
                continue
            right = 0
            for block in range(self.tables.blocks(table)):
                embeddings = self._forward(exchange, parties, EVALUATE, table, block)
                labels = self.labels[table][self.tables.rows(table, block)]
                right += int((self.top.predict(embeddings) == labels).sum())
            found[f"accuracy-{table}"] = right / len(self.tables.tables[table])
        return found

    def _epoch(
        self, exchange: Exchange, parties: Sequence[AlignedParty], rng: RandomSource
    ) -> list[float]:
        table = self.train_table
        losses = []
        for block in np.argsort(rng.words(self.tables.blocks(table))).tolist():
            embeddings = self._forward(exchange, parties, FORWARD, table, block)
            labels = self.labels[table][self.tables.rows(table, block)]
            loss, gradients = self.top.step(embeddings, labels)
            losses.append(loss)
            self._step += 1
            if gradients is not None:
                self._backward(exchange, parties, gradients, block)
        return losses

    def _forward(
        self,
        exchange: Exchange,
        parties: Sequence[AlignedParty],
        kind: str,
        table: str,
        block: int,
    ) -> list[Rows]:
        proposal = self._proposal(table, block)
        contents = {party.node: RecordDict({PROPOSAL_KEY: proposal}) for party in parties}
        names = {party.node: party.name for party in parties}
        found = payloads(exchange.ask(kind, contents), names)
        records = len(self.tables.rows(table, block))
        try:
            return [
                decode_embeddings(found[party.node], self.mechanism, records) for party in parties
            ]
        except WireError as error:
            raise PartyError("whose report is malformed", str(error)) from error

    def _backward(
        self,
        exchange: Exchange,
        parties: Sequence[AlignedParty],
        gradients: Sequence[Rows],
        block: int,
    ) -> None:
        proposal = self._proposal(self.train_table, block)
        step = ConfigRecord({"step": f"{self._session}-{self._step}"})
        contents = {
            party.node: RecordDict(
                {
                    PROPOSAL_KEY: proposal,
                    STEP_KEY: step,
                    GRADIENT_KEY: ArrayRecord({GRADIENT_KEY: Array(gradient)}),
                }
            )
            for party, gradient in zip(parties, gradients, strict=True)
            if party.claim.kind == "conditional"
        }
        if contents:
            names = {party.node: party.name for party in parties if party.node in contents}
            payloads(exchange.ask(BACKWARD, contents), names)

    def _proposal(self, table: str, block: int) -> ConfigRecord:
        proposal = EmbeddingProposal(self.mechanism, self._terms(table), block)
        return ConfigRecord({**proposal.to_fields()})

    def _terms(self, table: str) -> TableTerms:
        records = self.tables.tables[table]
        return TableTerms(table, records.digest, len(records), self.tables.block_size)


def _checked_labels(
    tables: RecordTables, labels: Mapping[str, ArrayLike]
) -> dict[str, NDArray[np.int64]]:
    if set(labels) != set(tables.tables):
        raise ValueError(f"labels must be for {sorted(tables.tables)}, got {sorted(labels)}")
    found = {}
    for name, values in labels.items():
        array = np.asarray(values)
        if array.dtype.kind not in "iu" or array.shape != (len(tables.tables[name]),):
            raise ValueError(
                f"labels of {name!r} must be {len(tables.tables[name])} integers, got "
                f"{array.dtype} {array.shape}"
            )
        found[name] = array.astype(np.int64)
    return found
