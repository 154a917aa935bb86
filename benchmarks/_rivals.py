"""Randomizers of a round's updates, to stand beside codewords: from their papers, in numpy.

Each takes the clients' directions, unit vectors (n, d), and returns what the server then has of
their mean direction, shape (d,): of some length, which says nothing. They are here to be compared
and are no features: PrivUnit and ProjUnit draw from numpy's generator, in doubles, so what they
promise holds of the law and not of its last digits.

ProjUnit: Asi, Feldman, Nelson, Nguyen, Talwar, "Fast optimal locally private mean estimation via
random projections", NeurIPS 2023; its fast form, whose projection is some rows of Hadamard's matrix
behind random signs. Codewords, SignDS and Gaussian noise are the package's, central DP is Flower's.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

import numpy as np
from _asked_once import CLASSES, Images, Training, descended
from _messages import train_message
from _priv_unit import Doubles, priv_unit, to_units
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg

from flower_ldp.mechanisms import Codeword, Gaussian, RandomSource, SignDS
from flower_ldp.mechanisms.hadamard import order_for, transform
from flower_ldp.mechanisms.signds import sum_of_signs
from flower_ldp.strategies import FixedLength

#: Of the mechanisms that have one.
DELTA = 1e-5
#: Coordinates that ProjUnit keeps.
PROJECTED = 256


class Rival(Protocol):
    """Of one run."""

    def direction(self, units: Doubles) -> Doubles:
        """Return what the server has of the mean direction of a round's clients."""


class PrivUnit:
    """Each client sends a unit vector, mostly of the cap around its own."""

    def __init__(self, epsilon: float) -> None:
        self._epsilon, self._rng = epsilon, np.random.default_rng()

    def direction(self, units: Doubles) -> Doubles:
        """Return the mean report."""
        found: Doubles = priv_unit(units, self._epsilon, self._rng).mean(axis=0)
        return found


class ProjUnit:
    """PrivUnit of a random projection, each client's its own and public."""

    def __init__(self, epsilon: float, size: int = PROJECTED) -> None:
        self._epsilon, self._size, self._rng = epsilon, size, np.random.default_rng()

    def direction(self, units: Doubles) -> Doubles:
        """Return the mean of reports, each projected back."""
        count, dimension = units.shape
        order = order_for(dimension)
        signs = self._rng.integers(0, 2, (count, order)) * 2.0 - 1.0
        filled = np.zeros((count, order))
        filled[:, :dimension] = units
        rows = self._rng.random((count, order)).argsort(axis=1)[:, : self._size]
        seen = np.take_along_axis(transform(filled * signs), rows, axis=1)
        back = np.zeros((count, order))
        np.put_along_axis(back, rows, priv_unit(to_units(seen), self._epsilon, self._rng), axis=1)
        found: Doubles = (transform(back) * signs)[:, :dimension].mean(axis=0)
        return found


class Codewords:
    """The package's codewords, by the mechanism itself."""

    def __init__(self, mechanism: Codeword) -> None:
        self._mechanism, self._rng = mechanism, RandomSource.from_os()

    def direction(self, units: Doubles) -> Doubles:
        """Return the estimate of a round; the next one has other codes."""
        asked = self._mechanism
        self._mechanism = replace(asked, seed=asked.seed + 1)
        reports = [asked.randomize(one, self._rng) for one in units]
        return asked.estimate(reports, units.shape[1])


class Signs:
    """The package's SignDS, which chooses its own sizes."""

    def __init__(self, epsilon: float) -> None:
        self._mechanism, self._rng = SignDS(epsilon), RandomSource.from_os()

    def direction(self, units: Doubles) -> Doubles:
        """Return the sum of signs."""
        reports = [self._mechanism.randomize(one, self._rng) for one in units]
        return sum_of_signs(reports, units.shape[1]).astype(np.float64)


class LocalGaussian:
    """The package's Gaussian mechanism on unit vectors, clipped to length 1."""

    def __init__(self, epsilon: float) -> None:
        self._mechanism, self._rng = Gaussian(epsilon, DELTA), RandomSource.from_os()

    def direction(self, units: Doubles) -> Doubles:
        """Return the mean report."""
        total = np.zeros(units.shape[1], dtype=np.int64)
        for one in units:
            total += self._mechanism.randomize(one, self._rng)
        return self._mechanism.estimate(total, len(units))


class Central:
    """Flower's own strategy of central DP: the server sees every update, and adds the noise.

    A client takes part in one round, so (epsilon, delta) of one release of the Gaussian mechanism
    is that of the whole run. The relation is replace-one, as it is for the local mechanisms: the
    sum of vectors of length 1 then moves by up to 2, and the noise is twice that of
    add-or-remove-one. The strategy clips, averages and adds noise; who is asked is decided here,
    and the model that updates are measured from is zeros.
    """

    def __init__(self, epsilon: float, delta: float = DELTA) -> None:
        from dp_accounting import get_sigma_gaussian

        self.noise_multiplier = 2.0 * float(get_sigma_gaussian(epsilon, delta))

    def direction(self, units: Doubles) -> Doubles:
        """Return the noisy mean, as the strategy has it."""
        strategy = DifferentialPrivacyServerSideFixedClipping(
            FedAvg(), self.noise_multiplier, clipping_norm=1.0, num_sampled_clients=len(units)
        )
        strategy.current_arrays = _record(np.zeros(units.shape[1]))
        # Its clipping divides by a vector's length, and an update may be zeros.
        sent = np.where(units.any(axis=1, keepdims=True), units, 1e-9)
        arrays, _ = strategy.aggregate_train(1, [_reply(one) for one in sent])
        if arrays is None:
            raise RuntimeError("the strategy did not aggregate")
        return arrays["weight"].numpy()


def _record(vector: Doubles) -> ArrayRecord:
    return ArrayRecord({"weight": Array(vector)})


def _reply(unit: Doubles) -> Message:
    """Return a client's reply, of a weight that all have."""
    metrics = MetricRecord({"num-examples": 1})
    return train_message(RecordDict({"arrays": _record(unit), "metrics": metrics}))


class Bare:
    """No privacy: the mean of the directions."""

    def direction(self, units: Doubles) -> Doubles:
        """Return it."""
        found: Doubles = units.mean(axis=0)
        return found


def train(images: Images, training: Training, rival: Rival) -> float:
    """Train once without messages, each client asked once at most; return the accuracy."""
    optimizer = FixedLength(
        training.length, training.rounds, training.momentum, training.final_fraction
    )
    parts = np.stack(images.parts)
    order = np.random.default_rng().permutation(len(parts))
    each = int(len(parts) * min(1.0, (1 + 1e-9) / training.rounds))
    weights = np.zeros((CLASSES, images.features.shape[1]), dtype=np.float32)
    for number in range(training.rounds):
        asked = parts[order[number * each : (number + 1) * each]]
        mine = images.features[asked], images.labels[asked]
        layers = descended(weights, *mine, training.steps, training.rate)
        updates = (layers - weights).reshape(each, -1).astype(np.float64)
        found = rival.direction(to_units(updates)).astype(np.float32)
        weights = weights + optimizer.step(found, number + 1).reshape(weights.shape)
    logits = images.held_features @ weights.T
    return float((logits.argmax(axis=1) == images.held_labels).mean())
