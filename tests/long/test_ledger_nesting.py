"""The ledger's figures against their definition: a list of charges, and sums over it."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from flower_ldp.accounting.ledger import Charge, Ledger, Limit
from flower_ldp.errors import BudgetExhausted
from flower_ldp.privacy import PrivacyEvent, Unit
from tests.fixtures import Clock

ORDER = [Unit.CLIENT, Unit.EXAMPLE, Unit.LABEL]
#: All of the data, and parts of two layouts.
PLACES = ["", "one/0", "one/1", "one/t/2", "two/0", "two/1"]
SCOPES = [("life", None), ("run", None), ("window", 60.0)]


class Paid(NamedTuple):
    """A charge as the oracle remembers it: amounts in integers."""

    at: float
    place: str
    run: int
    unit: Unit
    epsilon: int
    delta: int
    conditional: bool
    waived: Unit | None


def counts(paid: Paid, unit: Unit, *, conditional: bool) -> bool:
    """Whether a charge promises something for a unit, as the definition has it."""
    finer = ORDER.index(unit) >= ORDER.index(paid.unit)
    free = paid.waived is not None and ORDER.index(unit) >= ORDER.index(paid.waived)
    return finer and not free and (conditional or not paid.conditional)


def oracle(
    history: list[Paid], place: str, unit: Unit, *, conditional: bool = True
) -> tuple[int, int]:
    """What records of a place have spent: the whole, and of each layout one part."""
    found = []
    for field in ("epsilon", "delta"):
        by_place = dict.fromkeys(PLACES, 0)
        for paid in history:
            if counts(paid, unit, conditional=conditional):
                by_place[paid.place] += getattr(paid, field)
        total = by_place.pop("")
        for layout in ("one", "two"):
            parts = {name: by_place[name] for name in by_place if name.startswith(layout)}
            if unit is Unit.CLIENT:
                total += sum(parts.values())
            else:
                total += parts[place] if place in parts else max(parts.values())
        found.append(total)
    return found[0], found[1]


CHARGES = st.lists(
    st.tuples(
        st.sampled_from(PLACES),
        st.integers(0, 2),  # 0: of no run, asked for in run 1
        st.sampled_from(Unit),
        st.integers(1, 9),
        st.integers(0, 3),
        st.booleans(),
        st.sampled_from([None, Unit.EXAMPLE, Unit.LABEL]),
        st.floats(0, 50),
    ),
    max_size=14,
)


def towards(history: list[Paid], limit: Limit, run: int, now: float, place: str) -> tuple[int, int]:
    """What a limit counts: of a run its own charges, and beside them those of no run."""
    if limit.scope == "window":
        return oracle([paid for paid in history if now - paid.at <= 60.0], place, limit.unit)
    if limit.scope == "life":
        return oracle(history, place, limit.unit)
    runs = [[paid for paid in history if paid.run == number] for number in (run, 0)]
    (epsilon, delta), (more, also) = (oracle(of, place, limit.unit) for of in runs)
    return epsilon + more, delta + also


def account(place: str) -> str:
    return f"ward-7#{place}" if place else "ward-7"


@settings(derandomize=True, deadline=None, max_examples=35)
@given(CHARGES, st.lists(st.integers(3, 40), min_size=9, max_size=9))
def test_figures_and_limits_are_those_of_the_definition(
    wishes: list[tuple[str, int, Unit, int, int, bool, Unit | None, float]], most: list[int]
) -> None:
    kinds = [(unit, scope, seconds) for unit in Unit for scope, seconds in SCOPES]
    limits = [
        Limit(unit, scope, allowed / 1e12, 12e-18, seconds)  # type: ignore[arg-type]
        for (unit, scope, seconds), allowed in zip(kinds, most, strict=True)
    ]
    clock, history = Clock(), list[Paid]()
    with (
        TemporaryDirectory() as folder,
        Ledger.open(Path(folder) / "l.sqlite", create=True, clock=clock, durable=False) as ledger,
    ):
        for number, (place, run, unit, epsilon, delta, conditional, free, step) in enumerate(
            wishes
        ):
            clock.seconds = round(clock.seconds + step, 6)
            waived = free if free and ORDER.index(free) > ORDER.index(unit) else None
            now = int(clock() // 1_000) / 1e6
            paid = Paid(now, place, run, unit, epsilon, delta, conditional, waived)
            name = "m:conditional" if conditional else "m"
            event = PrivacyEvent(name, epsilon / 1e12, delta / 1e18, unit)
            freed = {name: (waived,)} if waived else {}
            during = None if run else 1
            asked = Charge(
                account(place), run, str(number), "train", b"x", (event,), "{}", freed, during
            )
            fits = all(
                spent + cost <= allowed
                for limit in limits
                if counts(paid, limit.unit, conditional=True)
                for spent, cost, allowed in zip(
                    towards(history, limit, run or 1, now, place),
                    (epsilon, delta),
                    (limit.allowed.epsilon, limit.allowed.delta),
                    strict=True,
                )
            )
            try:
                ledger.charge(asked, limits)
            except BudgetExhausted:
                assert not fits
            else:
                assert fits
                history.append(paid)
        check(ledger, history, limits, clock)


def check(ledger: Ledger, history: list[Paid], limits: list[Limit], clock: Clock) -> None:
    """Compare all figures with the oracle's, and the file with its entries."""
    ledger.verify()
    now = int(clock() // 1_000) / 1e6
    for place in PLACES:
        for limit in limits:
            for run in (1, 2):
                amount = ledger.spent(account(place), run, limit)
                expected = towards(history, limit, run, now, place)
                assert (amount.epsilon, amount.delta) == expected
        for spent in ledger.spending(account(place)):
            unit = spent.unit
            amount = spent.in_all
            expected = oracle(history, place, unit, conditional=False)
            assert (amount.epsilon, amount.delta) == expected
            own = [paid for paid in history if paid.unit is unit]
            amount = spent.direct
            expected = oracle(own, place, unit, conditional=False)
            assert (amount.epsilon, amount.delta) == expected
            silent = [p for p in history if ORDER.index(p.unit) > ORDER.index(unit)]
            assert spent.beyond.silent == len(silent)
            under = oracle([p for p in history if p.conditional], place, unit)
            amount = spent.under.get("m:conditional", type(amount)())
            assert (amount.epsilon, amount.delta) == under
