"""Releases of model updates and evaluations, by the proposal's mechanism.

An extension's invalid reports and errors are replaced by a neutral report drawn before the app ran.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
from flwr.app import Metadata, RecordDict
from numpy.typing import NDArray

from flower_ldp.clients import release
from flower_ldp.clients.permit import Permit, ReleaseRequest
from flower_ldp.clients.release import OpenRelease, Release
from flower_ldp.errors import RefusalError, WireError, quoted
from flower_ldp.extensions.contract import ExtensionReport
from flower_ldp.mechanisms import UPDATE_MECHANISMS, Codeword, Gaussian, name_complaint
from flower_ldp.mechanisms.base import UpdateMechanism
from flower_ldp.mechanisms.laplace import read_simplex_rows
from flower_ldp.mechanisms.random import RandomSource, uniform_subset
from flower_ldp.mechanisms.signds_round import SignDSRound
from flower_ldp.privacy import PrivacyEvent
from flower_ldp.refusals import REFUSED_PROPOSAL
from flower_ldp.shuffle.sealing import RoundKey, sealed_length, stated, without_key
from flower_ldp.wire import evaluation as wire
from flower_ldp.wire.layout import ModelLayout, Trainable, named_by, patterns_of, without_part
from flower_ldp.wire.proposal import (
    UpdateProposal,
    append_health,
    canonical,
    health_length,
    split_health,
)

MechanismT = TypeVar("MechanismT", bound=UpdateMechanism)
#: How many arrays a complaint names.
_MOST_TOLD = 8


def read_proposal(
    content: RecordDict, known: Mapping[str, Callable[..., MechanismT]], trainable: Trainable | None
) -> tuple[UpdateProposal[MechanismT], ModelLayout, dict[str, NDArray[Any]], RoundKey | None]:
    """Return proposal, layout, model and analyzer's key of a message; errors as ``open``."""
    fields, part = without_part(release.proposed(content))
    try:
        fields, key = without_key(fields)
    except ModuleNotFoundError as error:  # the extra
        raise RefusalError(REFUSED_PROPOSAL, str(error)) from error
    proposal = UpdateProposal.from_fields(fields, known)
    if key is not None and not isinstance(proposal.mechanism, Codeword):
        raise WireError("fields", f"an analyzer adds up codewords, not {proposal.mechanism.name}")
    sent = release.single_model(content)
    # An app that names what it trains may reply with that alone, also where it is all there is
    # to train and the proposal names nothing: counters and arrays without entries are not of it.
    layout = ModelLayout.of(sent, part, alone=trainable is not None)
    patterns = patterns_of(trainable)
    if patterns is not None:  # public facts, before the charge
        own, asked = set(named_by(patterns, sent)), {s.name for s in layout.updated if s.size}
        if own != asked:
            more, less = quoted(sorted(own - asked)), quoted(sorted(asked - own))
            raise WireError("trainable", f"here alone: {more}, at the server alone: {less}")
    release.check_storable(proposal.report_bytes(layout.entries))
    return proposal, layout, sent, key


def trained_model(reply: RecordDict, layout: ModelLayout) -> dict[str, NDArray[Any]]:
    """Return the update's arrays; others may hold any bytes."""
    found = release.single_record(reply)
    layout.check_names(found)  # before one is opened: a record may name an array very many times
    return {spec.name: release.open_array(found[spec.name]) for spec in layout.required}


class OpenProposal(OpenRelease):
    """An accepted proposal."""

    proposal: UpdateProposal[Any] | wire.EvalProposal

    @property
    def events(self) -> tuple[PrivacyEvent, ...]:
        """Cost of the report, with a health bit."""
        return self.proposal.events()

    def _with_health(self, report: bytes, rng: RandomSource, *, neutral: bool) -> bytes:
        if (response := self.proposal.health) is None:
            return report
        return append_health(report, response.randomize(neutral, rng))

    def _without_health(self, report: bytes) -> bytes:
        return split_health(report, asked=self.proposal.health is not None)[0]


