"""Server side: Flower strategies that learn from private reports."""

from __future__ import annotations

from flower_ldp.strategies.best_model import BestModel
from flower_ldp.strategies.patience import NodesGone, patient_grid
from flower_ldp.strategies.server_optimizer import FixedLength, Momentum, ServerOptimizer
from flower_ldp.strategies.signds import SignDSStrategy
from flower_ldp.strategies.step_size import FixedStep, LearnedStep

__all__ = [
    "BestModel",
    "FixedLength",
    "FixedStep",
    "LearnedStep",
    "Momentum",
    "NodesGone",
    "ServerOptimizer",
    "SignDSStrategy",
    "patient_grid",
]
