"""Protected evaluation on the client: predictions and metrics go in, random integers come out."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import RecordDict
from numpy.typing import NDArray

from flower_ldp.clients.release import check_storable
from flower_ldp.errors import ReleaseError, WireError
from flower_ldp.mechanisms._subset import uniform_subset
from flower_ldp.mechanisms.random import RandomSource
from flower_ldp.privacy import PrivacyEvent
from flower_ldp.wire.eval_proposal import EvalProposal
from flower_ldp.wire.eval_report import encode_eval_report, eval_report_length
from flower_ldp.wire.proposal import PROPOSAL_KEY


@dataclass(frozen=True)
class LaplaceEvalRelease:
    """Releases an evaluate reply as private rows of class probabilities and private metrics.

    The proposal names the mechanism of the rows: Laplace noise, or a response over a codebook
    that it brings along.

    The app's reply must hold one ArrayRecord with one array: rows of class probabilities,
    floats of shape (at least the proposed number of rows, classes), as softmax gives them.
    With more rows, as many as proposed are chosen at random, so that their number is public.
    Metrics leave if the proposal names them, each through a mechanism of its own; they must then
    be in the reply's MetricRecord. What else the app replies is dropped.
    """

    def open(self, content: RecordDict) -> OpenEvaluation:
        """Read the proposal.

        Raises
        ------
        WireError
            If the message holds no well-formed proposal of an evaluation.
        ValueError
            If no ledger could keep the report.
        """
        record = content.config_records.get(PROPOSAL_KEY)
        if record is None:
            raise WireError("record", f"the message has no {PROPOSAL_KEY!r} record")
        proposal = EvalProposal.from_fields(record)
        check_storable(eval_report_length(proposal))
        return OpenEvaluation(proposal)


@dataclass(frozen=True)
class OpenEvaluation:
    """An accepted proposal, waiting for the app's predictions."""

    proposal: EvalProposal

    @property
    def events(self) -> tuple[PrivacyEvent, ...]:
        """Cost of all rows and of each metric."""
        return self.proposal.events()

    @property
    def terms(self) -> str:
        """The proposal, as canonical JSON; a codebook by its SHA-256."""
        fields = {
            name: hashlib.sha256(value).hexdigest() if isinstance(value, bytes) else value
            for name, value in self.proposal.to_fields().items()
        }
        return json.dumps(fields, sort_keys=True, separators=(",", ":"))

    def privatize(self, reply: RecordDict, rng: RandomSource) -> bytes:
        """Return the packed report.

        Raises
        ------
        ReleaseError
            If the app's reply has too few rows, rows off the simplex, another width, or
            lacks a metric that was asked for.
        """
        try:
            rows = _chosen(_predictions(reply), self.proposal.mechanism.rows, rng)
            noisy = self.proposal.mechanism.randomize(rows, rng)
            metrics = [
                metric.randomize(_metric(reply, name), rng)
                for name, metric in self.proposal.metrics.items()
            ]
            return encode_eval_report(self.proposal, noisy, metrics)
        except ValueError as error:
            raise ReleaseError(str(error)) from error


def _predictions(reply: RecordDict) -> NDArray[np.floating[Any]]:
    arrays = [array for record in reply.array_records.values() for array in record.values()]
    if len(arrays) != 1:
        raise ReleaseError(f"expected one array with rows of probabilities, found {len(arrays)}")
    rows: NDArray[np.floating[Any]] = arrays[0].numpy()
    if rows.ndim != 2:
        raise ReleaseError(f"rows of probabilities must have two axes, got shape {rows.shape}")
    return rows


def _chosen(
    rows: NDArray[np.floating[Any]], count: int, rng: RandomSource
) -> NDArray[np.floating[Any]]:
    """Return ``count`` rows at random, without replacement."""
    if len(rows) < count:
        raise ReleaseError(f"{count} rows of probabilities were asked for, there are {len(rows)}")
    return rows if len(rows) == count else rows[uniform_subset(rng, len(rows), count)]


def _metric(reply: RecordDict, name: str) -> float:
    found = [record[name] for record in reply.metric_records.values() if name in record]
    if len(found) != 1 or not isinstance(found[0], (int, float)):
        raise ReleaseError(f"expected one number {name!r} among the metrics, found {len(found)}")
    return float(found[0])
