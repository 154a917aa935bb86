"""``flower-ldp plan``: each number against one that was found in another way."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flower_ldp.accounting.amounts import EPSILON_UNITS, Amount
from flower_ldp.accounting.composition import totals
from flower_ldp.accounting.ledger import Charge, Ledger, Limit
from flower_ldp.accounting.shuffled import FavouredPart, ShuffledReports, shuffle_bound
from flower_ldp.accounting.shuffled_rounds import rounds_epsilon
from flower_ldp.accounting.zcdp import life_by_zcdp, zcdp_totals
from flower_ldp.errors import BudgetExhausted
from flower_ldp.mechanisms import MagRR, RandomSource, Selection, SignDS
from flower_ldp.mechanisms.signds_round import encode_report
from flower_ldp.privacy import PrivacyEvent, PrivacySpent, Unit, meaning
from tests.cli import facts, flower_ldp

RUN = ("--rounds", 80, "--clients", 100)
ISSUE = ("plan", "--params", 61706, "--epsilon", 8, "--k", 0.2, *RUN)
#: A model of LeNet's size, without a price.
LENET = ("plan", "--params", 5994)


@pytest.mark.parametrize(
    ("params", "k", "epsilon", "h", "v_th", "expected"),
    [
        (66_404, 0.2, 8, 9, 6, 5.683231),
        (66_404, 0.2, 100, 238, 143, 142.823330),
        (66_404, 0.01, 100, 43, 26, 25.962916),
        (10**9, 0.2, 100, 239, 144, 143.467677),
    ],
)
def test_sizes_are_those_of_the_reference_table(
    params: int, k: float, epsilon: float, h: int, v_th: int, expected: float
) -> None:
    found = facts("plan", "--params", params, "--epsilon", epsilon, "--k", k)["selection"]
    assert (found["h"], found["v_th"]) == (h, v_th)
    assert found["expected_inside"] == pytest.approx(expected, abs=5e-7)


def test_without_k_the_sizes_are_those_of_the_mechanism_without_k() -> None:
    found = facts("plan", "--params", 61706, "--epsilon", 8)["selection"]
    plan = SignDS(8.0).plan(61_706)
    assert (found["h"], found["top_size"]) == (plan.dim_out, plan.top_size)
    assert found["worth"] == plan.worth


@pytest.mark.parametrize("bit", [(), ("--magnitude-epsilon", 1)])
def test_bytes_are_those_of_a_report(bit: tuple[object, ...]) -> None:
    found = facts(*ISSUE, *bit)["bytes_up"]
    update = np.random.default_rng(1).standard_normal(61706)
    drawn = SignDS(8.0, 0.2).randomize(update, RandomSource.seeded(1))
    report = encode_report(drawn.indices, drawn.sign, 1 if bit else None, dimension=61706)
    assert found["per_round"] == len(report)
    assert found["total"] == 80 * len(report)
    assert found["dense_float32_per_round"] == update.astype(np.float32).nbytes


def by_zcdp(events: list[PrivacyEvent]) -> dict[str, object]:
    """Return the life by zCDP of releases at a delta of 1e-6."""
    rho = zcdp_totals(events)[Unit.CLIENT].epsilon_text
    return {"life_by_zcdp": life_by_zcdp(events, Unit.CLIENT, 1e-6), "rho": rho}


@pytest.mark.parametrize(("epsilon", "rounds", "magnitude"), [(1, 80, None), (0.1, 100, 0.25)])
def test_totals(epsilon: float, rounds: int, magnitude: float | None) -> None:
    bit = () if magnitude is None else ("--magnitude-epsilon", magnitude)
    found = facts(*LENET, "--epsilon", epsilon, "--rounds", rounds, *bit, "--delta", 1e-6)
    events = [PrivacyEvent("signds", epsilon, count=rounds)]
    if magnitude is not None:
        events.append(PrivacyEvent("magrr", magnitude, count=rounds))
    both = totals(events, delta=1e-6)[Unit.CLIENT]
    assert both.approximate is not None
    one = epsilon + (magnitude or 0)
    assert found["epsilon"] == {
        "unit": "client",
        "units": ["client", "example", "label"],
        "relation": "replace-one client",
        "round": pytest.approx(one),
        "total_pure": pytest.approx(one * rounds),
        "total_pld": both.approximate.epsilon,
        "total_smaller": both.smaller.epsilon,
        "total_smaller_delta": 1e-6,
        **by_zcdp(events),
    }
    total = PrivacySpent(Unit.CLIENT, found["epsilon"]["total_pure"])
    assert found["meaning"]["total"] == meaning(total)


def test_where_the_pure_sum_is_smaller_it_is_the_bound() -> None:
    found = facts(*LENET, "--epsilon", 40)["epsilon"]
    assert (found["total_smaller"], found["total_smaller_delta"]) == (40.0, 0.0)


def exact_ratio(mechanism: SignDS, dimension: int, reports: int) -> float:
    """Return mean over deviation of a sum at an entry of the top set, from the law itself."""
    update = np.arange(dimension, dtype=np.float64)
    at, mean, square = dimension - 1, 0.0, 0.0
    for sign in (-1, 1):
        for subset in itertools.combinations(range(dimension), mechanism.dim_out):
            drawn = Selection(np.array(subset, dtype=np.int64), sign)
            if at in subset:
                probability = math.exp(mechanism.log_prob(drawn, update))
                mean += sign * probability
                square += probability
    return math.sqrt(reports) * mean / math.sqrt(square - mean**2)


@pytest.mark.parametrize(("epsilon", "dim_out"), [(2.0, 2), (0.3, 3), (9.0, 1)])
def test_signal_to_noise_is_that_of_the_law(epsilon: float, dim_out: int) -> None:
    ask = ("plan", "--params", 9, "--epsilon", epsilon, "--k", 0.25, "--dim-out", dim_out)
    expected = exact_ratio(SignDS(epsilon, 0.25, dim_out=dim_out), 9, 7)
    found = facts(*ask, "--clients", 7, "--rounds", 4)["signal_to_noise"]
    assert found["round"] == pytest.approx(expected, rel=1e-9)
    assert found["all_rounds"] == pytest.approx(2 * expected, rel=1e-9)
    enough = found["reports_for_one"]
    assert expected * math.sqrt(enough / 7) >= 1 > expected * math.sqrt((enough - 1) / 7)


def test_an_update_of_one_entry_has_no_signal() -> None:
    found = facts("plan", "--params", 1, "--epsilon", 1, "--clients", 5)["signal_to_noise"]
    assert (found["round"], found["reports_for_one"]) == (0, None)


def test_a_small_top_set_is_a_plain_warning() -> None:
    ask = ("plan", "--params", 100, "--epsilon", 1, "--k", 0.2)
    done = flower_ldp(*ask)
    assert done.code == 0
    (line,) = done.err.splitlines()
    assert line.startswith("warning: k * d = 0.2 * 100 leaves K = 20 dimensions")
    assert facts(*ask)["warnings"] == [line.removeprefix("warning: ")]


def test_participation_sets_the_reports_and_not_the_cost() -> None:
    few = facts(*ISSUE, "--participation", 0.255)
    assert few["signal_to_noise"]["reports_per_round"] == 25
    assert few["epsilon"]["total_pure"] == 640.0


def test_shuffling_stands_apart_and_names_its_condition() -> None:
    bits = ("--magnitude-epsilon", 0.5, "--delta", 1e-6)
    found = facts(*LENET, "--epsilon", 0.5, *bits, "--clients", 1_000)
    shuffle = found["shuffle"]
    bound = shuffle_bound(1.0, clients=1_000, delta=1e-6)
    assert bound is not None
    assert shuffle["epsilon_round"] == bound.epsilon
    few = facts(*LENET, "--epsilon", 8, "--delta", 1e-6, "--clients", 100)
    assert few["shuffle"]["epsilon_round"] is None
    assert shuffle["condition"].startswith("only if a shuffler outside the server's control")
    assert found["epsilon"]["total_smaller"] > 0.9


SHUFFLED = ("plan", "shuffled", "--codewords", 16_384, "--delta", 1e-6)


def test_the_central_epsilon_of_shuffled_codewords() -> None:
    found = facts(*SHUFFLED, "--epsilon", 4, "--favoured", 1_004, "--reports", 2_000)
    one = ShuffledReports((FavouredPart(4.0, 1_004 / 16_384),), 2_000)
    assert found["central_epsilon"] == one.epsilon(1e-6)
    assert found["central_lower_bound"] == one.attained(1e-6)
    assert (found["local_epsilon"], found["favoured"]) == (4.0, 1_004)
    assert "analyzer apart from the server" in found["condition"]


def test_what_else_leaves_counts_in_full_and_rounds_are_composed() -> None:
    more = ("--bit-epsilon", 1, "--identified", 0.5, "--rounds", 2)
    found = facts(*SHUFFLED, "--epsilon", 2, "--reports", 3_000, *more)
    share = found["favoured"] / 16_384
    one = ShuffledReports((FavouredPart(2.0, share), FavouredPart(1.0, 0.5)), 3_000)
    assert found["central_epsilon"] == rounds_epsilon([(one, 2)], 1e-6) + 0.5
    assert (found["local_epsilon"], found["central_lower_bound"]) == (6.5, None)


def test_codewords_for_a_wanted_central_epsilon() -> None:
    found = facts(*SHUFFLED, "--central", 2, "--reports", 1_000)
    assert 1.98 < found["central_epsilon"] <= 2.0
    assert found["codeword_epsilon"] == pytest.approx(4.75, rel=0.02)
    assert found["favoured"] == pytest.approx(400, rel=0.1)
    assert found["efficiency"] > 1.3 * 2.295


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ((), "give --epsilon, or --central"),
        (("--epsilon", 4, "--central", 2), "give --epsilon, or --central"),
        (("--central", 2, "--rounds", 2), "of one round of codewords alone"),
        (("--epsilon", 4, "--codewords", 1_000), "must be twice a power of two"),
    ],
)
def test_shuffled_codewords_are_asked_for_in_one_way(given: tuple[object, ...], said: str) -> None:
    done = flower_ldp("plan", "shuffled", "--reports", 1_000, *given)
    assert (done.code, done.out) == (2, "")
    assert said in " ".join(done.err.split())


def test_a_third_of_eight_fits_three_times_and_not_four(tmp_path: Path) -> None:
    asked = ("--total-epsilon", 8, "--rounds", 3, "--magnitude-epsilon", 0.5)
    found = facts("plan", *asked)["affordable"]
    assert found["epsilon_round"] == 2.666666666666
    assert found["epsilon_selection"] == found["epsilon_planned"] == 2.166666666666
    events = SignDS(found["epsilon_selection"], 0.2).events() + MagRR(0.5).events()
    life = [Limit(Unit.CLIENT, "life", 8.0)]
    with Ledger.open(tmp_path / "ledger.sqlite", create=True) as ledger:
        for message in range(3):
            ledger.charge(Charge("d", 1, str(message), "train", b"x", events), life)
        with pytest.raises(BudgetExhausted):
            ledger.charge(Charge("d", 1, "more", "train", b"x", events), life)


@settings(max_examples=25)
@given(total=st.floats(1e-6, 1e6), rounds=st.integers(1, 10_000), magnitude=st.floats(1e-9, 100.0))
def test_a_round_may_cost_the_most_that_fits(total: float, rounds: int, magnitude: float) -> None:
    ask = ("plan", "--total-epsilon", repr(total), "--rounds", rounds, "--delta", 0.5)
    found = facts(*ask, "--magnitude-epsilon", repr(magnitude))["affordable"]
    allowed = Amount.allowance(total).epsilon
    units = round(found["epsilon_round"] * EPSILON_UNITS)
    left = round(found["epsilon_selection"] * EPSILON_UNITS)
    if units < 2**52:  # as a float it is the number of units
        assert units * rounds <= allowed < (units + 1) * rounds
        assert left == max(units - Amount.cost(magnitude).epsilon, 0)
        assert Amount.cost(found["epsilon_selection"]).epsilon == left


def test_a_plan_goes_on_with_the_epsilon_that_fits() -> None:
    found = facts("plan", "--params", 61706, "--k", 0.2, "--total-epsilon", 24, "--rounds", 3)
    assert found["epsilon"]["total_pure"] == 24.0
    assert found["selection"] == facts(*ISSUE)["selection"]


@pytest.mark.parametrize(
    ("words", "rounds"),
    [
        (("--total-epsilon", 0), 1),
        (("--total-epsilon", 2, "--rounds", 2, "--magnitude-epsilon", 1), 2),
        (("--total-epsilon", 1, "--rounds", 3, "--health-epsilon", 0.5), 3),
        (("--total-epsilon", 7.9, "--epsilon", 1, "--rounds", 8), 8),
        (("--total-epsilon", 8, "--epsilon", 8 / 3, "--rounds", 3), 3),
    ],
)
def test_what_does_not_fit_ends_with_1(words: tuple[object, ...], rounds: int) -> None:
    done = flower_ldp(*LENET, *words)
    assert done.code == 1
    assert done.err.startswith(f"error: {rounds} rounds do not fit")
    assert facts(*LENET, *words)["problems"]


def test_both_bits_are_part_of_what_a_round_costs() -> None:
    bits = ("--magnitude-epsilon", 1, "--health-epsilon", 0.5)
    plain, found = (facts(*LENET, "--epsilon", 8, *asked) for asked in ((), bits))
    assert found["epsilon"]["round"] == 9.5
    assert found["bytes_up"]["per_round"] == plain["bytes_up"]["per_round"] + 1
    affordable = facts("plan", "--total-epsilon", 8, "--rounds", 3, *bits)["affordable"]
    assert affordable["epsilon_selection"] == 1.166666666666


def test_what_fits_ends_with_0() -> None:
    found = facts(*LENET, "--epsilon", 0.1, "--rounds", 80, "--total-epsilon", 8)
    assert (found["ok"], found["fit"]) == (True, {"rounds": 80, "fits": True})


def test_more_than_a_selection_takes_is_said() -> None:
    found = facts(*LENET, "--total-epsilon", 500)
    assert "at most 100" in found["warnings"][0]
    assert found["affordable"]["epsilon_planned"] == found["epsilon"]["round"] == 100.0


def test_a_delta_that_protects_nobody_is_said() -> None:
    ask = (*LENET, "--epsilon", 1, "--clients", 1000)
    assert facts(*ask, "--delta", 1e-3)["warnings"]
    assert not facts(*ask, "--delta", 1e-6)["warnings"]


def test_signds_may_be_named() -> None:
    assert flower_ldp("plan", "signds", *ISSUE[1:]) == flower_ldp(*ISSUE)
