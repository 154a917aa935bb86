"""The audit case of private training through the gate: a canary among patients.

One plan is one draw: a proposing server, a ``ClientApp`` behind ``LdpMod`` with policy and ledger,
Flower's messages, and the returned models. Every draw charges an account of its own.

The canary is one of several patients. Its rows point one way or the other as far as clipping
allows, are absent, or fail. All others point one way: if the canary's failure changed their
gradients, the model would move much more than one patient may move it. The model has one weight, so
its move is the sum of all noisy steps, of which the log-ratio is an increasing function.

In two more contrasts the canary has no group. The others round by their place in a batch
(:func:`rounded_rows`), which the canary shifts if it takes part: always, or by its own coin. The
score is the model's move along their gradients.

Delta is as large as the number of patients allows: at a small delta an audit sees nothing.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import product

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from numpy.typing import NDArray
from torch.nn import functional

from flower_ldp.accounting.dpsgd import noise_multiplier
from flower_ldp.audit import Case, Contrast
from flower_ldp.audit_paths.cases import AsDeployed, AuditOwner, Outcome, error_of, scores
from flower_ldp.clients import DPSGDRelease, LdpMod
from flower_ldp.clients.release import single_model
from flower_ldp.mechanisms import TrainingPlan
from flower_ldp.mechanisms.random import RandomSource
from flower_ldp.training import private_training, supervised
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
Row = tuple[torch.Tensor, ...] | Exception


@dataclass(frozen=True, eq=False)
class Ward:
    """The rows of all patients, read by index, and the server's requests.

    Parameters
    ----------
    rows : sequence of tuple of Tensor, or Exception
        Returned, or raised.
    groups : sequence of int or None
        The patient of each row.
    sent, towards : NDArray
        The weights of a linear layer, and the direction of the score; shape (outputs, inputs).
    loss : callable
        Of the layer's output.
    rounds : int
        Number of models.
    rate : float
        Sampling rate of patients.
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


