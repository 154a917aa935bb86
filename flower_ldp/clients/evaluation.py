"""Protected evaluation on the client: predictions and metrics go in, random integers come out."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import RecordDict
from numpy.typing import NDArray

from flower_ldp.clients import release
from flower_ldp.clients.permit import canonical
from flower_ldp.clients.release import OpenRelease, Release
from flower_ldp.mechanisms.laplace import read_simplex_rows
from flower_ldp.mechanisms.random import RandomSource
from flower_ldp.mechanisms.sampling.exact import uniform_subset
from flower_ldp.privacy import PrivacyEvent
from flower_ldp.wire import evaluation as wire
from flower_ldp.wire.proposal import append_health, health_length, split_health


@dataclass(frozen=True)
class ProtectedEvalRelease(Release):
    """Releases an evaluate reply as private rows of class probabilities and private metrics.

    The proposal names the mechanism of the rows: Laplace noise, or a response over a codebook
    that it brings along.

    The app's reply must hold one ArrayRecord with one array: rows of class probabilities,
    floats of shape (rows, classes), as softmax gives them. The proposal says how many rows leave.
    With more, as many as proposed are chosen at random; with fewer, the rows are taken again, as
    often as it needs. So the number of a client's examples does not show in rows that are
    neutral, and that is sound because the claim is about the client, whatever its rows are.
    Metrics leave if the proposal names them, each through a mechanism of its own; they must then
    be in the reply's MetricRecord. Rows that cannot be read, all rows where there is none, and
    metrics that are missing or no numbers are answered by the neutral law, each by itself. What
    else the app replies is dropped.
    """

    def open(self, content: RecordDict) -> OpenEvaluation:
        """Read the proposal.

        Raises
        ------
        RefusalError
            If the message holds no proposal.
        WireError
            If the message holds no well-formed proposal of an evaluation.
        ValueError
            If no ledger could keep the report.
        """
        proposal = wire.EvalProposal.from_fields(release.proposed(content))
        health = health_length(proposal.health_epsilon)
        release.check_storable(wire.eval_report_length(proposal) + health)
        return OpenEvaluation(proposal)


@dataclass(frozen=True)
class OpenEvaluation(OpenRelease):
    """An accepted proposal, waiting for the app's predictions."""

    proposal: wire.EvalProposal

    @property
    def events(self) -> tuple[PrivacyEvent, ...]:
        """Cost of all rows, of each metric, and of the health bit if it is asked for."""
        return self.proposal.events()

    @property
    def parameters(self) -> str:
        """The proposal, as canonical JSON; a codebook by its SHA-256."""
        fields = {
            name: hashlib.sha256(value).hexdigest() if isinstance(value, bytes) else value
            for name, value in self.proposal.to_fields().items()
        }
        return canonical(fields)

    def privatize(self, reply: RecordDict, rng: RandomSource) -> bytes:
        """Return the packed report.

        Neutral in each row that is off the simplex, in all of them if the app's reply has none,
        and in each metric that was asked for and is no number there.
        """
        mechanism = self.proposal.mechanism
        rows = _chosen(release.array_or_none(reply), (mechanism.rows, mechanism.classes), rng)
        return self._report(rows, _metrics(reply), rng)

    def neutral(self, rng: RandomSource) -> bytes:
        """Return a packed report of neutral rows and neutral metrics.

        The health bit, where one is asked for, says yes before it is randomized.
        """
        return self._report(None, {}, rng)

    def complaint(self, reply: RecordDict) -> str | None:
        """Return what makes a report of this reply neutral in part; None if nothing does.

        Fewer rows than the proposal asks for are nothing to complain of in a rehearsal.
        """
        classes = self.proposal.mechanism.classes

        def wrong(found: NDArray[Any]) -> int | None:
            if not _are_rows(found, classes):
                return None
            return int(np.count_nonzero(~read_simplex_rows(found, (len(found), classes))[1]))

        expected = f"rows of class probabilities, shape (n, {classes}) with at least one"
        fault = "rows are off the simplex (negative somewhere, or not adding up to 1)"
        rows = release.rows_complaint(reply, expected, wrong, fault)
        missing = self._missing(_metrics(reply))
        return rows or (f"no number for the metrics {missing}" if missing else None)

    def check_form(self, report: bytes) -> None:
        """Raise WireError unless some honest client could have sent these bytes."""
        report, _ = split_health(report, asked=self.proposal.health is not None)
        wire.decode_eval_report(report, self.proposal)

    def _report(
        self, rows: NDArray[Any] | None, metrics: Mapping[str, object], rng: RandomSource
    ) -> bytes:
        noisy, asked = self.proposal.mechanism.randomize(rows, rng), self.proposal.metrics.items()
        told = [metric.randomize(metrics.get(name), rng) for name, metric in asked]
        report = wire.encode_eval_report(self.proposal, noisy, told)
        response = self.proposal.health
        if response is None:
            return report
        return append_health(report, response.randomize(self._is_neutral(rows, metrics), rng))

    def _is_neutral(self, rows: NDArray[Any] | None, metrics: Mapping[str, object]) -> bool:
        """Return whether a row or a metric is answered by a neutral law."""
        shape = self.proposal.mechanism.rows, self.proposal.mechanism.classes
        return not read_simplex_rows(rows, shape)[1].all() or bool(self._missing(metrics))

    def _missing(self, metrics: Mapping[str, object]) -> list[str]:
        """Return the metrics that were asked for and are no numbers."""
        asked = self.proposal.metrics.items()
        return [name for name, metric in asked if not metric.reads(metrics.get(name))]


def _chosen(
    rows: NDArray[Any] | None, shape: tuple[int, int], rng: RandomSource
) -> NDArray[Any] | None:
    """Return as many rows as asked for, or None for no rows: too few are taken again and again.

    What is missing after that, and what is too much, is chosen at random without replacement.
    """
    count, classes = shape
    if rows is None or not _are_rows(rows, classes):
        return None
    whole, more = divmod(count, len(rows))
    places = [np.arange(len(rows))] * whole
    if more:
        places.append(uniform_subset(rng, len(rows), more))
    return rows[np.concatenate(places)]


def _are_rows(found: NDArray[Any], classes: int) -> bool:
    """Return whether an array has one row or more of so many real numbers."""
    shape = found.ndim == 2 and len(found) > 0 and found.shape[1] == classes
    return shape and found.dtype.kind in "biuf"


def _metrics(reply: RecordDict) -> dict[str, object]:
    """Return the reply's metrics; those of one name in two records are no metric."""
    found: dict[str, object] = {}
    for record in reply.metric_records.values():
        for name, value in record.items():
            found[name] = None if name in found else value
    return found


#: The first name of :class:`ProtectedEvalRelease`, which then ran Laplace noise alone: the same
#: class, for good.
LaplaceEvalRelease = ProtectedEvalRelease