@dataclass(frozen=True)
class OpenUpdate(OpenProposal, Generic[MechanismT]):
    """A proposal about an update."""

    proposal: UpdateProposal[MechanismT]
    layout: ModelLayout
    sent: Mapping[str, NDArray[Any]]
    #: Reports leave as ciphertexts, which the ledger stores and repeats.
    analyzer_key: RoundKey | None = field(default=None, kw_only=True)

    @property
    def parameters(self) -> str:
        """Proposal, part, dimension and the analyzer's key as JSON."""
        return stated(self.proposal, self.layout, self.analyzer_key)

    def request(self, metadata: Metadata) -> ReleaseRequest:
        """Return the request; of a ciphertext with the analyzer's key, under the proposal's name.

        Another message of the same proposal then gets the same ciphertext.
        """
        asked = super().request(metadata)
        if self.analyzer_key is None:
            return asked
        name = f"sealed {hashlib.sha256(asked.parameters.encode()).hexdigest()}"
        return replace(asked, message_id=name, analyzer_key=self.analyzer_key)

    def privatize(self, reply: RecordDict, rng: RandomSource) -> bytes:
        """Return the report, neutral unless the reply is one finite model like the one sent."""
        text = "the app's reply holds no model like the one sent: %s"
        return self._answer(release.or_none(lambda: self._update(reply), text), rng)

    def neutral(self, rng: RandomSource) -> bytes:
        """Return a neutral report."""
        return self._answer(None, rng)

    def complaint(self, reply: RecordDict) -> str | None:
        """Return why a report would be neutral."""
        try:
            update = self._update(reply)
        except Exception as error:
            return f"the reply holds no model like the one sent: {error}"
        spoiled, ends = [], np.cumsum([spec.size for spec in self.layout.updated])
        for spec, piece in zip(self.layout.updated, np.split(update, ends[:-1]), strict=True):
            if not np.isfinite(piece).all():
                name, odd = quoted(spec.name), release.odd_entries(piece)
                spoiled.append(f"of array {name}, shape {spec.shape}, {odd}")
        return f"the update is not finite: {'; '.join(spoiled[:_MOST_TOLD])}" if spoiled else None

    def check_form(self, report: bytes) -> None:
        """Check a report; of a ciphertext, its length."""
        if self.analyzer_key is None:
            self.proposal.mechanism.decode(self._without_health(report), self.layout.entries)
        elif len(report) != sealed_length(self.proposal.report_bytes(self.layout.entries)):
            raise WireError("length", f"{len(report)} bytes are no sealed report")

    def _update(self, reply: RecordDict) -> NDArray[np.float32]:
        return self.layout.difference(trained_model(reply, self.layout), self.sent)

    def _answer(self, update: NDArray[np.float32] | None, rng: RandomSource) -> bytes:
        is_neutral = update is None or not np.isfinite(update).all()
        mechanism, entries = self.proposal.mechanism, self.layout.entries
        value: NDArray[np.floating[Any]] | None = update
        if self.layout.part.subspace is not None:
            # Decided before the projection: entries that are not finite need not show behind it.
            # The work is done all the same, so that time does not tell.
            none = np.zeros(self.layout.dimension, dtype=np.float32)
            projected = self.layout.project(none if update is None or is_neutral else update)
            value = None if is_neutral else projected
        # The neutral law answers for None and for what is not finite.
        report = mechanism.encode(mechanism.randomize(value, rng, entries), entries)
        report = self._with_health(report, rng, neutral=is_neutral)
        key = self.analyzer_key
        return report if key is None else key.seal(report, self.parameters)


@dataclass(frozen=True)
class UpdateRelease(Release):
    """Releases a train reply as a mechanism's report of the update.

    The update is the trained model minus the model sent, over **all** floating-point arrays that
    the proposal is about, scalars included, or a projection of it. The rest of the reply is
    dropped.

    Parameters
    ----------
    trainable : str or sequence of str, optional
        Names or patterns (``"head.*"``) of the arrays that the app trains, and may reply with
        alone. Other arrays never leave, and a proposal about them is refused before the charge. By
        default the proposal decides.
    """

    mechanisms: ClassVar[tuple[type[UpdateMechanism], ...]] = UPDATE_MECHANISMS

    trainable: Trainable | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        patterns_of(self.trainable)  # its type

    def open(self, content: RecordDict) -> OpenUpdate[UpdateMechanism]:
        """Read the proposal and the model sent.

        Raises
        ------
        RefusalError
            If the message holds no proposal.
        WireError
            If the proposal is malformed or about other arrays, or there is not exactly one model.
        ValueError
            If model and proposal do not fit, or no ledger could keep the report.
        """
        known = {kind.name: kind.of_parameters for kind in self.mechanisms}
        proposal, layout, sent, key = read_proposal(content, known, self.trainable)
        return OpenUpdate(proposal, layout, sent, analyzer_key=key)


class SignDSRelease(UpdateRelease):
    """Releases a train reply as a SignDS report."""

    mechanisms = (SignDSRound,)


class CodewordRelease(UpdateRelease):
    """Releases a train reply as a codeword near the update's direction."""

    mechanisms = (Codeword,)


class GaussianRelease(UpdateRelease):
    """Releases a train reply as a clipped, noised update."""

    mechanisms = (Gaussian,)


@dataclass(frozen=True)
class ExtensionRelease(Release):
    """Releases a train reply as the report of one extension (``docs/extensions.md``).

    The owner's policy must allow it by distribution, version and digest. It is loaded only after
    that. Proposals of others than ``name`` are refused; an invalid or built-in name raises
    ValueError. ``trainable`` is as in :class:`UpdateRelease`.
    """

    name: str
    trainable: Trainable | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        complaint = name_complaint(self.name)
        if complaint is not None:
            raise ValueError(complaint)
        patterns_of(self.trainable)  # its type

    def open(self, content: RecordDict) -> OpenExtension:
        """Read proposal and model, without loading the extension, as :meth:`UpdateRelease.open`."""
        known = {self.name: partial(ExtensionReport.named, self.name)}
        proposal, layout, sent, key = read_proposal(content, known, self.trainable)
        return OpenExtension(proposal, layout, sent, analyzer_key=key)


