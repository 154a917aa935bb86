"""What releases have cost: exact amounts, the data owner's durable ledger, and composition."""

from __future__ import annotations

from flower_ldp.accounting.amounts import Amount
from flower_ldp.accounting.composition import Totals, totals
from flower_ldp.accounting.dpsgd import SampledGaussian, noise_multiplier
from flower_ldp.accounting.gaussian import composed_epsilon
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
