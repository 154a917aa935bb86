"""What a server sees of one client's update, and its knowledge of how that was made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from _gradient_inversion import Distance, angle, squared
from numpy.typing import NDArray

from flower_ldp.mechanisms import Codeword, Gaussian, RandomSource, SignDS
from flower_ldp.mechanisms.signds import sum_of_signs

Floats = NDArray[np.float32]
Scores = NDArray[np.float64]


@dataclass(frozen=True)
class Seen:
    """One message: the mechanism's report, and the vector (d,) that it stands for."""

    report: Any
    vector: Floats


@dataclass(frozen=True)
class Channel:
    """From an update to what the server sees.

    Parameters
    ----------
    name : str
        Of the row.
    send : callable
        From an update (d,) to what is seen of it.
    distance : callable
        The distance of updates from what was seen.
    scores : callable
        A number for each of some updates (n, d); the largest for the likeliest.
    """

    name: str
    send: Callable[[Floats, RandomSource], Seen]
    distance: Callable[[Seen], Distance]
    scores: Callable[[Seen, Floats], Scores]


def raw(rate: float) -> Channel:
    """Return the update itself, of a step at a learning rate."""
    return Channel(
        "the update itself",
        lambda update, rng: Seen(None, update),
        lambda seen: squared(torch.from_numpy(seen.vector), rate),
        lambda seen, updates: -np.square(updates.astype(np.float64) - seen.vector).sum(axis=1),
    )


def clipped(mechanism: Gaussian, rate: float) -> Channel:
    """Return clipped updates with noise; likelihood falls with the squared distance."""
    norm = mechanism.clip_norm

    def send(update: Floats, rng: RandomSource) -> Seen:
        report = mechanism.randomize(update, rng)
        return Seen(report, mechanism.estimate(report.astype(np.int64), 1).astype(np.float32))

    def scores(seen: Seen, updates: Floats) -> Scores:
        lengths = np.linalg.norm(updates.astype(np.float64), axis=1, keepdims=True)
        found = updates / np.maximum(lengths / norm, 1.0)
        return np.asarray(-np.square(found - seen.vector).sum(axis=1))

    return Channel(
        f"DP_ENCRYPT, ε {mechanism.epsilon:g}, δ {mechanism.delta:g}".replace("e-0", "e-"),
        send,
        lambda seen: squared(torch.from_numpy(seen.vector), rate, norm),
        scores,
    )


def direction(
    name: str, mechanism: SignDS | Codeword, total: Callable[[list[Any], int], NDArray[Any]]
) -> Channel:
    """Return reports without a length: some signs, or a unit vector of a public code."""

    def send(update: Floats, rng: RandomSource) -> Seen:
        report = mechanism.randomize(update, rng)
        return Seen(report, total([report], len(update)).astype(np.float32))

    return Channel(
        f"{name}, ε {mechanism.epsilon:g}",
        send,
        lambda seen: angle(torch.from_numpy(seen.vector)),
        lambda seen, updates: np.array([mechanism.log_prob(seen.report, one) for one in updates]),
    )


def nothing() -> Channel:
    """Return a random vector, whatever the update is."""

    def send(update: Floats, rng: RandomSource) -> Seen:
        numbers = np.random.default_rng(rng.below(2**62))
        return Seen(None, numbers.standard_normal(len(update), dtype=np.float32))

    return Channel(
        "noise alone",
        send,
        lambda seen: angle(torch.from_numpy(seen.vector)),
        lambda seen, updates: np.zeros(len(updates)),
    )


def channels(rate: float) -> list[Channel]:
    """Return the rows of the table."""
    codeword = Codeword(8.0)
    return [
        raw(rate),
        clipped(Gaussian(50.0, 0.01, 1.0), rate),
        clipped(Gaussian(8.0, 1e-6, 1.0), rate),
        direction("SignDS", SignDS(100.0, k=0.2), sum_of_signs),
        direction("SignDS", SignDS(8.0, k=0.2), sum_of_signs),
        direction("a codeword", codeword, codeword.total),
        nothing(),
    ]