def _with_canary(patients: int, canary: Row | None = None) -> Ward:
    """Return the ward in which the first patient has no rows, or this one several times."""
    own = [] if canary is None else [canary] * ROWS
    others = [patient for patient in range(1, patients) for _ in range(ROWS)]
    rows = [*own, *[(torch.tensor([CLIP]),) for _ in others]]
    one = np.ones((1, 1), dtype=np.float32)
    return Ward(rows, [*[0 for _ in own], *others], 0 * one, one)


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
        Few show clipping and steps at a large delta, many show effects on the others.
    trainer : callable
        The app's training. This audit refutes one that clips too late, lets a failing row change
        the others, or takes more steps than were charged.
    """
    far = torch.tensor([_CANARY * CLIP])
    planted, other = (_with_canary(patients, (one,)) for one in (far, -far))
    others: dict[str, Row | None] = {
        "canary planted or left out": None,
        "canary whose rows raise": OSError("no such scan"),
        "canary that is not finite": (torch.tensor([float("nan")]),),
        "canary of another shape": (torch.full((2,), _CANARY * CLIP),),
    }
    in_rounds = replace(planted, rounds=ROUNDS), replace(other, rounds=ROUNDS)
    pairs = {
        "canary one way or the other": (planted, other),
        f"the same, in {ROUNDS} rounds": in_rounds,
        **{check: (planted, _with_canary(patients, row)) for check, row in others.items()},
    }
    if patients == PATIENTS:
        of_last_bits = {
            "last bits, a canary without its group": _of_last_bits(1.0),
            f"the same, at a rate of {_RATE:g}": _of_last_bits(_RATE),
        }
        pairs |= {check: pair for check, pair in of_last_bits.items() if pair is not None}
    score, label = scores(float, float), "move of the model"
    served = _Site(patients, cache(partial(_plan, epsilon, delta)), trainer)
    return Case(
        f"dpsgd-release (ClientApp, LdpMod, ledger, wire; epsilon {epsilon:g}, delta {delta:g})",
        epsilon,
        served.answer,
        tuple(Contrast(check, pair, score, label) for check, pair in pairs.items()),
        [(planted, other), (other, planted)],
        draws=200,
        delta=delta,
        differing=1.0,
    )


def _plan(epsilon: float, delta: float, rounds: int, rate: float) -> TrainingPlan:
    """Return a plan of one step a round, with no more noise than it needs."""
    noise = noise_multiplier(epsilon, delta, sample_rate=rate, steps=rounds)
    return TrainingPlan(rounds, 1, rate, noise, epsilon, delta, clip=CLIP)


class _Site:
    """A server with plans, and a site with a ward."""

    def __init__(
        self, patients: int, plan: Callable[[int, float], TrainingPlan], trainer: Trainer
    ) -> None:
        self._reply = {"num-examples": patients}
        self._plan, self._trainer = plan, trainer
        self._owner = AuditOwner(f"example: patient\nexamples: {patients}\n")
        self._numbers = itertools.count()
        self._ward = _with_canary(patients)
        self._app = ClientApp(mods=[LdpMod(train=DPSGDRelease(), authorizer=AsDeployed())])
        self._app.train()(self._train)

    def answer(self, ward: Ward, rng: RandomSource) -> Outcome:
        """Return what arrives from one plan; the training uses its own randomness, not ``rng``."""
        self._ward, number = ward, next(self._numbers)
        weight = ward.sent
        fields = ConfigRecord({**plan_fields(self._plan(ward.rounds, ward.rate))})
        for _ in range(ward.rounds):
            model = ArrayRecord({"weight": Array(weight)})
            content = RecordDict({"arrays": model, "config": fields})
            reply = self._owner.answer(self._app, content, number)
            if reply.has_error():
                return error_of(reply)
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
            self._ward,
            supervised(self._ward.loss),
            optimizer=lambda weights: torch.optim.SGD(weights, lr=_STEP),
            like=(torch.zeros(inputs),),
            groups=self._ward.groups,
            max_rows=ROWS,
        )
        return Message(trained, reply_to=message)


# Rows that round one way or another by their place in a batch.
#
# The model's weights are about 1e8 and cancel on such a row. So the last bit of a dot product
# decides whether its gradient is zero or clipped, and a kernel's last bits depend on where a row
# lies. A training that computes rows together would let one patient, who shifts the others, change
# what all of them add. Which rows these are, and of which shape, depends on the processor: they are
# searched for.

#: Shapes that are tried: features, and examples beside the first.
_FEATURES, _OTHERS = (30, 64), (18, 15, 12)
#: How many weights are tried, and how many rows for each.
_WEIGHTS, _TRIED = 6, 100
#: A share of rows that round by their place with which the search ends.
_ENOUGH = 0.5
#: A logit's lead over the other at which its class has all of the probability.
_CERTAIN = 20.0


@dataclass(frozen=True)
class RoundedRows:
    """The weights of a linear layer, and rows of class 0 that it rounds by their place.

    Parameters
    ----------
    weight : Tensor
        Shape (2, features).
    rows : list of Tensor
        Shape (features,) each, one for each example but the first. Behind the first they have no
        gradient, without it a clipped one.
    found : float
        The share of them that does so, over the possible sizes of a batch; 0 where a processor
        rounds alike in each place.
    certain : Tensor
        A row without gradient in any place, shape (features,).
    """

    weight: torch.Tensor
    rows: list[torch.Tensor]
    found: float
    certain: torch.Tensor

    @property
    def gradient(self) -> torch.Tensor:
        """The direction of a gradient of these rows, shape (2, features)."""
        mean = torch.stack(self.rows).mean(dim=0)
        return functional.normalize(torch.cat([-mean, mean]), dim=0).reshape(2, -1)


def certain_class(output: torch.Tensor) -> torch.Tensor:
    """Return the loss of outputs whose class is 0, shape (rows, 2)."""
    return functional.cross_entropy(output, torch.zeros(len(output), dtype=torch.int64))


def rounded_rows(rows_each: int, *, by_chance: bool) -> RoundedRows:
    """Search for rows that round the other way behind a first row in a batch.

    Parameters
    ----------
    rows_each : int
        Rows of each other example; the first of them is searched for.
    by_chance : bool
        Whether any number of the examples may be in a batch. Otherwise all are, with a row for each
        place.
    """
    tried: list[RoundedRows] = []
    for others, features in product(_OTHERS, _FEATURES):
        sizes = range(1, others + 1) if by_chance else [others]
        tried += [_rounded(seed, features, others, rows_each, sizes) for seed in range(_WEIGHTS)]
        if any(one.found >= _ENOUGH for one in tried):
            break
    return max(tried, key=lambda one: one.found)


def _rounded(
    seed: int, features: int, others: int, rows_each: int, sizes: Sequence[int]
) -> RoundedRows:
    rng = torch.Generator().manual_seed(seed)
    signs = torch.randint(0, 2, (features,), generator=rng) * 2.0 - 1.0
    weight = torch.zeros(2, features)
    weight[1] = 1e8 * (0.5 + torch.rand(features, generator=rng)) * signs
    # Nearly the same, so that their gradients point the same way.
    near = 1.0 + 1e-2 * torch.randn((_TRIED, features), generator=rng)
    rows = (1.0 + torch.rand(features, generator=rng)) * near
    of_second = weight[1].double()
    rows[:, -1] = -(rows[:, :-1].double() @ of_second[:-1] / of_second[-1]).float()

    moved = torch.zeros(_TRIED, others)
    for size in sizes:
        after = _leads(rows, weight, rows_each * size + 1)[:, 1::rows_each]
        alone = _leads(rows, weight, rows_each * size)[:, ::rows_each]
        moved[:, :size] += (after < -_CERTAIN) & (alone > _CERTAIN)
    if len(sizes) > 1:
        moved = moved.sum(dim=1, keepdim=True).expand(_TRIED, others) / sum(sizes)
    best, places = moved.max(dim=0)
    return RoundedRows(weight, list(rows[places]), float(best.mean()), -signs)


def _leads(rows: torch.Tensor, weight: torch.Tensor, size: int) -> torch.Tensor:
    """Return the lead of class 1 for each row in each place of a batch, shape (rows, size)."""
    logits = [functional.linear(row.repeat(size, 1), weight) for row in rows]
    return torch.stack([one[:, 1] - one[:, 0] for one in logits])
