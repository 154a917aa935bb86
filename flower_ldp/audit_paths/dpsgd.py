"""The case of DP-SGD: a canary in the data, and the trained model.

The canary is one example whose gradient points one way, or the other way: of two examples that
replace each other, no pair is farther apart after clipping. All others have no gradient. Their
model has one weight, so that the weight's move is the sum of all noisy steps, of which the
log-ratio is a growing function.

**Delta.** DP-SGD's noise keeps a claim at every delta, and a claim at a small one is out of
an audit's reach: with the noise for (1, 1e-5) two inputs look alike in all but one of 10^4
trainings. So the noise that is audited is the one that the accounting asks for at a large delta,
where some thousands of trainings tell noise that is short by a third from noise that is not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, TensorDataset

from flower_ldp.audit.cases import Case, Contrast
from flower_ldp.audit_paths.owner import AuditOwner
from flower_ldp.mechanisms.random import RandomSource
from flower_ldp.training import ExactDPOptimizer, PrivateTraining, make_private

#: Of the claim that is audited.
DELTA = 0.4
#: Length of an example's clipped gradient; the canary's is longer before.
CLIP = 1.0
_CANARY = 3.0

#: Trains once with what :func:`make_private` returned.
Trainer = Callable[[PrivateTraining], None]
#: Examples, mean size of a batch, and the sign of the canary.
Canary = tuple[int, int, int]


def train(training: PrivateTraining) -> None:
    """Train one epoch, as docs/dpsgd.md says."""
    for (features,) in training.loader:
        training.optimizer.zero_grad()
        training.model(features).sum().backward()
        training.optimizer.step()


def dpsgd(epsilon: float, *, delta: float = DELTA, trainer: Trainer = train) -> Case:
    """Return the case of DP-SGD on a canary: one step on all data, and two on half of it each.

    Parameters
    ----------
    epsilon, delta : float
        Claim of a training, per example.
    trainer : callable
        Trains for an epoch. One that gives itself more steps than were accounted for is
        what this audit is there to refute.
    """

    @cache
    def prepared(canary: Canary) -> PrivateTraining:
        owner = AuditOwner()  # of its own: no budget holds two such deltas
        with owner.at_home():
            return _prepared(canary, epsilon, delta, owner)

    def draw(canary: Canary, rng: RandomSource) -> float:
        training = prepared(canary)
        fresh = replace(training, optimizer=_from_the_start(training))
        with torch.no_grad():
            for weight in fresh.model.parameters():
                weight.zero_()
        trainer(fresh)
        return -sum(float(weight.detach().sum()) for weight in fresh.model.parameters())

    whole, halves = ((4, 4, 1), (4, 4, -1)), ((4, 2, 1), (4, 2, -1))
    return Case(
        f"dpsgd (epsilon {epsilon:g}, delta {delta:g})",
        epsilon,
        draw,
        (
            Contrast("canary, one step on all data", whole, _move, "move of the weight"),
            Contrast("canary, two steps on half of it", halves, _move, "move of the weight"),
        ),
        (whole, halves),
        draws=3_000,
        delta=delta,
        differing=1.0,
    )


def _from_the_start(training: PrivateTraining) -> ExactDPOptimizer:
    """Return the optimizer with all of its steps ahead: its accounting is not done again."""
    paid = training.optimizer
    return ExactDPOptimizer(
        torch.optim.SGD(training.model.parameters(), lr=1.0),
        noise_multiplier=paid.noise_multiplier,
        max_grad_norm=paid.max_grad_norm,
        expected_batch_size=paid.expected_batch_size,
        steps=paid.steps_left,
        draws=paid.draws,
    )


def _prepared(canary: Canary, epsilon: float, delta: float, owner: AuditOwner) -> PrivateTraining:
    examples, batch, sign = canary
    features = torch.zeros(examples, 1)
    features[0] = sign * _CANARY * CLIP
    model = torch.nn.Linear(1, 1, bias=False)
    return make_private(
        model,
        torch.optim.SGD(model.parameters(), lr=1.0),
        DataLoader(TensorDataset(features), batch_size=batch),
        context=owner.context(),
        epsilon=epsilon,
        delta=delta,
        epochs=1,
        max_grad_norm=CLIP,
    )


def _move(reports: Sequence[Any]) -> NDArray[np.float64]:
    return np.asarray(reports, dtype=np.float64)
