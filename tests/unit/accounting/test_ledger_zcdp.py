"""A life by zCDP: what the ledger allows, which rule an account has, and ledgers without it."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from flower_ldp.accounting.ledger import Charge, Ledger, Limit
from flower_ldp.accounting.zcdp import zcdp_cost
from flower_ldp.errors import BudgetExhausted, LedgerError, RefusalError
from flower_ldp.mechanisms import Gaussian
from flower_ldp.privacy import PrivacyEvent, Unit
from flower_ldp.refusals import REFUSED_POLICY
from tests.fixtures import LIFE, cannot_open, charge, edit


def life(epsilon: float, delta: float = 1e-5, deltas: float = 1e-8, **more: object) -> Limit:
    given = {"unit": Unit.CLIENT, "scope": "life", "release_deltas": deltas, **more}
    return Limit(epsilon=epsilon, delta=delta, **given)  # type: ignore[arg-type]


def many(message: object, epsilon: float, count: int, unit: Unit = Unit.CLIENT) -> Charge:
    return charge(message, events=(PrivacyEvent("signds", epsilon, count=count, unit=unit),))


def without_zcdp(path: Path) -> None:
    """Make a ledger one of version 2."""
    edit(path, "DROP TABLE zcdp", "PRAGMA user_version = 2")


@pytest.mark.parametrize(
    ("event", "limit"),
    [
        (PrivacyEvent("signds", 0.01, count=1_000), life(1.31)),
        (PrivacyEvent("signds", 0.1, count=100), life(4.73)),
        (Gaussian(1.0, 1e-6).events()[0], life(4.89, 2e-5, 2e-8)),
    ],
)
def test_many_small_releases_fit_a_small_life(
    event: PrivacyEvent, limit: Limit, ledger: Ledger
) -> None:
    times = 20 if event.count == 1 else 1
    for number in range(times):
        ledger.charge(charge(number, events=(event,)), [limit])
    sums, zcdp = ledger.spent("ward-7", 0, limit), ledger.spent_zcdp("ward-7", Unit.CLIENT)
    assert not sums.fits(limit.allowed)
    assert limit.fits(sums, zcdp)
    assert zcdp.epsilon == times * event.count * zcdp_cost(event).epsilon
    with pytest.raises(BudgetExhausted, match=r"\(rho 0\.\d+\) was spent and .* by zCDP rho 0\."):
        ledger.charge(charge("more", events=(replace(event, count=times * event.count),)), [limit])


def test_what_sums_allow_is_never_refused(ledger: Ledger) -> None:
    limit = life(2.0)
    assert not limit.allowed_zcdp.fits(zcdp_cost(PrivacyEvent("signds", 2.0)))  # type: ignore[union-attr]
    ledger.charge(charge(0, 1.0), [limit])
    ledger.charge(charge(1, 1.0), [limit])
    with pytest.raises(BudgetExhausted):
        ledger.charge(charge(2, 0.1), [limit])


@pytest.mark.parametrize(("deltas", "fits"), [(1e-8, False), (1e-6, True)])
def test_a_plan_needs_its_delta_among_the_release_deltas(
    deltas: float, fits: bool, ledger: Ledger
) -> None:
    limit = life(4.0, deltas=deltas, unit=Unit.EXAMPLE)
    plan = charge(0, events=(PrivacyEvent("dpsgd", 1.0, 1e-6, Unit.EXAMPLE),))
    if fits:
        ledger.charge(plan, [limit])
    with pytest.raises(BudgetExhausted):
        ledger.charge(charge(1, events=plan.events), [limit])


def test_units_nest(ledger: Ledger) -> None:
    limits = [life(1.0), life(1.0, unit=Unit.EXAMPLE)]
    ledger.charge(many(0, 0.01, 200), limits)
    ledger.charge(many(1, 0.01, 300, Unit.EXAMPLE), limits)
    client, example = (ledger.spent_zcdp("ward-7", unit).epsilon for unit in list(Unit)[:2])
    assert 5 * client == 2 * example
    with pytest.raises(BudgetExhausted, match="per example"):
        ledger.charge(many(2, 0.01, 200), limits)


def test_of_parts_a_record_has_the_largest_and_a_client_all(ledger: Ledger) -> None:
    limits = [life(4.0), life(1.0, unit=Unit.EXAMPLE)]
    for part in "ab":
        name = f"ward-7#rows/{part}"
        ledger.charge(charge(part, data_id=name, events=many(0, 0.01, 400).events), limits)
    client, example = (ledger.spent_zcdp("ward-7", unit).epsilon for unit in list(Unit)[:2])
    assert client == 2 * example


WORDS = [
    pytest.param(LIFE, life(8.0), id="sums to zcdp"),
    pytest.param(life(8.0), LIFE, id="zcdp to sums"),
    pytest.param(life(8.0), life(8.0, deltas=1e-6), id="other release deltas"),
]


@pytest.mark.parametrize(("first", "second"), WORDS)
def test_the_first_charge_fixes_the_rule(first: Limit, second: Limit, ledger: Ledger) -> None:
    receipt = ledger.charge(charge(0), [first])
    for where in ("ward-7", "ward-7#rows/a"):
        with pytest.raises(RefusalError, match="ward-7: it") as caught:
            ledger.charge(charge(1, data_id=where), [second])
        assert caught.value.code == REFUSED_POLICY
    ledger.seal(receipt, b"report")
    assert ledger.charge(charge(0), [second]).report == b"report"  # it was paid for
    ledger.charge(charge(1, data_id="another"), [second])


def test_an_account_of_parts_has_one_rule(ledger: Ledger) -> None:
    ledger.charge(charge(0, data_id="ward-7#rows/a"), [LIFE])
    with pytest.raises(RefusalError):
        ledger.charge(charge(1), [life(8.0)])


def test_epsilon_may_change_and_a_unit_by_sums_may_come(ledger: Ledger) -> None:
    ledger.charge(charge(0), [life(8.0)])
    label = Limit(Unit.LABEL, "life", 1.0)
    ledger.charge(charge(1), [life(9.0, 2e-5), label])
    with pytest.raises(BudgetExhausted, match="per label"):
        ledger.charge(charge(2, 1.0), [life(9.0), label])


def test_the_mark_is_no_account_and_costs_nothing(ledger: Ledger) -> None:
    ledger.charge(charge(0), [life(8.0)])
    assert ledger.data_ids() == ["ward-7"]
    first, mark = ledger.entries()
    assert (first.events[0].zcdp, mark.events, mark.releases) == (
        zcdp_cost(PrivacyEvent("signds", 0.1)),
        (),
        0,
    )
    assert '"client: 0.00000001"' in mark.parameters


def test_a_ledger_of_version_2_goes_on_by_sums(path: Path) -> None:
    with Ledger.open(path, create=True) as ledger:
        ledger.charge(charge(0), [LIFE])
    without_zcdp(path)
    with Ledger.open(path) as ledger:
        ledger.charge(charge(1), [LIFE])
        with pytest.raises(RefusalError, match="version 2 keeps no rho"):
            ledger.charge(charge(2, data_id="new"), [life(8.0)])
        with pytest.raises(RefusalError, match="goes on by sums: leave by: zcdp out"):
            ledger.charge(charge(2), [life(8.0)])
        ledger.verify()
        assert len(list(ledger.entries())) == 2
    with pytest.raises(sqlite3.OperationalError, match="no such table"):
        edit(path, "SELECT * FROM zcdp")


def test_a_rule_whose_mark_is_lost_is_still_the_account_s(path: Path) -> None:
    with Ledger.open(path, create=True) as ledger:
        ledger.charge(charge(0), [life(8.0)])
    edit(path, "UPDATE entry SET message_id = 'lost' WHERE data_id LIKE '%#rule:life/mark'")
    with Ledger.open(path) as ledger, pytest.raises(RefusalError, match="the mark is lost"):
        ledger.charge(charge(1), [LIFE])


def test_a_normal_release_beyond_the_sampler_s_reach_has_no_small_rho(ledger: Ledger) -> None:
    """Of shift 31: its sampler ends at 18 deviations, so deltas near 1e-18 do not hold."""
    (far,) = Gaussian(100.0, 0.5).events()
    with pytest.raises(BudgetExhausted, match="by zCDP rho"):
        ledger.charge(charge(0, events=(far,)), [life(210.0, 1e-12, 1e-15)])


def test_a_rule_is_checked_without_a_charge(ledger: Ledger) -> None:
    ledger.check_rule("ward-7", [life(8.0)])
    ledger.charge(charge(0), [life(8.0)])
    ledger.check_rule("ward-7", [life(9.0)])
    for other in (LIFE, life(8.0, deltas=1e-6)):
        with pytest.raises(RefusalError, match="its first charge fixed the rule"):
            ledger.check_rule("ward-7", [other])


def test_a_ledger_by_zcdp_without_its_table_is_refused(path: Path) -> None:
    with Ledger.open(path, create=True) as ledger:
        ledger.charge(charge(0), [life(8.0)])
    without_zcdp(path)
    with Ledger.open(path) as ledger, pytest.raises(LedgerError, match="not what was written"):
        ledger.verify()
    edit(path, "PRAGMA user_version = 3")
    cannot_open(path, "not those of version 3")


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE zcdp SET rho = rho - 1",
        "UPDATE zcdp SET delta = 1",
        "DELETE FROM zcdp",
        "UPDATE zcdp SET position = 1",
        "INSERT INTO zcdp VALUES (2, 0, 1, 1)",
    ],
)
def test_a_changed_rho_is_damage(statement: str, path: Path) -> None:
    with Ledger.open(path, create=True) as ledger:
        ledger.charge(charge(0), [life(8.0)])
    edit(path, statement)
    with Ledger.open(path) as ledger, pytest.raises(LedgerError, match="is damaged"):
        ledger.verify()


@pytest.mark.parametrize(
    "wrong",
    [
        {"release_deltas": 5e-6},
        {"release_deltas": -1e-9},
        {"release_deltas": 0.0, "delta": 0.0},
        {"scope": "run"},
        {"scope": "window", "window_seconds": 60.0},
    ],
)
def test_wrong_limits(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="release_deltas must be"):
        life(1.0, **wrong)  # type: ignore[arg-type]