@dataclass(frozen=True)
class OpenExtension(OpenUpdate[ExtensionReport]):
    """A proposal of an extension."""

    def request(self, metadata: Metadata) -> ReleaseRequest:
        """Return the request with the extension to load."""
        asked, entries = super().request(metadata), self.layout.entries
        return replace(asked, extension=self.proposal.mechanism, entries=entries)

    def with_permit(self, permit: Permit) -> OpenExtension:
        """Take the loaded extension."""
        if permit.prepared is None:
            raise TypeError("the authorizer has loaded no extension")
        return replace(self, proposal=replace(self.proposal, mechanism=permit.prepared))

    def check_form(self, report: bytes) -> None:
        """Raise TypeError: a guarded node lets no extension's report out."""
        OpenRelease.check_form(self, report)


@dataclass(frozen=True)
class ProtectedEvalRelease(Release):
    """Releases an evaluate reply as private rows of class probabilities and private metrics.

    The app's reply must hold one ArrayRecord with one array of softmax rows, floats of shape (rows,
    classes), and a MetricRecord. More rows than asked for are sampled without replacement, fewer
    repeated: neutral rows do not reveal the number of examples, and the guarantee is about the
    client. Metrics leave if the proposal names them, each by its own mechanism. Unreadable or
    missing rows and metrics are neutral, each by itself. The rest is dropped.
    """

    def open(self, content: RecordDict) -> OpenEvaluation:
        """Read the proposal; errors as :meth:`UpdateRelease.open`."""
        proposal = wire.EvalProposal.from_fields(release.proposed(content))
        health = health_length(proposal.health_epsilon)
        release.check_storable(wire.eval_report_length(proposal) + health)
        return OpenEvaluation(proposal)


@dataclass(frozen=True)
class OpenEvaluation(OpenProposal):
    """A proposal about an evaluation."""

    proposal: wire.EvalProposal

    @property
    def parameters(self) -> str:
        """The proposal as JSON, with a codebook's SHA-256."""
        fields = {
            name: hashlib.sha256(value).hexdigest() if isinstance(value, bytes) else value
            for name, value in self.proposal.to_fields().items()
        }
        return canonical(fields)

    def privatize(self, reply: RecordDict, rng: RandomSource) -> bytes:
        """Return the report, neutral in each unreadable row and metric."""
        mechanism = self.proposal.mechanism
        rows = _chosen(release.array_or_none(reply), (mechanism.rows, mechanism.classes), rng)
        return self._report(rows, _metrics(reply), rng)

    def neutral(self, rng: RandomSource) -> bytes:
        """Return a neutral report."""
        return self._report(None, {}, rng)

    def complaint(self, reply: RecordDict) -> str | None:
        """Return why a report would be partly neutral."""
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
        """Check a report."""
        wire.decode_eval_report(self._without_health(report), self.proposal)

    def _report(
        self, rows: NDArray[Any] | None, metrics: Mapping[str, object], rng: RandomSource
    ) -> bytes:
        noisy, asked = self.proposal.mechanism.randomize(rows, rng), self.proposal.metrics.items()
        told = [metric.randomize(metrics.get(name), rng) for name, metric in asked]
        report = wire.encode_eval_report(self.proposal, noisy, told)
        shape = self.proposal.mechanism.rows, self.proposal.mechanism.classes

        neutral = not read_simplex_rows(rows, shape)[1].all() or bool(self._missing(metrics))
        return self._with_health(report, rng, neutral=neutral)

    def _missing(self, metrics: Mapping[str, object]) -> list[str]:
        asked = self.proposal.metrics.items()
        return [name for name, metric in asked if not metric.reads(metrics.get(name))]


def _chosen(
    rows: NDArray[Any] | None, shape: tuple[int, int], rng: RandomSource
) -> NDArray[Any] | None:
    count, classes = shape
    if rows is None or not _are_rows(rows, classes):
        return None
    whole, more = divmod(count, len(rows))
    places = [np.arange(len(rows))] * whole
    if more:
        places.append(uniform_subset(rng, len(rows), more))
    return rows[np.concatenate(places)]


def _are_rows(found: NDArray[Any], classes: int) -> bool:
    shape = found.ndim == 2 and len(found) > 0 and found.shape[1] == classes
    return shape and found.dtype.kind in "biuf"


def _metrics(reply: RecordDict) -> dict[str, object]:
    found: dict[str, object] = {}
    for record in reply.metric_records.values():
        for name, value in record.items():
            found[name] = None if name in found else value
    return found


#: The first name of :class:`ProtectedEvalRelease`, which then ran Laplace noise alone: the same
#: class, for good.
LaplaceEvalRelease = ProtectedEvalRelease
