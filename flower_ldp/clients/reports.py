"""Releases by a proposal: an update or predictions go in, the report of a mechanism comes out.

The update is the trained model minus the model that the server sent, over all floating-point
arrays in the record's order, or over those that the proposal names (:mod:`flower_ldp.wire.layout`).
What else the app replies (metrics, number of examples, configuration, other arrays) is dropped.
Where the proposal states a subspace, the update's projection takes its place. The mechanism that
the proposal names makes the report of it.

An extension sees the update and a source of randomness, and nothing else of the message, the reply
or the context. What leaves has the stated length, whatever it does: a report that is none, or an
error, is replaced by a neutral report that was drawn before the app was called.

Of a protected evaluation predictions and metrics go in, and random integers come out.
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
from flower_ldp.clients.permit import Permit, ReleaseRequest, canonical
from flower_ldp.clients.release import OpenRelease, Release
from flower_ldp.errors import WireError, quoted
from flower_ldp.extensions.contract import ExtensionReport
from flower_ldp.mechanisms import UPDATE_MECHANISMS, Codeword, Gaussian, name_complaint
from flower_ldp.mechanisms.base import UpdateMechanism
from flower_ldp.mechanisms.laplace import read_simplex_rows
from flower_ldp.mechanisms.random import RandomSource, uniform_subset
from flower_ldp.mechanisms.signds_round import SignDSRound
from flower_ldp.privacy import PrivacyEvent
from flower_ldp.wire import evaluation as wire
from flower_ldp.wire.layout import ModelLayout, Trainable, named_by, patterns_of, without_part
from flower_ldp.wire.proposal import (
    UpdateProposal,
    append_health,
    health_length,
    split_health,
)

MechanismT = TypeVar("MechanismT", bound=UpdateMechanism)
#: How many arrays a complaint names.
_MOST_TOLD = 8


def read_proposal(
    content: RecordDict, known: Mapping[str, Callable[..., MechanismT]], trainable: Trainable | None
) -> tuple[UpdateProposal[MechanismT], ModelLayout, dict[str, NDArray[Any]]]:
    """Return the proposal of a message, the layout of the model that came with it, and the model.

    Parameters
    ----------
    content : RecordDict
        Of the server's message.
    known : mapping of str to callable
        By the name of a mechanism, what reads its parameters.
    trainable : str or sequence of str, optional
        Arrays that the app trains; None for whatever the proposal names.

    Raises
    ------
    RefusalError
        If the message holds no proposal.
    WireError
        If the message holds no well-formed proposal or not exactly one model, or the proposal is
        about other arrays than ``trainable`` names.
    ValueError
        If the model cannot be flattened or is too small for the proposal, has no array that
        ``trainable`` names, or no ledger could keep the report.
    """
    fields, part = without_part(release.proposed(content))
    proposal = UpdateProposal.from_fields(fields, known)
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
    return proposal, layout, sent


def trained_model(reply: RecordDict, layout: ModelLayout) -> dict[str, NDArray[Any]]:
    """Return the arrays of a reply's only ArrayRecord, as far as the update is made of them.

    Where the layout wants the arrays of the update alone, others are not opened: they can be of
    any bytes.

    Raises
    ------
    WireError
        As :func:`single_model`, of the arrays that are opened.
    ValueError
        As :meth:`~flower_ldp.wire.layout.ModelLayout.check_names`, before one is opened.
    """
    found = release.single_record(reply)
    layout.check_names(found)  # before one is opened: a record may name an array very many times
    return {spec.name: release.open_array(found[spec.name]) for spec in layout.required}


class OpenProposal(OpenRelease):
    """An accepted proposal, whose report has a health bit behind it if one is asked for."""

    proposal: UpdateProposal[Any] | wire.EvalProposal

    @property
    def events(self) -> tuple[PrivacyEvent, ...]:
        """Cost of the report, with all that is asked for beside it."""
        return self.proposal.events()

    def _with_health(self, report: bytes, rng: RandomSource, *, neutral: bool) -> bytes:
        if (response := self.proposal.health) is None:
            return report
        return append_health(report, response.randomize(neutral, rng))

    def _without_health(self, report: bytes) -> bytes:
        return split_health(report, asked=self.proposal.health is not None)[0]


@dataclass(frozen=True)
class OpenUpdate(OpenProposal, Generic[MechanismT]):
    """An accepted proposal, with the model to measure the update from."""

    proposal: UpdateProposal[MechanismT]
    layout: ModelLayout
    sent: Mapping[str, NDArray[Any]]

    @property
    def parameters(self) -> str:
        """The proposal, its part of the model and the dimension, as canonical JSON."""
        proposed, part = self.proposal.to_fields(), self.layout.part.to_fields()
        return canonical({**proposed, **part, "dimension": self.layout.dimension})

    def privatize(self, reply: RecordDict, rng: RandomSource) -> bytes:
        """Return the packed report.

        A neutral one if the app's reply holds not exactly one model, another layout than the
        model sent, or a value that is not finite; about a part, only that part is looked at.
        """
        text = "the app's reply holds no model like the one sent: %s"
        return self._answer(release.or_none(lambda: self._update(reply), text), rng)

    def neutral(self, rng: RandomSource) -> bytes:
        """Return a packed report by the mechanism's neutral law.

        The health bit, where one is asked for, says yes before it is randomized.
        """
        return self._answer(None, rng)

    def complaint(self, reply: RecordDict) -> str | None:
        """Return what makes a report of this reply neutral; None if nothing does."""
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
        """Raise WireError unless some honest client could have sent these bytes."""
        self.proposal.mechanism.decode(self._without_health(report), self.layout.entries)

    def _update(self, reply: RecordDict) -> NDArray[np.float32]:
        """Return the trained model minus the model sent; infinite where float32 has no such number.

        Raises
        ------
        WireError, ValueError
            As :func:`trained_model`, and if the arrays are others than those sent.
        """
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
        return self._with_health(report, rng, neutral=is_neutral)


@dataclass(frozen=True)
class UpdateRelease(Release):
    """Releases a train reply as the report that a mechanism makes of the update.

    The update is the trained model minus the model that the server sent, over **all**
    floating-point arrays that the proposal is about, arrays without axes included. What else the
    app replies (metrics, number of examples, integer and boolean arrays) is dropped. A
    proposal may be about fewer arrays, or a projection of the update. The proposal names the
    mechanism; those of the subclasses accept one alone.

    Parameters
    ----------
    trainable : str or sequence of str, optional
        Names or patterns (``"head.*"``) of the arrays that the app trains. The app may then reply
        with these alone. A proposal about others is refused before anything is charged; without
        it the proposal decides. Others that the app replies never leave.
    """

    mechanisms: ClassVar[tuple[type[UpdateMechanism], ...]] = UPDATE_MECHANISMS

    trainable: Trainable | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        patterns_of(self.trainable)  # its type

    def open(self, content: RecordDict) -> OpenUpdate[UpdateMechanism]:
        """Read the proposal and the model that the server sent.

        Raises
        ------
        RefusalError, WireError, ValueError
            As :func:`read_proposal`.
        """
        known = {kind.name: kind.of_parameters for kind in self.mechanisms}
        return OpenUpdate(*read_proposal(content, known, self.trainable))


class SignDSRelease(UpdateRelease):
    """Releases a train reply as a SignDS report: dimensions, a sign and, if asked for, a bit."""

    mechanisms = (SignDSRound,)


class CodewordRelease(UpdateRelease):
    """Releases a train reply as the name of one codeword near the update's direction."""

    mechanisms = (Codeword,)


