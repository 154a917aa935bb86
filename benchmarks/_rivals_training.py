"""The training of ``_asked_once.py`` without messages: all clients of a round at once."""

from __future__ import annotations

import numpy as np
from _asked_once import CLASSES, Floats, Images, Labels, Training
from _priv_unit import to_units
from _rivals import Rival

from flower_ldp.strategies import FixedLength


def trained_together(
    weights: Floats,
    features: Floats,
    labels: Labels,
    training: Training,
) -> Floats:
    """Return each client's layer, shape (n, 10, f), as ``_asked_once.trained`` does of one."""
    wanted = np.eye(CLASSES, dtype=np.float32)[labels]
    found = np.repeat(weights[None], len(features), axis=0)
    rate = np.float32(training.rate / labels.shape[1])
    for _ in range(training.steps):
        logits = features @ found.transpose(0, 2, 1)
        shares = np.exp(logits - logits.max(axis=2, keepdims=True))
        shares /= shares.sum(axis=2, keepdims=True)
        found -= rate * ((shares - wanted).transpose(0, 2, 1) @ features)
    return found


def train(images: Images, training: Training, rival: Rival) -> float:
    """Train once, each client asked once at most; return the accuracy."""
    optimizer = FixedLength(
        training.length, training.rounds, training.momentum, training.final_fraction
    )
    parts = np.stack(images.parts)
    order = np.random.default_rng().permutation(len(parts))
    each = int(len(parts) * min(1.0, (1 + 1e-9) / training.rounds))
    weights = np.zeros((CLASSES, images.features.shape[1]), dtype=np.float32)
    for number in range(training.rounds):
        asked = parts[order[number * each : (number + 1) * each]]
        layers = trained_together(weights, images.features[asked], images.labels[asked], training)
        updates = (layers - weights).reshape(each, -1).astype(np.float64)
        found = rival.direction(to_units(updates)).astype(np.float32)
        weights = weights + optimizer.step(found, number + 1).reshape(weights.shape)
    logits = images.held_features @ weights.T
    return float((logits.argmax(axis=1) == images.held_labels).mean())
