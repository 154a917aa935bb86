"""Server side: Flower strategies that learn from private reports."""

from __future__ import annotations

from flower_ldp.strategies.gaussian import GaussianStrategy
from flower_ldp.strategies.server_optimizer import FixedLength, Momentum, ServerOptimizer
from flower_ldp.strategies.signds import SignDSStrategy
from flower_ldp.strategies.step_size import FixedStep, LearnedStep

__all__ = [
    "FixedLength",
    "FixedStep",
    "GaussianStrategy",
    "LearnedStep",
    "Momentum",
    "ServerOptimizer",
    "SignDSStrategy",
]
