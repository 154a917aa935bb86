"""Accounting: exact amounts, the data owner's durable ledger, and composition.

Importing it loads no numerical library, since each message opens the ledger. Names that need one
are loaded when first asked for.
"""

from typing import TYPE_CHECKING

from flower_ldp.accounting.amounts import Amount
from flower_ldp.accounting.composition import Totals, composed_epsilon, totals
from flower_ldp.accounting.ledger import Charge, Entry, Ledger, Limit, Mark, NumberLimit, Receipt

if TYPE_CHECKING:
    from flower_ldp.accounting.dpsgd import SampledGaussian, noise_multiplier
    from flower_ldp.accounting.shuffled import (
        FavouredPart,
        ShuffleBound,
        ShuffledReports,
        favoured_part,
        shuffle_bound,
    )
    from flower_ldp.accounting.shuffled_rounds import codeword_for, rounds_epsilon

__all__ = [
    "Amount",
    "Charge",
    "Entry",
    "FavouredPart",
    "Ledger",
    "Limit",
    "Mark",
    "NumberLimit",
    "Receipt",
    "SampledGaussian",
    "ShuffleBound",
    "ShuffledReports",
    "Totals",
    "codeword_for",
    "composed_epsilon",
    "favoured_part",
    "noise_multiplier",
    "rounds_epsilon",
    "shuffle_bound",
    "totals",
]


def __getattr__(name: str) -> object:
    if name in __all__:
        from flower_ldp.accounting import dpsgd, shuffled, shuffled_rounds

        return {**vars(dpsgd), **vars(shuffled), **vars(shuffled_rounds)}[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
