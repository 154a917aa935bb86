"""How many predictions are right, with noise: what Flower's strategies evaluate on clients.

The count is about one example, as a round of private training is: an example that fails counts as
wrong, and nothing else changes. What leaves is the count of the package's own
:func:`flower_ldp.training.private_accuracy` with discrete Laplace noise, as an ordinary metric.

**Guarantee**: epsilon per example and evaluation, and delta 0, but for a failure of the whole. An
app that raises before its count, never counts, or is late fails as a whole: whether it does may
depend on one example, and no epsilon covers it. Then a count of noise around one half leaves, and
it is sealed as the last of the run. Every further evaluation of the run is refused, and every
further scaling (:mod:`~flower_ldp.clients.dpsgd.scaling`). So the server learns from refusals which
evaluation failed: one of their number + 1 things for each run. A killed process shows as a gap, and
the run goes on.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from flwr.app import Metadata, MetricRecord, RecordDict
from numpy.typing import NDArray

from flower_ldp.clients.admission import ReleaseRequest
from flower_ldp.clients.arrays import single_model
from flower_ldp.clients.calling import cause_of
from flower_ldp.clients.dpsgd.handover import UNKNOWN, CountHandover, handed
from flower_ldp.clients.permit import Handling, Permit
from flower_ldp.clients.release import OpenRelease
from flower_ldp.errors import RefusalError, ReleaseError, WireError
from flower_ldp.mechanisms.example_sums import ExampleMean
from flower_ldp.mechanisms.random import RandomSource
from flower_ldp.own_log import say
from flower_ldp.privacy import PrivacyEvent
from flower_ldp.refusals import REFUSED_POLICY
from flower_ldp.wire.model import model_digest

_log = logging.getLogger("flower_ldp")
_BYTES = 16
UNCOUNTED = (
    "the app gave no count: call private_accuracy(context, ...) for each evaluate message, and "
    "reply with what it returns"
)


@dataclass(frozen=True)
class AccuracyRelease:
    """Releases an evaluate reply as the share of right predictions, with noise.

    The reply has one MetricRecord, as Flower's strategies read it: the share, which may lie outside
    of [0, 1], and a weight that is constant: how many examples there are, by the owner's policy.

    Parameters
    ----------
    epsilon : float
        Of one evaluation, per example; in [1e-6, 100]. The owner's policy has to allow it, by the
        name ``example_mean``.
    weight_key : str
        The strategy's ``weighted_by_key``.
    accuracy_key : str
        Name of the metric.
    metrics_key : str
        Name of the record.

    Raises
    ------
    ValueError
        If epsilon is outside its interval, a name is empty, or two are the same.
    """

    epsilon: float
    weight_key: str = "num-examples"
    accuracy_key: str = "accuracy"
    metrics_key: str = "metrics"

    def __post_init__(self) -> None:
        if not 1e-6 <= self.epsilon <= 100:
            raise ValueError(f"epsilon must be in [1e-6, 100], got {self.epsilon}")
        for name in ("weight_key", "accuracy_key", "metrics_key"):
            value = getattr(self, name)
            if not isinstance(value, str) or not value:
                raise ValueError(f"{name} must be a text, and not empty, got {value!r}")
        if self.weight_key == self.accuracy_key:
            raise ValueError("weight_key and accuracy_key must differ")

    def open(self, content: RecordDict) -> OpenAccuracy:
        """Read the model that the server sent.

        Raises
        ------
        WireError
            If the message holds not exactly one model.
        """
        return OpenAccuracy(self, single_model(content))


@dataclass(frozen=True)
class OpenAccuracy(OpenRelease):
    """A message that asks how many predictions are right.

    Parameters
    ----------
    release : AccuracyRelease
        Price and form of the reply.
    sent : mapping of str to ndarray
        The model that the server sent.
    count : CountHandover, optional
        Once the evaluation was charged.
    """

    release: AccuracyRelease
    sent: Mapping[str, NDArray[Any]]
    count: CountHandover | None = None

    @property
    def events(self) -> tuple[PrivacyEvent, ...]:
        """Cost of one evaluation, whatever the number of examples."""
        return ExampleMean(self.release.epsilon, 1).events()

    @property
    def parameters(self) -> str:
        """The price, and the model that is evaluated, as canonical JSON."""
        fields = {
            "mechanism": "example_mean",
            "epsilon": float(self.release.epsilon),
            "model": model_digest(self.sent),
        }
        return json.dumps(fields, sort_keys=True, separators=(",", ":"))

    def request(self, metadata: Metadata) -> ReleaseRequest:
        """Return what the admission is asked: a release about the policy's examples."""
        return replace(super().request(metadata), per_example=True)

    def granted(self, permit: Permit) -> OpenAccuracy:
        """Return the release with how many examples there are.

        Raises
        ------
        RefusalError
            With ``REFUSED_POLICY`` if the admission does not say so.
        """
        if permit.examples is None:
            raise RefusalError(REFUSED_POLICY, "how many examples there are is not known")
        mechanism = ExampleMean(self.release.epsilon, permit.examples)
        return replace(self, count=CountHandover(mechanism, permit.example, self.sent))

    @property
    def _count(self) -> CountHandover:
        if self.count is None:
            raise ReleaseError("no evaluation was charged")
        return self.count

    def reply(self, ask: Callable[[], RecordDict], handling: Handling) -> RecordDict:
        """Have the app count. Its reply is dropped, and what it raises once it has counted."""
        try:
            with handed(self._count):
                ask()
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            if handling.is_simulation or self._count.total is None:
                raise
            say(_log, logging.ERROR, "the app failed after its count: %s", cause_of(error))
        return RecordDict()

    def rehearsed(self, ask: Callable[[], RecordDict]) -> tuple[RecordDict, OpenAccuracy]:
        """Have the app count on public data, and return what judges its reply."""
        held = CountHandover(ExampleMean(self.release.epsilon, 1), UNKNOWN, self.sent, None, True)
        with handed(held):
            return ask(), replace(self, count=held)

    def complaint(self, reply: RecordDict) -> str | None:
        """Return what of a reply will not leave as the app may think; None if nothing is known."""
        return UNCOUNTED if self._count.total is None else None

    def privatize(self, reply: RecordDict, rng: RandomSource) -> bytes:
        """Return the count with noise, packed.

        Raises
        ------
        ReleaseError
            If the app did not count by :func:`private_accuracy`.
        """
        total = self._count.total
        if total is None:
            raise ReleaseError(UNCOUNTED)
        return self._packed(self._count.mechanism.noised(total, rng))

    def neutral(self, rng: RandomSource) -> bytes:
        """Return a count of which half are right, with noise, packed."""
        return self._packed(self._count.mechanism.neutral(rng))

    def content(self, report: bytes) -> RecordDict:
        """Return the reply that Flower's strategies read."""
        number, examples = _numbers(report)
        mechanism = ExampleMean(self.release.epsilon, examples)
        share = float(mechanism.estimate(np.array([number]))[0])
        metrics = MetricRecord({self.release.accuracy_key: share})
        metrics[self.release.weight_key] = examples
        return RecordDict({self.release.metrics_key: metrics})

    def check_form(self, report: bytes) -> None:
        """Raise unless these bytes are a count of the policy's number of examples.

        Raises
        ------
        WireError
            If they are not.
        ReleaseError
            If no evaluation was charged.
        """
        _, examples = _numbers(report)
        if examples != self._count.mechanism.examples:
            raise WireError("domain", f"a count of {examples} examples")

    def _packed(self, number: int) -> bytes:
        numbers = (number, self._count.mechanism.examples)
        return b"".join(one.to_bytes(_BYTES, "big", signed=True) for one in numbers)


def _numbers(report: bytes) -> tuple[int, int]:
    """Return what was counted, with noise, and of how many."""
    if len(report) != 2 * _BYTES:
        raise WireError("length", f"{len(report)} bytes are no count")
    number, examples = (
        int.from_bytes(part, "big", signed=True) for part in (report[:_BYTES], report[_BYTES:])
    )
    return number, examples
