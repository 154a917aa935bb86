"""Advice before a training starts: what a total for each client can learn, and what would help.

It stands above ``mechanisms``, for the lengths of reports (``wire``) and for amounts that a ledger
can hold (``accounting``). Everything in it is public configuration: advice costs nothing.
"""

from __future__ import annotations

from flower_ldp.advice.choice import Advice, advise
from flower_ldp.advice.outlook import Outlook, Remedies
from flower_ldp.mechanisms.base import GOOD_COSINE, POOR_COSINE, Verdict

__all__ = ["GOOD_COSINE", "POOR_COSINE", "Advice", "Outlook", "Remedies", "Verdict", "advise"]
