"""A release about the client is a release about each of its examples and labels."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from flower_ldp.accounting.ledger import Ledger, Limit
from flower_ldp.errors import BudgetExhausted
from flower_ldp.mechanisms import BoundedMean, CodebookEmbedding
from flower_ldp.privacy import PrivacyEvent, Unit, compose
from tests.unit.test_ledger import charge

MEAN, CODE = BoundedMean(8.0, 0.0, 1.0), CodebookEmbedding(1.0, 4)
LIMITS = [
    Limit(Unit.CLIENT, "life", 8.0),
    Limit(Unit.EXAMPLE, "life", 1.0),
]


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger.open(tmp_path / "ledger.sqlite", create=True) as opened:
        yield opened
        opened.verify()


def test_two_replies_about_one_example_cost_it_both(ledger: Ledger) -> None:
    """The two laws multiply: the log-ratio between two values of one example is 9, not 1."""
    # The client's mean loss is moved from one end to the other by one example of two.
    mean = MEAN.log_prob(0, 0.0) - MEAN.log_prob(0, 1.0)
    code = CODE.log_prob([0], np.eye(4)[:1]) - CODE.log_prob([0], np.eye(4)[1:2])
    assert math.isclose(mean + code, 9.0)
    with pytest.raises(BudgetExhausted, match="per example"):
        ledger.charge(charge("mean", events=MEAN.events()), LIMITS)
    ledger.charge(charge("code", events=CODE.events()), LIMITS)
    assert ledger.totals("ward-7")[Unit.EXAMPLE].epsilon_text == "1"
    events = (*MEAN.events(), *CODE.events())
    assert {unit: spent.epsilon for unit, spent in compose(events).items()} == {
        Unit.CLIENT: 8.0,
        Unit.EXAMPLE: 9.0,
        Unit.LABEL: 9.0,
    }


def test_deltas_go_with_their_epsilons() -> None:
    events = (
        PrivacyEvent("gauss", 1.0, 1e-6),
        PrivacyEvent("dpsgd", 2.0, 1e-5, Unit.EXAMPLE),
        PrivacyEvent("labels", 4.0, 1e-4, Unit.LABEL),
    )
    spent = compose(events)
    assert (spent[Unit.LABEL].epsilon, spent[Unit.EXAMPLE].epsilon) == (7.0, 3.0)
    assert math.isclose(spent[Unit.LABEL].delta, 1.11e-4)
    assert math.isclose(spent[Unit.EXAMPLE].delta, 1.1e-5)
