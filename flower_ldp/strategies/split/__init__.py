"""Split learning on the server: aligned records, epochs over them, and what is learned on top."""

from __future__ import annotations

from flower_ldp.strategies.split.align import AlignedParty
from flower_ldp.strategies.split.code_top import CodeTop
from flower_ldp.strategies.split.exchange import GridExchange, LocalExchange, PartyError
from flower_ldp.strategies.split.labels import NoisyLabels, ToldLabels
from flower_ldp.strategies.split.strategy import SplitResult, SplitStrategy

__all__ = [
    "AlignedParty",
    "CodeTop",
    "GridExchange",
    "LocalExchange",
    "NoisyLabels",
    "PartyError",
    "SplitResult",
    "SplitStrategy",
    "ToldLabels",
]
