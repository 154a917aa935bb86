"""The case of private training through the gate: a canary among patients, and all that arrives.

One plan is one draw: a server that proposes it, a ``ClientApp`` behind ``LdpMod`` with the owner's
policy and ledger, messages as Flower writes and reads them, and the models that come back. Every
draw charges an account of its own, since no budget holds two claims at such a delta.

The canary is one of several patients. It is planted, so that its rows point one way or the other
as far as clipping lets them, or left out, or its rows fail. The others all point one way: what
becomes of their gradients when the canary fails is much larger than a patient may move the model.
That model has one weight, so its move is the sum of all noisy steps, of which the log-ratio is a
growing function.

In two more contrasts the canary loses its group. The others round by their place in a batch
(:mod:`~flower_ldp.audit_paths.last_bits`), which the canary shifts if it takes part: always, or
by its own coin. The model's move along their gradients is what is looked at.

**Delta** is as large as the number of patients lets it be: of a claim at a small one an audit sees
nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, cast

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from numpy.typing import NDArray

from flower_ldp.accounting.dpsgd import noise_multiplier
from flower_ldp.audit import Case, Contrast
from flower_ldp.audit_paths.last_bits import certain_class, rounded_rows
from flower_ldp.audit_paths.owner import AsDeployed, AuditOwner, asked, score_of_else
from flower_ldp.clients import DPSGDRelease, LdpMod
from flower_ldp.clients.release import single_model
from flower_ldp.mechanisms import TrainingPlan
from flower_ldp.mechanisms.random import RandomSource
from flower_ldp.simulation.flower import over_the_wire
from flower_ldp.training import private_training
from flower_ldp.wire.training_plan import plan_fields

#: Patients, of whom the first is the canary, and rows of each.
PATIENTS, ROWS = 19, 2
#: Of the claim that is audited: below one over the number of patients.
DELTA = 0.05
#: The most models of a plan that are asked for; each takes one step.
ROUNDS = 2
#: Length of a patient's clipped gradient; the canary's is longer before.
CLIP = 1.0
_CANARY = 3.0
#: By which patients take part where it is by chance.
_RATE = 0.7
#: So long a step that the model is the sum and nothing else.
_STEP = 2.0**60

#: Trains as :func:`private_training` does.
Trainer = Callable[..., RecordDict]
#: How far the model went down in the ward's direction, or whatever else arrived.
Outcome = tuple[str, Hashable]
Row = tuple[torch.Tensor, ...] | Exception


@dataclass(frozen=True, eq=False)
class Ward:
    """The rows of all patients, read by index, and what the server does with them.

    Parameters
    ----------
    rows : sequence of tuple of Tensor, or Exception
        What is read, or raised.
    groups : sequence of int or None
        Whose each row is.
    sent, towards : NDArray
        The weights of a linear layer, and where its moves are looked at; shape (outputs, inputs).
    loss : callable
        Of the layer's output.
    rounds : int
        How many models are asked for.
    rate : float
        By which patients take part.
    """

    rows: Sequence[Row]
    groups: Sequence[int | None]
    sent: NDArray[np.float32]
    towards: NDArray[np.float32]
    loss: Callable[[torch.Tensor], torch.Tensor] = torch.sum
    rounds: int = 1
    rate: float = 1.0

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
        row = self.rows[index]
        if isinstance(row, Exception):
            raise row
        return row


def _with_canary(patients: int, *canary: Row) -> Ward:
    """Return the ward in which each of these is a row of the first patient."""
    others = [patient for patient in range(1, patients) for _ in range(ROWS)]
    rows = [*canary, *[(torch.tensor([CLIP]),) for _ in others]]
    one = np.ones((1, 1), dtype=np.float32)
    return Ward(rows, [*[0 for _ in canary], *others], 0 * one, one)


def _of_last_bits(rate: float) -> tuple[Ward, Ward] | None:
    """Return a ward in which the first patient shifts the others, and one without its group.

    None where this processor rounds alike in each place: such wards would show nothing.
    """
    by_chance = rate < 1.0
    # With two rows of each of the others, only the canary's one makes them lie at odd places.
    rows_each = ROWS if by_chance else 1
    found = rounded_rows(rows_each, by_chance=by_chance)
    if not found.found:
        return None
    others = range(1, len(found.rows) + 1)
    rows = [found.certain] + [
        one for row in found.rows for one in (row, *[found.certain] * (rows_each - 1))
    ]
    groups = [patient for patient in others for _ in range(rows_each)]
    kept = Ward(
        [(row,) for row in rows],
        [0, *groups],
        found.weight.numpy(),
        found.gradient.numpy(),
        certain_class,
        rate=rate,
    )
    return kept, replace(kept, groups=[None, *groups])


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
    pointing = (torch.tensor([_CANARY * CLIP]),)
    planted = _with_canary(patients, *[pointing] * ROWS)
    other = _with_canary(patients, *[(-pointing[0],)] * ROWS)
    not_finite = (torch.tensor([float("nan")]),)
    longer = (torch.full((2,), _CANARY * CLIP),)
    served = _Site(
        patients, cache(lambda rounds, rate: _plan(epsilon, delta, rounds, rate)), trainer
    )
    pairs = {
        "canary one way or the other": (planted, other),
        f"the same, in {ROUNDS} rounds": (_longer(planted), _longer(other)),
        "canary planted or left out": (planted, _with_canary(patients)),
        "canary whose rows raise": (
            planted,
            _with_canary(patients, *[OSError("no such scan")] * ROWS),
        ),
        "canary that is not finite": (planted, _with_canary(patients, *[not_finite] * ROWS)),
        "canary of another shape": (planted, _with_canary(patients, *[longer] * ROWS)),
    }
    if patients == PATIENTS:
        of_last_bits = {
            "last bits, a canary without its group": _of_last_bits(1.0),
            f"the same, at a rate of {_RATE:g}": _of_last_bits(_RATE),
        }
        pairs |= {check: pair for check, pair in of_last_bits.items() if pair is not None}
    label = "move of the model"
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


def _plan(epsilon: float, delta: float, rounds: int, rate: float) -> TrainingPlan:
    """Return a plan of one step a round, with no more noise than it needs."""
    noise = noise_multiplier(epsilon, delta, sample_rate=rate, steps=rounds)
    return TrainingPlan(rounds, 1, rate, noise, CLIP, epsilon, delta)


class _Site:
    """A server with plans, a site with a ward, and all that lies between them."""

    def __init__(
        self, patients: int, plan: Callable[[int, float], TrainingPlan], trainer: Trainer
    ) -> None:
        self._reply = {"num-examples": patients}
        self._plan, self._trainer = plan, trainer
        self._owner = AuditOwner(f"example: patient\nexamples: {patients}\n")
        self._numbers = itertools.count()
        self._ward = _with_canary(patients)
        self._app = ClientApp(mods=[LdpMod(train=DPSGDRelease(), admission=AsDeployed())])
        self._app.train()(self._train)

    def answer(self, ward: Ward, rng: RandomSource) -> Outcome:
        """Return what arrives of one plan; the training draws for itself, not from ``rng``."""
        self._ward, number = ward, next(self._numbers)
        weight = ward.sent
        for place in range(ward.rounds):
            name = f"audit-{number}-{place}"
            sent = over_the_wire(_message(weight, self._plan(ward.rounds, ward.rate), name))
            with self._owner.at_home():
                reply = over_the_wire(self._app(sent, self._owner.context(number)))
            if reply.has_error():
                return "error", (reply.error.code, reply.error.reason)
            found = reply.content
            if set(found) != {"arrays", "metrics"} or found["metrics"] != self._reply:
                return "no model", repr(found)
            weight = single_model(found)["weight"]
        move = (ward.sent - weight.astype(np.float64)) / _STEP
        return "model", float((move * ward.towards).sum())

    def _train(self, message: Message, context: Context) -> Message:
        outputs, inputs = self._ward.sent.shape
        trained = self._trainer(
            context,
            torch.nn.Linear(inputs, outputs, bias=False),
            self._ward.loss,
            self._ward,
            optimizer=lambda weights: torch.optim.SGD(weights, lr=_STEP),
            like=(torch.zeros(inputs),),
            groups=self._ward.groups,
            max_rows=ROWS,
        )
        return Message(trained, reply_to=message)


def _message(weight: NDArray[Any], plan: TrainingPlan, name: str) -> Message:
    model = ArrayRecord({"weight": Array(weight)})
    fields = ConfigRecord({**plan_fields(plan)})
    return asked(RecordDict({"arrays": model, "config": fields}), name)


def _scores(outcomes: Sequence[Outcome]) -> NDArray[np.float64]:
    """Return how far the model went down, and numbers far above that for all else."""
    return np.array(
        [
            float(cast(float, content)) if kind == "model" else score_of_else((kind, content))
            for kind, content in outcomes
        ]
    )
