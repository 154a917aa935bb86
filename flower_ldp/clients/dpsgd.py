"""DP-SGD through the gate: privately trained models, and accuracy with noise.

The app's reply is not used: a neutral report in place of a failed app would show that one patient
made it fail. The model of :func:`flower_ldp.training.private_training` leaves, whatever the app
does afterwards, or the noisy count of :func:`flower_ldp.training.private_accuracy`. A failing
example counts as zero in each step, and as wrong.

**Guarantee** of a count: epsilon per example and evaluation, delta 0, except for a **failure of the
whole** (docs/dpsgd_release.md): the app raises before its work, skips it, or is late. No epsilon
covers this. Noise alone leaves, and the plan ends, or the run's further evaluations and scalings
are refused.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Generic, Self

import numpy as np
from flwr.app import Array, ArrayRecord, Metadata, MetricRecord, RecordDict
from numpy.typing import NDArray

from flower_ldp.clients.diagnostics import cause_of
from flower_ldp.clients.permit import GrantedRound, Permit, ReleaseRequest, ReplyTiming
from flower_ldp.clients.release import OpenRelease, Release, single_model
from flower_ldp.clients.session import (
    UNKNOWN,
    Arrays,
    CountSession,
    SessionT,
    TrainingSession,
    in_session,
)
from flower_ldp.errors import RefusalError, ReleaseError, WireError, quoted, say
from flower_ldp.mechanisms.example_sums import ExampleMean
from flower_ldp.mechanisms.integer_noise import DEVIATION_BITS, normal
from flower_ldp.mechanisms.random import RandomSource
from flower_ldp.mechanisms.training_outlook import outputs
from flower_ldp.mechanisms.training_plan import TrainingPlan
from flower_ldp.parameter_bounds import check_in
from flower_ldp.privacy import PrivacyEvent
from flower_ldp.refusals import REFUSED_POLICY
from flower_ldp.wire import training_plan as wire
from flower_ldp.wire.layout import ModelLayout
from flower_ldp.wire.proposal import canonical

_log = logging.getLogger("flower_ldp")

#: What is told who writes the app, where the package's own code was not called.
UNDONE = "the app gave no {}: it must reply to each {} message with what {}(context, ...) returns"


def _check_keys(release: object, one: str, other: str) -> None:
    for name, value in vars(release).items():
        if name.endswith("_key") and not (isinstance(value, str) and value):
            raise ValueError(f"{name} must be a text, and not empty, got {value!r}")
    if getattr(release, one) == getattr(release, other):
        raise ValueError(f"{one} and {other} must differ")


@dataclass(frozen=True)
class OpenCharged(OpenRelease, Generic[SessionT]):
    """A message that the package's own code answers."""

    #: What is told who writes the app, where that code was not called.
    undone: ClassVar[str]

    sent: Arrays
    charged: SessionT | None = field(default=None, kw_only=True)

    @property
    def _charged(self) -> SessionT:
        if self.charged is None:
            raise ReleaseError("nothing was charged for this message")
        return self.charged

    def _in_rehearsal(self) -> SessionT:
        raise NotImplementedError

    def reply(self, ask: Callable[[], RecordDict], timing: ReplyTiming) -> RecordDict:
        """Call the app, and drop its reply and later errors."""
        try:
            with in_session(self._charged):
                said = self.complaint(ask())
            if said is not None:
                if timing.is_simulation:
                    raise ReleaseError(said)
                say(_log, logging.WARNING, "%s", said)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            if timing.is_simulation or not self._charged.is_done:
                raise
            say(_log, logging.ERROR, "the app failed after its private work: %s", cause_of(error))
        return RecordDict()

    def rehearsed(self, ask: Callable[[], RecordDict]) -> tuple[RecordDict, Self]:
        """Call the app on public data."""
        held = self._in_rehearsal()
        with in_session(held):
            return ask(), replace(self, charged=held)

    def complaint(self, reply: RecordDict) -> str | None:
        """Return the part of a reply that will not leave."""
        return None if self._charged.is_done else self.undone


