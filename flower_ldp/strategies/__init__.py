"""Server side: Flower strategies that learn from private reports."""

from __future__ import annotations

from flower_ldp.strategies.code_top import CodeTop
from flower_ldp.strategies.server_optimizer import FixedLength, Momentum, ServerOptimizer
from flower_ldp.strategies.signds import SignDSStrategy
from flower_ldp.strategies.split import SplitResult, SplitStrategy
from flower_ldp.strategies.split_align import AlignedParty
from flower_ldp.strategies.split_exchange import GridExchange, LocalExchange, PartyError
from flower_ldp.strategies.split_labels import ToldLabels
from flower_ldp.strategies.step_size import FixedStep, LearnedStep

__all__ = [
    "AlignedParty",
    "CodeTop",
    "FixedLength",
    "FixedStep",
    "GridExchange",
    "LearnedStep",
    "LocalExchange",
    "Momentum",
    "PartyError",
    "ServerOptimizer",
    "SignDSStrategy",
    "SplitResult",
    "SplitStrategy",
    "ToldLabels",
]
