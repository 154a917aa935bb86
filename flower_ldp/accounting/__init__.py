"""Accounting: exact amounts, the data owner's durable ledger, and composition.

Importing it loads no numerical library, since each message opens the ledger. Names that need one
are loaded when first asked for.
"""

from typing import TYPE_CHECKING

from flower_ldp.accounting.amounts import Amount
from flower_ldp.accounting.composition import (
    ShuffleBound,
    Totals,
    composed_epsilon,
    shuffled,
    totals,
)
from flower_ldp.accounting.ledger import Charge, Entry, Ledger, Limit, Mark, NumberLimit, Receipt

if TYPE_CHECKING:
    from flower_ldp.accounting.dpsgd import SampledGaussian, noise_multiplier

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
        from flower_ldp.accounting import dpsgd

        return getattr(dpsgd, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