@dataclass(frozen=True)
class DPSGDRelease(Release):
    """Releases a train reply as the model that :func:`private_training` made.

    The reply has the arrays sent, and a constant weight: the policy's number of examples.

    Parameters
    ----------
    weight_key : str
        The strategy's ``weighted_by_key``.
    arrays_key, metrics_key : str
        Names of the two records; ValueError if one is empty, or both are the same.
    """

    weight_key: str = "num-examples"
    arrays_key: str = "arrays"
    metrics_key: str = "metrics"

    def __post_init__(self) -> None:
        _check_keys(self, "arrays_key", "metrics_key")

    def open(self, content: RecordDict) -> OpenDPSGD:
        """Read the model that the server sent, and its plan if it proposes one.

        Raises
        ------
        WireError
            If there is not exactly one model, or the plan is malformed.
        ValueError
            If the model has no floating-point entries, or unsupported dtypes.
        """
        sent = single_model(content)
        ModelLayout.of(sent)  # its dtypes
        fields: dict[str, object] = {}
        for name, record in content.config_records.items():
            odd = fields.keys() & record.keys()
            if odd:
                raise WireError("fields", f"the record {name!r} repeats {sorted(odd)}")
            fields.update(record)
        return OpenDPSGD(sent, self, wire.read_plan(fields), wire.read_proximal(fields))


@dataclass(frozen=True)
class OpenDPSGD(OpenCharged[TrainingSession]):
    """A request for a round of training."""

    undone = UNDONE.format("private training", "train", "private_training")

    release: DPSGDRelease
    proposed: TrainingPlan | None
    proximal: float

    @property
    def events(self) -> tuple[PrivacyEvent, ...]:
        """Empty: the plan is charged, not the round."""
        return ()

    @property
    def parameters(self) -> str:
        """Digest of the model sent, and proximal weight."""
        model = wire.model_digest(self.sent)
        return canonical({"mechanism": "dpsgd", "model": model, "proximal-mu": self.proximal})

    def request(self, metadata: Metadata) -> ReleaseRequest:
        """Return the request for a round."""
        asked = replace(super().request(metadata), is_round=True, proposed=self.proposed)
        return replace(asked, classes=outputs(self.sent))

    def with_permit(self, permit: Permit) -> OpenDPSGD:
        """Take the charged round, or refuse."""
        if permit.granted is None:
            raise RefusalError(REFUSED_POLICY, "this authorizer grants no rounds of a plan")
        return replace(self, charged=TrainingSession(permit.granted, self.sent, self.proximal))

    def _in_rehearsal(self) -> TrainingSession:
        plan = TrainingPlan(1, 1, 1.0, 1.0, 1.0, 1e-5)  # one step
        granted = GrantedRound(plan, 1, UNKNOWN)
        return TrainingSession(granted, self.sent, self.proximal, rehearsal=True)

    def complaint(self, reply: RecordDict) -> str | None:
        """Return the part that will not leave."""
        if (undone := super().complaint(reply)) is not None:
            return undone
        known = {self.release.weight_key, DPSGDRelease.weight_key}
        names = {name for record in reply.metric_records.values() for name in record}
        odd = ", ".join(sorted(names - known))
        if not odd:
            return None
        return (
            f"no epsilon pays for the metrics {odd}: a reply of private training has the model and "
            "a constant weight. A strategy that needs more, as QFedAvg a train_loss, cannot be used"
        )

    def privatize(self, reply: RecordDict, rng: RandomSource) -> bytes:
        """Return the model; ReleaseError unless training is complete."""
        trained = self._charged.trained
        if trained is None:
            raise ReleaseError(self.undone)
        return self._packed(trained)

    def neutral(self, rng: RandomSource) -> bytes:
        """Return a model of noise alone, by the app's optimizer if known."""
        alone, made = None, self._charged.noise_alone
        with contextlib.suppress(Exception):  # the optimizer is the app's
            alone = None if made is None else made()
        with np.errstate(all="ignore"):  # of weights that the server picks
            return self._packed(self._moved(rng) if alone is None else alone)

    def content(self, report: bytes) -> RecordDict:
        """Return the reply."""
        arrays, weight = wire.decode_model(report, self.sent)
        record = ArrayRecord({name: Array(array) for name, array in arrays.items()})
        metrics = MetricRecord({self.release.weight_key: weight})
        return RecordDict({self.release.arrays_key: record, self.release.metrics_key: metrics})

    def check_form(self, report: bytes) -> None:
        """Raise WireError unless it is a model like the one sent, integers unchanged."""
        arrays, weight = wire.decode_model(report, self.sent)
        if weight != self._charged.granted.examples:
            raise WireError("domain", f"a weight of {weight}")
        for name, array in self.sent.items():
            if array.dtype.kind != "f" and not np.array_equal(arrays[name], array):
                raise WireError("domain", f"{quoted(name)} is not trained, and is not as it came")

    def _packed(self, arrays: Arrays) -> bytes:
        return wire.encode_model(arrays, self.sent, self._charged.granted.examples)

    def _moved(self, rng: RandomSource) -> dict[str, NDArray[Any]]:
        granted = self._charged.granted
        length = granted.plan.moved_by_noise(granted.examples)
        moved = dict(self.sent)
        for name, array in self.sent.items():
            if array.dtype.kind == "f":
                noise = np.ldexp(normal(array.size, rng).astype(np.float64), -DEVIATION_BITS)
                shift = (length * noise).reshape(array.shape)
                moved[name] = (array.astype(np.float64) + shift).astype(array.dtype)
        return moved


