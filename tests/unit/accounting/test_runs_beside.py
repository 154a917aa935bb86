"""Runs that go on beside each other: what one pays for is not given to another that is over."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flower_ldp.accounting.ledger import Charge, Ledger, Limit
from flower_ldp.accounting.ledger.charges import NO_RUN
from flower_ldp.errors import BudgetExhausted
from flower_ldp.privacy import PrivacyEvent, Unit

EXAMPLE = Unit.EXAMPLE
LIMITS = [Limit(EXAMPLE, "run", 3.0), Limit(EXAMPLE, "life", 100.0)]
PART = "data#layout/0"


def own(run: int, epsilon: float, part: str = PART) -> Charge:
    event = PrivacyEvent("embedding_dp", epsilon, unit=EXAMPLE)
    return Charge(part, run, f"m-{run}-{part}", "train", b"own", (event,))


def kept(during: int, epsilon: float = 2.0) -> Charge:
    return replace(own(NO_RUN, epsilon), message_id="kept question 0", during=during)


def test_a_run_that_spent_its_own_is_not_given_what_another_paid_for(ledger: Ledger) -> None:
    """It got both, 4 of 3: the first at its own charge, the second at none."""
    ledger.charge(own(2, 2.0), LIMITS)
    ledger.seal(ledger.charge(kept(1), LIMITS), b"report")
    with pytest.raises(BudgetExhausted, match=r"epsilon 4 counts towards run 2, but .* epsilon 3 "):
        ledger.charge(kept(2), LIMITS, repeats=5)
    assert ledger.counts("data")["again"] == 0
    for run in (1, 3):
        assert ledger.charge(kept(run), LIMITS, repeats=5).report == b"report"


def test_it_is_given_where_both_fit_and_where_the_other_is_about_another_part(
    ledger: Ledger,
) -> None:
    ledger.charge(own(2, 1.0), LIMITS)
    ledger.charge(own(4, 3.0, "data#layout/1"), LIMITS)
    ledger.seal(ledger.charge(kept(1), LIMITS), b"report")
    for run in (2, 4):
        assert ledger.charge(kept(run), LIMITS).report == b"report"


def test_a_limit_that_was_lowered_takes_nothing_back_from_a_run_without_charges(
    ledger: Ledger,
) -> None:
    ledger.seal(ledger.charge(kept(1), LIMITS), b"report")
    lowered = [Limit(EXAMPLE, "run", 1.0), Limit(EXAMPLE, "life", 1.0)]
    assert ledger.charge(kept(2), lowered).report == b"report"