class GaussianRelease(UpdateRelease):
    """Releases a train reply as a clipped and noised update, one byte an entry."""

    mechanisms = (Gaussian,)


@dataclass(frozen=True)
class ExtensionRelease(Release):
    """Releases a train reply as the report of one extension (``docs/extensions.md``).

    The owner's policy must allow the extension, by its distribution, version and digest; it is
    loaded where the release is admitted, and nowhere else.

    Parameters
    ----------
    name : str
        Of the extension. A server that proposes another one is refused.
    trainable : str or sequence of str, optional
        Names or patterns (``"head.*"``) of the arrays that the app trains, and may reply with
        alone. A proposal about others is refused; without it the proposal decides.

    Raises
    ------
    ValueError
        If the name is none, or a built-in mechanism's.
    """

    name: str
    trainable: Trainable | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        complaint = name_complaint(self.name)
        if complaint is not None:
            raise ValueError(complaint)
        patterns_of(self.trainable)  # its type

    def open(self, content: RecordDict) -> OpenExtension:
        """Read the proposal and the model that the server sent; nothing is loaded.

        Raises
        ------
        WireError
            If the message holds no well-formed proposal of this extension, or not exactly one
            model.
        ValueError
            If the model cannot be flattened, or no ledger could keep the report.
        """
        known = {self.name: partial(ExtensionReport.named, self.name)}
        return OpenExtension(*read_proposal(content, known, self.trainable))


@dataclass(frozen=True)
class OpenExtension(OpenUpdate[ExtensionReport]):
    """An accepted proposal of an extension; with a permit it has the extension too."""

    def request(self, metadata: Metadata) -> ReleaseRequest:
        """Return what the authorizer is asked: with what it is to load."""
        asked, entries = super().request(metadata), self.layout.entries
        return replace(asked, extension=self.proposal.mechanism, entries=entries)

    def with_permit(self, permit: Permit) -> OpenExtension:
        """Return the release with the extension that was admitted.

        Raises
        ------
        TypeError
            If the authorizer knows of no extensions.
        """
        if permit.prepared is None:
            raise TypeError("the authorizer has loaded no extension")
        return replace(self, proposal=replace(self.proposal, mechanism=permit.prepared))

    def check_form(self, report: bytes) -> None:
        """Raise TypeError: a node lets no report of an extension out."""
        OpenRelease.check_form(self, report)


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
class OpenEvaluation(OpenProposal):
    """An accepted proposal, waiting for the app's predictions."""

    proposal: wire.EvalProposal

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
