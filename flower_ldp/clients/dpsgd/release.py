"""DP-SGD through the gate: the model that the package's own training made for this message.

The claim is about one example, so the neutral law for a whole reply that serves claims about a
client would be unsound here: if replacing one patient made the app fail, the server would see noise
in place of a model of all others. So nothing of the app's reply is looked at. What leaves is the
model that :func:`flower_ldp.training.private_training` made for this message, from the model that
the server sent, by all steps of a round that was charged; whatever the app does after that, it
leaves. An example that fails counts as zero within each step (docs/dpsgd_release.md).

An app that fails before all steps are taken, or gives no training, is a failure of the whole. No
epsilon covers it. A model of noise alone leaves, the owner is told, and the plan ends.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Metadata, MetricRecord, RecordDict
from numpy.typing import NDArray

from flower_ldp.clients.admission import (
    GrantedRound,
    PlanRequest,
    ReleaseRequest,
)
from flower_ldp.clients.arrays import single_model
from flower_ldp.clients.calling import cause_of
from flower_ldp.clients.dpsgd.handover import UNKNOWN, Arrays, Handover, handed
from flower_ldp.clients.permit import Handling, Permit
from flower_ldp.clients.release import OpenRelease
from flower_ldp.errors import RefusalError, ReleaseError, WireError, quoted
from flower_ldp.mechanisms.random import RandomSource
from flower_ldp.mechanisms.sampling.integer_noise import DEVIATION_BITS, normal
from flower_ldp.mechanisms.training_plan import TrainingPlan
from flower_ldp.own_log import say
from flower_ldp.privacy import PrivacyEvent
from flower_ldp.refusals import REFUSED_POLICY
from flower_ldp.wire.layout import ModelLayout
from flower_ldp.wire.model import decode_model, encode_model, model_digest
from flower_ldp.wire.training_plan import read_plan, read_proximal

_log = logging.getLogger("flower_ldp")

UNTRAINED = (
    "the app gave no private training: call private_training(context, ...) for each train message, "
    "and reply with what it returns"
)
UNPAID = (
    "no epsilon pays for the metrics {}: a reply of private training has the model and a constant "
    "weight. A strategy that needs more of each client, as QFedAvg its train_loss, cannot be used"
)


@dataclass(frozen=True)
class DPSGDRelease:
    """Releases a train reply as the model that :func:`private_training` made.

    The reply has the form that Flower's own strategies read: one ArrayRecord with the arrays that
    were sent, and one MetricRecord with a weight that is constant: how many examples there are, by
    the owner's policy.

    Parameters
    ----------
    weight_key : str
        The strategy's ``weighted_by_key``.
    arrays_key, metrics_key : str
        Names of the two records.

    Raises
    ------
    ValueError
        If a name is empty, or both are the same.
    """

    weight_key: str = "num-examples"
    arrays_key: str = "arrays"
    metrics_key: str = "metrics"

    def __post_init__(self) -> None:
        for name in ("weight_key", "arrays_key", "metrics_key"):
            value = getattr(self, name)
            if not isinstance(value, str) or not value:
                raise ValueError(f"{name} must be a text, and not empty, got {value!r}")
        if self.arrays_key == self.metrics_key:
            raise ValueError("arrays_key and metrics_key must differ")

    def open(self, content: RecordDict) -> OpenDPSGD:
        """Read the model that the server sent, and the plan if it proposes one.

        Raises
        ------
        WireError
            If the message holds not exactly one model, or a plan that is malformed.
        ValueError
            If the model has no floating-point entries, or entries of another kind.
        """
        sent = single_model(content)
        ModelLayout.of(sent)  # its dtypes
        fields: dict[str, object] = {}
        for name, record in content.config_records.items():
            odd = fields.keys() & record.keys()
            if odd:
                raise WireError("fields", f"the record {name!r} repeats {sorted(odd)}")
            fields.update(record)
        return OpenDPSGD(self, sent, read_plan(fields), read_proximal(fields))


@dataclass(frozen=True)
class OpenDPSGD(OpenRelease):
    """A message that asks for a round of private training.

    Parameters
    ----------
    release : DPSGDRelease
        The form of the reply.
    sent : mapping of str to ndarray
        The model that the server sent.
    proposed : TrainingPlan or None
        The plan that the server proposes.
    proximal : float
        Weight of FedProx's proximal term.
    round : Handover, optional
        Once the round was charged.
    """

    release: DPSGDRelease
    sent: Mapping[str, NDArray[Any]]
    proposed: TrainingPlan | None
    proximal: float
    round: Handover | None = None

    @property
    def events(self) -> tuple[PrivacyEvent, ...]:
        """None: a round costs nothing beside its plan, which the policy decides about."""
        return ()

    @property
    def parameters(self) -> str:
        """What tells this round from another, as canonical JSON: the model that it begins from."""
        fields = {
            "mechanism": "dpsgd",
            "model": model_digest(self.sent),
            "proximal-mu": self.proximal,
        }
        return json.dumps(fields, sort_keys=True, separators=(",", ":"))

    def request(self, metadata: Metadata) -> ReleaseRequest:
        """Return what the admission is asked: a round of a plan."""
        return replace(super().request(metadata), plan=PlanRequest(self.proposed))

    def granted(self, permit: Permit) -> OpenDPSGD:
        """Return the release with the round that was charged.

        Raises
        ------
        RefusalError
            With ``REFUSED_POLICY`` if the admission grants no rounds.
        """
        if permit.granted is None:
            raise RefusalError(REFUSED_POLICY, "this admission grants no rounds of a plan")
        return replace(self, round=Handover(permit.granted, self.sent, self.proximal))

    @property
    def _round(self) -> Handover:
        if self.round is None:
            raise ReleaseError("no round was charged")
        return self.round

    def reply(self, ask: Callable[[], RecordDict], handling: Handling) -> RecordDict:
        """Have the app train. Its reply is dropped, and so is what it raises once it has trained.

        Raises
        ------
        Exception
            Whatever the app raised before; in a simulation after it too.
        """
        try:
            with handed(self._round):
                said = self.complaint(ask())
            if said is not None:
                if handling.is_simulation:
                    raise ReleaseError(said)
                say(_log, logging.WARNING, "%s", said)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            if handling.is_simulation or self._round.trained is None:
                raise
            text = "the app failed after its training; the trained model leaves all the same: %s"
            say(_log, logging.ERROR, text, cause_of(error))
        return RecordDict()

    def rehearsed(self, ask: Callable[[], RecordDict]) -> tuple[RecordDict, OpenDPSGD]:
        """Have the app train one step on public data, and return what judges its reply."""
        plan = TrainingPlan(1, 1, 1.0, 1.0, 1.0, 1.0, 1e-5)
        granted = GrantedRound(plan, 1, UNKNOWN)
        held = Handover(granted, self.sent, self.proximal, rehearsal=True)
        with handed(held):
            return ask(), replace(self, round=held)

    def complaint(self, reply: RecordDict) -> str | None:
        """Return what of a reply will not leave as the app may think; None if nothing is known."""
        if self._round.trained is None:
            return UNTRAINED
        known = {self.release.weight_key, DPSGDRelease.weight_key}
        names = {name for record in reply.metric_records.values() for name in record}
        odd = ", ".join(sorted(names - known))
        return UNPAID.format(odd) if odd else None

    def privatize(self, reply: RecordDict, rng: RandomSource) -> bytes:
        """Return the trained model, packed.

        Raises
        ------
        ReleaseError
            If the app did not train by :func:`private_training`, or not to the end.
        """
        trained = self._round.trained
        if trained is None:
            raise ReleaseError(UNTRAINED)
        return self._packed(trained)

    def neutral(self, rng: RandomSource) -> bytes:
        """Return a model of noise alone, packed.

        By the training's own optimizer if the app came so far as to set it up, else by steps of
        size 1 on all floating-point arrays.
        """
        alone: Arrays | None = None
        with contextlib.suppress(Exception):  # the optimizer is the app's
            alone = self._round.noise_alone()
        with np.errstate(all="ignore"):  # of weights that the server picks
            return self._packed(self._moved(rng) if alone is None else alone)

    def content(self, report: bytes) -> RecordDict:
        """Return the reply that Flower's strategies read."""
        arrays, weight = decode_model(report, self.sent)
        record = ArrayRecord({name: Array(array) for name, array in arrays.items()})
        metrics = MetricRecord({self.release.weight_key: weight})
        return RecordDict({self.release.arrays_key: record, self.release.metrics_key: metrics})

    def check_form(self, report: bytes) -> None:
        """Raise unless these bytes are a model like the one sent, with the constant weight.

        What only an integer array holds leaves as it came, so it is compared; the others may be
        anything that a training makes.

        Raises
        ------
        WireError
            If they are not.
        ReleaseError
            If no round was charged.
        """
        arrays, weight = decode_model(report, self.sent)
        if weight != self._round.granted.examples:
            raise WireError("domain", f"a weight of {weight}")
        for name, array in self.sent.items():
            if array.dtype.kind != "f" and not np.array_equal(arrays[name], array):
                raise WireError("domain", f"{quoted(name)} is not trained, and is not as it came")

    def _packed(self, arrays: Arrays) -> bytes:
        return encode_model(arrays, self.sent, self._round.granted.examples)

    def _moved(self, rng: RandomSource) -> dict[str, NDArray[Any]]:
        granted = self._round.granted
        length = granted.plan.moved_by_noise(granted.examples)
        moved = dict(self.sent)
        for name, array in self.sent.items():
            if array.dtype.kind == "f":
                noise = np.ldexp(normal(array.size, rng).astype(np.float64), -DEVIATION_BITS)
                shift = (length * noise).reshape(array.shape)
                moved[name] = (array.astype(np.float64) + shift).astype(array.dtype)
        return moved
