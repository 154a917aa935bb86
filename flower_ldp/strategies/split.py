"""Split learning on the server: labels and a top model here, features at the parties.

Each step asks every party for randomized embeddings of a block of records, trains the top, and
sends learning bottoms the loss gradient. Gradients tell a party about its records' labels; to hide
these, randomize them first (docs/embedding.md).
"""

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from flwr.serverapp import Grid
from numpy.typing import ArrayLike, NDArray

from flower_ldp.mechanisms.random import RandomSource
from flower_ldp.parameter_bounds import check_in
from flower_ldp.strategies.split_exchange import (
    AlignedParty,
    Exchange,
    GridExchange,
    NoisyLabels,
    align,
    payloads,
    send_labels,
)
from flower_ldp.strategies.split_query import EmbeddingQuery
from flower_ldp.strategies.split_tops import Rows, Top, TopFile, checked_labels, settle
from flower_ldp.wire import embedding as wire
from flower_ldp.wire.record_ids import RecordTables

_log = logging.getLogger("flwr")


@dataclass
class SplitResult:
    """Result of a run: the parties by name, and numbers by epoch.

    Each of ``history`` has ``epoch``, ``loss``, ``steps``, ``accuracy-<table>`` and
    ``loss-<table>``.
    """

    parties: list[AlignedParty] = field(default_factory=list)
    history: list[dict[str, float]] = field(default_factory=list)


