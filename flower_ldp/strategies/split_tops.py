"""Top models of split training, a top for codes, and checkpoints (docs/embedding.md).

Gradients of a step leave after the top's file is written, and the next step begins when all parties
have made this one: all are within one step.
"""

import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, RecordDict
from numpy.typing import ArrayLike, NDArray

from flower_ldp.parameter_bounds import check_in
from flower_ldp.safe_files import give_name
from flower_ldp.strategies.split_exchange import AlignedParty, Exchange, PartyError, payloads
from flower_ldp.wire.embedding import REWIND, STEP_KEY
from flower_ldp.wire.record_ids import RecordTables

Rows = NDArray[np.float32]
_log = logging.getLogger("flwr")


class Top(ABC):
    """The server's model over all parties' embeddings; a base class.

    For checkpoints it also needs ``save(path)``, atomic and with ``at``, and ``load(path)``.
    """

    at: str | None = None
    """Name of the last step, which the strategy sets; ``""`` before the first. A top that is
    saved saves it too. None if this top sends no gradients, so that bottoms need not be at its
    step."""

    @abstractmethod
    def step(
        self, embeddings: Sequence[Rows], labels: NDArray[np.int64]
    ) -> tuple[float, Sequence[Rows] | None]:
        """Train on one block; return the mean loss before it, and each gradient or None."""

    @abstractmethod
    def predict(self, embeddings: Sequence[Rows]) -> NDArray[np.int64]:
        """Return the labels of each record."""

    @abstractmethod
    def loss(self, embeddings: Sequence[Rows], labels: NDArray[np.int64]) -> float:
        """Return the mean loss over the block's labels, without training."""


def checked_labels(
    tables: RecordTables, labels: Mapping[str, ArrayLike]
) -> dict[str, NDArray[np.int64]]:
    """Return each table's labels as int64, one row per record."""
    if set(labels) != set(tables.tables):
        raise ValueError(f"labels must be for {sorted(tables.tables)}, got {sorted(labels)}")
    found = {}
    for name, values in labels.items():
        array, records = np.asarray(values), len(tables.tables[name])
        if array.dtype.kind not in "iu" or array.shape[:1] != (records,) or array.size == 0:
            raise ValueError(
                f"labels of {name!r} must be integers, {records} or {records} rows of them, got "
                f"{array.dtype} {array.shape}"
            )
        found[name] = array.astype(np.int64)
    return found


class CodeTop(Top):
    """Bayes' rule over the parties' codes, counted with each label from randomized reports.

    ``classes`` is at least 2. ``smoothing``, positive, is the weight, in records, of single
    parties' distributions for a pair of codes.
    """

    def __init__(self, classes: int, smoothing: float = 10.0) -> None:
        check_in("[2, inf)", "classes", classes, int)
        check_in("(0, inf]", "smoothing", smoothing)
        self.classes = classes
        self.smoothing = smoothing
        self.at: str | None = None
        self._labels = np.zeros(classes)
        self._single: list[NDArray[np.float64]] = []
        self._pairs: dict[tuple[int, int], NDArray[np.float64]] = {}

    def step(self, embeddings: Sequence[Rows], labels: NDArray[np.int64]) -> tuple[float, None]:
        """Count a block; return the loss before it."""
        if not self._single:
            widths = [rows.shape[1] for rows in embeddings]
            self._single = [np.zeros((self.classes, width)) for width in widths]
            self._pairs = {
                (i, j): np.zeros((self.classes, widths[i], widths[j]))
                for i, j in combinations(range(len(widths)), 2)
            }
        loss = self.loss(embeddings, labels)
        np.add.at(self._labels, labels, 1.0)
        for counts, rows in zip(self._single, embeddings, strict=True):
            np.add.at(counts, (labels, rows.argmax(axis=1)), 1.0)
        for (i, j), counts in self._pairs.items():
            codes = embeddings[i].argmax(axis=1), embeddings[j].argmax(axis=1)
            np.add.at(counts, (labels, *codes), 1.0)
        return loss, None

    def log_posterior(self, embeddings: Sequence[Rows]) -> NDArray[np.float64]:
        """Return log P(label | reports), shape (records, classes)."""
        if not self._single:
            raise ValueError("there is nothing to predict from: no block was counted yet")
        prior = (self._labels + 1.0) / (self._labels.sum() + self.classes)
        single = [
            (counts + 1.0) / (counts.sum(axis=1, keepdims=True) + counts.shape[1])
            for counts in self._single
        ]
        codes = [rows.argmax(axis=1) for rows in embeddings]
        found = np.log(prior) + sum(
            np.log(law[:, code]).T for law, code in zip(single, codes, strict=True)
        )
        for (i, j), counts in self._pairs.items():
            alone = single[i][:, :, None] * single[j][:, None, :]
            total = counts.sum(axis=(1, 2), keepdims=True)
            both = (counts + self.smoothing * alone) / (total + self.smoothing)
            # with more than two parties each pair corrects the product of its own two laws
            ratio = np.log(both / alone) / max(1, len(codes) - 1)
            found = found + ratio[:, codes[i], codes[j]].T
        high = found.max(axis=1, keepdims=True)
        return np.asarray(found - high - np.log(np.exp(found - high).sum(axis=1, keepdims=True)))

    def predict(self, embeddings: Sequence[Rows]) -> NDArray[np.int64]:
        """Return the most likely labels."""
        return np.asarray(self.log_posterior(embeddings).argmax(axis=1), dtype=np.int64)

    def loss(self, embeddings: Sequence[Rows], labels: NDArray[np.int64]) -> float:
        """Return the mean of -log P(label | reports)."""
        return -float(np.mean(self.log_posterior(embeddings)[np.arange(len(labels)), labels]))


