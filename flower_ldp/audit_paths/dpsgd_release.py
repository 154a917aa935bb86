"""The case of private training through the gate: a canary among patients, and all that arrives.

One plan is one draw: a server that proposes it, a ``ClientApp`` behind ``LdpMod`` with the owner's
policy and ledger, messages as Flower writes and reads them, and the models that come back. Every
draw charges an account of its own, since no budget holds two claims at such a delta.

The canary is one of a few patients. It is planted, so that its rows point one way or the other as
far as clipping lets them, or left out, or its rows fail. The others all point one way: what
becomes of their gradients when the canary fails is much larger than a patient may move the model.
That model has one weight, so its move is the sum of all noisy steps, of which the log-ratio is a
growing function.

**Delta** is as large as the number of patients lets it be: of a claim at a small one an audit sees
nothing (:mod:`~flower_ldp.audit_paths.dpsgd`).
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, cast

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, Metadata, RecordDict
from flwr.clientapp import ClientApp
from numpy.typing import NDArray

from flower_ldp.accounting.dpsgd import noise_multiplier
from flower_ldp.audit.cases import Case, Contrast
from flower_ldp.audit_paths.owner import NODE, RUN, AsDeployed, AuditOwner
from flower_ldp.clients import DPSGDRelease, LdpMod
from flower_ldp.clients.arrays import single_model
from flower_ldp.mechanisms import TrainingPlan
from flower_ldp.mechanisms.random import RandomSource
from flower_ldp.simulation.flower import over_the_wire
from flower_ldp.training import private_training
from flower_ldp.wire.training_plan import plan_fields

#: Patients, of whom the first is the canary, and rows of each.
PATIENTS, ROWS = 4, 2
#: Of the claim that is audited: below one over the number of patients.
DELTA = 0.24
#: The most models of a plan that are asked for; each takes one step.
ROUNDS = 2
#: Length of a patient's clipped gradient; the canary's is longer before.
CLIP = 1.0
_CANARY = 3.0
#: What the first patient's rows are.
CANARIES = ("one way", "other way", "left out", "raises", "not finite", "another shape")
# Above every move of the weight. What else arrives gets other scores.
_NO_MODEL = 1e6

#: Trains as :func:`private_training` does.
Trainer = Callable[..., RecordDict]
#: A model's weight, or whatever else arrived.
Outcome = tuple[str, Hashable]


@dataclass(frozen=True)
class Ward:
    """The rows of all patients, read by index.

    Parameters
    ----------
    canary : str
        One of :data:`CANARIES`.
    patients : int
        How many there are, the canary among them.
    rounds : int
        How many models are asked for.
    """

    canary: str
    patients: int = PATIENTS
    rounds: int = 1

    @property
    def groups(self) -> list[int]:
        """Whose each row is."""
        present = range(self.canary == "left out", self.patients)
        return [patient for patient in present for _ in range(ROWS)]

    def __len__(self) -> int:
        return len(self.groups)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
        if self.groups[index]:
            return (torch.tensor([CLIP]),)
        if self.canary == "raises":
            raise OSError("no such scan")
        if self.canary == "another shape":
            return (torch.full((2,), _CANARY * CLIP),)
        pointing = {"one way": 1.0, "other way": -1.0, "not finite": float("nan")}
        return (torch.tensor([pointing[self.canary] * _CANARY * CLIP]),)


def dpsgd_release(
    epsilon: float,
    *,
    delta: float = DELTA,
    patients: int = PATIENTS,
    trainer: Trainer = private_training,
) -> Case:
    """Return the case of a plan of private training on a canary among patients.

    Parameters
    ----------
    epsilon, delta : float
        Claim of the whole plan, per patient; delta is below one over their number.
    patients : int
        How many there are. What clipping or steps do is told by few at a large delta, what
        becomes of the others by many.
    trainer : callable
        What the app trains by. One that clips too late, lets a row that fails change what
        becomes of others, or steps more often than was charged is what this audit is there to
        refute.
    """
    planted, other, left_out, raises, not_finite, shaped = (
        Ward(canary, patients) for canary in CANARIES
    )
    served = _Site(patients, cache(lambda rounds: _plan(epsilon, delta, rounds)), trainer)
    pairs = {
        "canary one way or the other": (planted, other),
        f"the same, in {ROUNDS} rounds": (_longer(planted), _longer(other)),
        "canary planted or left out": (planted, left_out),
        "canary whose rows raise": (planted, raises),
        "canary that is not finite": (planted, not_finite),
        "canary of another shape": (planted, shaped),
    }
    label = "move of the weight"
    return Case(
        f"dpsgd-release (ClientApp, LdpMod, ledger, wire; epsilon {epsilon:g}, delta {delta:g})",
        epsilon,
        served.answer,
        tuple(Contrast(check, pair, _scores, label) for check, pair in pairs.items()),
        [(planted, other), (other, planted)],
        draws=200,
        delta=delta,
        differing=1.0,
    )


def _longer(ward: Ward) -> Ward:
    return replace(ward, rounds=ROUNDS)


def _plan(epsilon: float, delta: float, rounds: int) -> TrainingPlan:
    """Return a plan of one step a round, with no more noise than it needs."""
    noise = noise_multiplier(epsilon, delta, sample_rate=1.0, steps=rounds)
    return TrainingPlan(rounds, 1, 1.0, noise, CLIP, epsilon, delta)


class _Site:
    """A server with plans, a site with a ward, and all that lies between them."""

    def __init__(
        self, patients: int, plan: Callable[[int], TrainingPlan], trainer: Trainer
    ) -> None:
        self._reply = {"num-examples": patients}
        self._plan, self._trainer = plan, trainer
        self._owner = AuditOwner(f"example: patient\nexamples: {patients}\n")
        self._numbers = itertools.count()
        self._ward = Ward(CANARIES[0], patients)
        self._app = ClientApp(mods=[LdpMod(train=DPSGDRelease(), admission=AsDeployed())])
        self._app.train()(self._train)

    def answer(self, ward: Ward, rng: RandomSource) -> Outcome:
        """Return what arrives of one plan; the training draws for itself, not from ``rng``."""
        self._ward, number = ward, next(self._numbers)
        weight = np.zeros((1, 1), dtype=np.float32)
        for place in range(ward.rounds):
            name = f"audit-{number}-{place}"
            asked = over_the_wire(_message(weight, self._plan(ward.rounds), name))
            with self._owner.at_home():
                reply = over_the_wire(self._app(asked, self._owner.context(number)))
            if reply.has_error():
                return "error", (reply.error.code, reply.error.reason)
            found = reply.content
            if set(found) != {"arrays", "metrics"} or found["metrics"] != self._reply:
                return "no model", repr(found)
            weight = single_model(found)["weight"]
        return "model", weight.item()

    def _train(self, message: Message, context: Context) -> Message:
        trained = self._trainer(
            context,
            torch.nn.Linear(1, 1, bias=False),
            lambda output: output.sum(),
            self._ward,
            optimizer=lambda weights: torch.optim.SGD(weights, lr=1.0),
            like=(torch.zeros(1),),
            groups=self._ward.groups,
            max_rows=ROWS,
        )
        return Message(trained, reply_to=message)


def _message(weight: NDArray[Any], plan: TrainingPlan, name: str) -> Message:
    model = ArrayRecord({"weight": Array(weight)})
    fields = ConfigRecord({**plan_fields(plan)})
    where = Metadata(
        run_id=RUN,
        message_id=name,
        src_node_id=NODE + 1,
        dst_node_id=NODE,
        reply_to_message_id="",
        group_id="audit",
        created_at=0.0,
        ttl=3600.0,
        message_type="train",
    )
    # Flower's own processes make messages so; its signature names what apps may give.
    make = cast(Callable[..., Message], Message)
    return make(content=RecordDict({"arrays": model, "config": fields}), metadata=where)


def _scores(outcomes: Sequence[Outcome]) -> NDArray[np.float64]:
    """Return how far the weight went down, and numbers far above that for all else."""
    return np.array(
        [
            -float(cast(float, content))
            if kind == "model"
            else _NO_MODEL + zlib.crc32(repr((kind, content)).encode())
            for kind, content in outcomes
        ]
    )