class SplitStrategy:
    """Trains a top model, and the parties' bottoms through it.

    Parameters
    ----------
    top : Top
        For example :class:`flower_ldp.split.TorchTop`.
    mechanism : UnaryEncoding or CodebookEmbedding
        Each party accepts it or refuses.
    tables : RecordTables
        The ids of the server's records.
    labels : mapping of str to array of integers
        Per table, one label or one row of labels for each id in order.
    parties : int
        Number of feature parties.
    train_table : str
        The table to learn from. The others are evaluated.
    noisy_labels, told : NoisyLabels, optional
        Randomized labels that parties train their bottoms on before any release, and the old name
        of them; TypeError for both.

    Raises
    ------
    ValueError
        If labels and tables do not fit, or a parameter is outside its interval.
    """

    def __init__(
        self,
        top: Top,
        mechanism: wire.EmbeddingMechanism,
        tables: RecordTables,
        labels: Mapping[str, ArrayLike],
        *,
        parties: int = 2,
        train_table: str = "train",
        noisy_labels: NoisyLabels | None = None,
        told: NoisyLabels | None = None,
    ) -> None:
        check_in("[1, inf)", "parties", parties, int)
        if train_table not in tables.tables:
            raise ValueError(f"train_table must be one of {list(tables.tables)}")
        self._query = EmbeddingQuery(mechanism, tables)
        self.top = top
        self.mechanism = mechanism
        self.tables = tables
        self.labels = checked_labels(tables, labels)
        self.parties = parties
        self.train_table = train_table
        if noisy_labels is not None and told is not None:
            raise TypeError("told is the first name of noisy_labels: give noisy_labels alone")
        self.noisy_labels = told if noisy_labels is None else noisy_labels
        if self.noisy_labels is not None:
            self.noisy_labels.check(len(tables.tables[train_table]))
        self._session, self._step = "", 0
        self._after: dict[int, str] = {}

    @property
    def told(self) -> NoisyLabels | None:
        """Old name of ``noisy_labels``."""
        return self.noisy_labels

    def start(
        self,
        grid: Grid | Exchange,
        *,
        epochs: int,
        evaluate_every: int = 1,
        rng: RandomSource | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        any_step: bool = False,
        on_step: Callable[[int, float], None] | None = None,
    ) -> SplitResult:
        """Align, train and evaluate.

        Parameters
        ----------
        grid : Grid or Exchange
            Flower's grid, or :class:`~flower_ldp.strategies.LocalExchange`.
        epochs : int
            Passes over the training table, at least 0. If bottoms change, each pass releases every
            record again at full cost.
        evaluate_every : int
            Epochs between evaluations of the other tables; 0 for none. Test records cost the same.
        rng : RandomSource, optional
            For the order of blocks, which is not private.
        checkpoint : path-like, optional
            File of the top, written at every step and resumed from; TypeError if it cannot be
            saved.
        any_step : bool
            Accept bottoms that were not trained with this top or with each other.
        on_step : callable, optional
            Called with the number of each step, from 1, and its loss.

        Raises
        ------
        RunStopped
            If a party answers without a gate: its reply is not private.
        PartyError
            If a party refuses, fails or does not answer, or its bottom is at another step.
        """
        check_in("[0, inf)", "epochs", epochs, int)
        check_in("[0, inf)", "evaluate_every", evaluate_every, int)
        exchange = grid if isinstance(grid, Exchange) else GridExchange(grid)
        rng = RandomSource.from_os() if rng is None else rng
        terms = [self._query.terms(name) for name in self.tables.tables]
        file = None if checkpoint is None else TopFile(checkpoint, self.top)
        found = align(exchange, terms, self.parties)
        result = SplitResult(settle(exchange, found, self.top, file, any_step=any_step))
        self._after = {party.node: party.step for party in result.parties}
        for party in result.parties:
            _log.info("%s", party.statement(self.mechanism.record_epsilon))
        if self.noisy_labels is not None:
            _log.info("%s", self.noisy_labels.statement())
            own, records = self._query.terms(self.train_table), self.tables.tables[self.train_table]
            send_labels(exchange, result.parties, own, records, self.noisy_labels)
        # Not from rng: a seeded one would name the steps of two runs alike.
        self._session = RandomSource.from_os().random_bytes(8).hex()
        for epoch in range(1, epochs + 1):
            losses = self._epoch(exchange, result.parties, rng, file, on_step)
            row = {"epoch": float(epoch), "loss": float(np.mean(losses)), "steps": len(losses)}
            if evaluate_every and (epoch % evaluate_every == 0 or epoch == epochs):
                row.update(self.evaluate(exchange, result.parties))
            result.history.append(row)
            _log.info("epoch %d: %s", epoch, {k: round(v, 4) for k, v in row.items()})
        return result

    def evaluate(self, exchange: Exchange, parties: Sequence[AlignedParty]) -> dict[str, float]:
        """Return accuracy and loss of all tables but the training table."""
        found = {}
        for table in self.tables.tables:
            if table == self.train_table:
                continue
            right, loss = 0, 0.0
            for block in range(self.tables.blocks(table)):
                embeddings, labels = self._forward(exchange, parties, wire.EVALUATE, table, block)
                right += int((self.top.predict(embeddings) == labels).sum())
                loss += self.top.loss(embeddings, labels) * len(labels)
            found[f"accuracy-{table}"] = right / self.labels[table].size
            found[f"loss-{table}"] = loss / len(self.labels[table])
        return found

    def _epoch(
        self,
        exchange: Exchange,
        parties: Sequence[AlignedParty],
        rng: RandomSource,
        file: TopFile | None,
        on_step: Callable[[int, float], None] | None,
    ) -> list[float]:
        table = self.train_table
        losses = []
        for block in np.argsort(rng.words(self.tables.blocks(table))).tolist():
            embeddings, labels = self._forward(exchange, parties, wire.FORWARD, table, block)
            loss, gradients = self.top.step(embeddings, labels)
            losses.append(loss)
            self._step += 1
            if gradients is not None:
                self.top.at = f"{self._session}-{self._step}"
                if file is not None:
                    file.save()  # before any party is a step ahead of it
                self._backward(exchange, parties, gradients, block)
            if on_step is not None:
                on_step(self._step, loss)
        return losses

    def _forward(
        self, exchange: Exchange, parties: Sequence[AlignedParty], kind: str, table: str, block: int
    ) -> tuple[list[Rows], NDArray[np.int64]]:
        contents = {
            party.node: self._content(table, block, after=self._after.get(party.node, party.step))
            for party in parties
        }
        names = {party.node: party.name for party in parties}
        found = payloads(exchange.ask(kind, contents), names)
        labels, embeddings = self.labels[table][self.tables.rows(table, block)], []
        for node, name in names.items():
            embeddings.append(self._query.decoded(name, found[node], len(labels)))
        return embeddings, labels

    def _backward(
        self,
        exchange: Exchange,
        parties: Sequence[AlignedParty],
        gradients: Sequence[Rows],
        block: int,
    ) -> None:
        contents, names, made = {}, {}, str(self.top.at)
        for party, gradient in zip(parties, gradients, strict=True):
            if party.claim.kind == "conditional":
                after = self._after[party.node]
                content = self._content(self.train_table, block, after=after, step=made)
                content[wire.GRADIENT_KEY] = ArrayRecord({wire.GRADIENT_KEY: Array(gradient)})
                contents[party.node], names[party.node] = content, party.name
        if contents:
            payloads(exchange.ask(wire.BACKWARD, contents), names)
            self._after.update(dict.fromkeys(contents, made))

    def _content(self, table: str, block: int, **step: str) -> RecordDict:
        content = self._query.content(table, block)
        content[wire.STEP_KEY] = ConfigRecord({**step})
        return content