_BYTES = 16


@dataclass(frozen=True)
class AccuracyRelease(Release):
    """Releases an evaluate reply as the share of right predictions, with noise.

    The share may lie outside [0, 1]. The weight is constant: the policy's number of examples.

    Parameters
    ----------
    epsilon : float
        Per example and evaluation, in [1e-6, 100], or ValueError. The policy must allow it for
        ``example_mean``.
    weight_key, accuracy_key, metrics_key : str
        The strategy's ``weighted_by_key``, and names of the metric and the record; ValueError if
        one is empty, or two are the same.
    """

    epsilon: float
    weight_key: str = "num-examples"
    accuracy_key: str = "accuracy"
    metrics_key: str = "metrics"

    def __post_init__(self) -> None:
        check_in("[1e-6, 100]", "epsilon", self.epsilon)
        _check_keys(self, "weight_key", "accuracy_key")

    def open(self, content: RecordDict) -> OpenAccuracy:
        """Read the model sent; raise WireError if there is not exactly one."""
        return OpenAccuracy(single_model(content), self)


@dataclass(frozen=True)
class OpenEvaluation(OpenCharged[SessionT]):
    """A request for an evaluation, private for an example."""

    def request(self, metadata: Metadata) -> ReleaseRequest:
        """Return the request."""
        return replace(super().request(metadata), per_example=True)


@dataclass(frozen=True)
class OpenAccuracy(OpenEvaluation[CountSession]):
    """A request for the share of right predictions."""

    undone = UNDONE.format("count", "evaluate", "private_accuracy")

    release: AccuracyRelease

    @property
    def events(self) -> tuple[PrivacyEvent, ...]:
        """Cost of one evaluation."""
        return ExampleMean(self.release.epsilon, 1).events()

    @property
    def parameters(self) -> str:
        """Epsilon and the model's digest."""
        epsilon, model = float(self.release.epsilon), wire.model_digest(self.sent)
        return canonical({"mechanism": "example_mean", "epsilon": epsilon, "model": model})

    def with_permit(self, permit: Permit) -> OpenAccuracy:
        """Take the number of examples, or refuse."""
        mechanism = ExampleMean(self.release.epsilon, permit.known_examples())
        return replace(self, charged=CountSession(mechanism, permit.example, self.sent))

    def _in_rehearsal(self) -> CountSession:
        mechanism = ExampleMean(self.release.epsilon, 1)
        return CountSession(mechanism, UNKNOWN, self.sent, rehearsal=True)

    def privatize(self, reply: RecordDict, rng: RandomSource) -> bytes:
        """Return the noisy count; ReleaseError without a count."""
        total = self._charged.total
        if total is None:
            raise ReleaseError(self.undone)
        return self._packed(self._charged.mechanism.noised(total, rng))

    def neutral(self, rng: RandomSource) -> bytes:
        """Return a noisy count around one half."""
        return self._packed(self._charged.mechanism.neutral(rng))

    def content(self, report: bytes) -> RecordDict:
        """Return the reply."""
        number, examples = _numbers(report)
        mechanism = ExampleMean(self.release.epsilon, examples)
        share = float(mechanism.estimate(np.array([number]))[0])
        metrics = MetricRecord({self.release.accuracy_key: share})
        metrics[self.release.weight_key] = examples
        return RecordDict({self.release.metrics_key: metrics})

    def check_form(self, report: bytes) -> None:
        """Raise WireError unless it is a count of the policy's examples."""
        _, examples = _numbers(report)
        if examples != self._charged.mechanism.examples:
            raise WireError("domain", f"a count of {examples} examples")

    def _packed(self, number: int) -> bytes:
        numbers = (number, self._charged.mechanism.examples)
        return b"".join(one.to_bytes(_BYTES, "big", signed=True) for one in numbers)


def _numbers(report: bytes) -> tuple[int, int]:
    if len(report) != 2 * _BYTES:
        raise WireError("length", f"{len(report)} bytes are no count")
    number, examples = report[:_BYTES], report[_BYTES:]
    return int.from_bytes(number, "big", signed=True), int.from_bytes(examples, "big", signed=True)