class TopFile:
    """A top's file after each step, and ``.previous`` beside it."""

    def __init__(self, path: str | os.PathLike[str], top: Any) -> None:
        if not (hasattr(top, "save") and hasattr(top, "load")):
            raise TypeError(f"checkpoint needs a top with save and load, got {type(top).__name__}")
        self._top = top
        self._path = Path(path)
        self._previous = self._path.with_name(self._path.name + ".previous")

    def save(self) -> None:
        """Write the top, and keep the previous one."""
        new = self._path.with_name(self._path.name + ".next")
        self._top.save(new)
        give_name(new, self._path, keep=self._previous if self._path.exists() else None)

    def load(self) -> Iterator[bool]:
        """Load the files, newest first, and yield whether it is the newest."""
        found = [path for path in (self._path, self._previous) if path.exists()]
        for path in found:
            self._top.load(path)
            yield path == self._path
        if not found:
            yield False


def settle(
    exchange: Exchange,
    parties: Sequence[AlignedParty],
    top: Top,
    file: TopFile | None = None,
    *,
    any_step: bool = False,
) -> list[AlignedParty]:
    """Set the top and all learning parties to the latest common step, or raise PartyError.

    A top without gradients fits any step; ``any_step`` leaves all parties where they are.
    """
    tried: list[str] = []
    for is_last in [True] if file is None else file.load():
        free = any_step or top.at is None
        tried.append(top.at or "")
        if free or all(_has(party, tried[-1]) for party in parties):
            if file is not None and not is_last:
                file.save()
            return list(parties) if free else _go_back(exchange, parties, tried[-1])
    raise _different(parties, tried)


def _learns(party: AlignedParty) -> bool:
    return party.claim.kind == "conditional"


def _has(party: AlignedParty, step: str) -> bool:
    return not _learns(party) or step in (party.step, *party.earlier)


def _go_back(exchange: Exchange, parties: Sequence[AlignedParty], step: str) -> list[AlignedParty]:
    ahead = {p.node: p.name for p in parties if _learns(p) and p.step != step}
    for name in ahead.values():
        _log.info("party %s goes back to step %s, the latest that all have", name, step or "none")
    content = {node: RecordDict({STEP_KEY: ConfigRecord({"after": step})}) for node in ahead}
    if content:
        payloads(exchange.ask(REWIND, content), ahead)
    return [replace(party, step=step) if party.node in ahead else party for party in parties]


def _different(parties: Sequence[AlignedParty], tried: Sequence[str]) -> PartyError:
    party = next(p for p in parties if _learns(p) and not _has(p, tried[0]))
    own = " or ".join(step or "none" for step in dict.fromkeys((party.step, *party.earlier)))
    return PartyError(
        party.name,
        f"its bottom is at step {own}, the top at {' or '.join(step or 'none' for step in tried)}: "
        "they were not trained together. Give the top's own checkpoint, or files of one step to "
        "all parties, or new folders to begin anew; any_step=True trains them as they are",
    )
