"""What releases have cost: exact amounts, the data owner's durable ledger, and composition.

The ledger is opened at every message and by the owner's own commands, so importing it loads no
numerical library. The names whose modules need one are loaded when they are first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flower_ldp.accounting.amounts import Amount
from flower_ldp.accounting.composition import Totals, totals
from flower_ldp.accounting.ledger import (
    Charge,
    Entry,
    Ledger,
    Limit,
    Mark,
    NumberLimit,
    Receipt,
)
from flower_ldp.accounting.shuffle import ShuffleBound, shuffled

if TYPE_CHECKING:
    from flower_ldp.accounting.dpsgd import SampledGaussian, noise_multiplier
    from flower_ldp.accounting.gaussian import composed_epsilon

__all__ = [
    "Amount",
    "Charge",
    "Entry",
    "Ledger",
    "Limit",
    "Mark",
    "NumberLimit",
    "Receipt",
    "SampledGaussian",
    "ShuffleBound",
    "Totals",
    "composed_epsilon",
    "noise_multiplier",
    "shuffled",
    "totals",
]


def __getattr__(name: str) -> object:
    if name in ("SampledGaussian", "noise_multiplier"):
        from flower_ldp.accounting.dpsgd import SampledGaussian, noise_multiplier

        return SampledGaussian if name == "SampledGaussian" else noise_multiplier
    if name == "composed_epsilon":
        from flower_ldp.accounting.gaussian import composed_epsilon

        return composed_epsilon
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
