"""Runs of the apps of ``_step_apps.py`` without messages: clients asked as the advisor says."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
from _step_apps import App, Model, Split, shares
from numpy.typing import NDArray

from flower_ldp.advice import Advice, advise
from flower_ldp.mechanisms import RandomSource, SignDS
from flower_ldp.mechanisms.signds import sum_of_signs
from flower_ldp.strategies import ServerOptimizer
from flower_ldp.wire.layout import ModelLayout


@lru_cache
def plan(app: App, epsilon: float) -> Advice:
    """Return mechanism and rounds for a total of each client."""
    weights = sum(array.size for array in app.initial(0).values())
    return advise(clients=app.clients, weights=weights, total_epsilon=epsilon)


def turns(advice: Advice, clients: int) -> list[NDArray[np.int64]]:
    """Return who is asked in each round: all once before anybody is asked again."""
    rng, each = np.random.default_rng(), advice.outlook.clients_per_round
    order = np.concatenate([rng.permutation(clients) for _ in range(advice.answers_per_client)])
    return [order[n * each : (n + 1) * each] for n in range(advice.outlook.rounds)]


def told(
    advice: Advice, updates: NDArray[np.float32], number: int, rng: RandomSource
) -> tuple[NDArray[np.floating[Any]], NDArray[np.floating[Any]]]:
    """Return the sum of a round's reports and the step they say, as the strategies find both."""
    dimension, mechanism = updates.shape[1], advice.mechanism
    if isinstance(mechanism, SignDS):
        sized = mechanism.sized(dimension)
        signs = sum_of_signs([sized.randomize(one, rng) for one in updates], dimension)
        summed = signs.astype(np.float64)
        return summed, summed / len(updates)
    own = replace(mechanism, seed=number).sized(dimension)
    summed = own.total([own.randomize(one, rng) for one in updates], dimension)
    return summed, summed / (len(updates) * own.plan(dimension).projection)


def run(app: App, data: Split, advice: Advice, optimizer: ServerOptimizer, seed: int) -> Model:
    """Return the model after a run; the seed is that of its start and of the clients' shares."""
    rng = RandomSource.from_os()
    model, parts = app.initial(seed), shares(data.clients, app.clients, seed)
    layout = ModelLayout.of(model)
    optimizer.on_run_start(advice.outlook.rounds, list(model.values()))
    for number, asked in enumerate(turns(advice, app.clients), start=1):
        updates = app.updates(model, data.clients, parts[asked])
        summed, step = told(advice, updates, number, rng)
        signal = advice.plan.null_distribution.beyond(float(summed @ summed), len(asked))
        optimizer.on_signal(signal, len(asked))
        model = layout.add(model, optimizer.step(step.astype(np.float32), number))
    return model
