"""``plan laplace``, ``labels``, ``gaussian`` and ``codeword``: each number found in another way."""

from __future__ import annotations

import math

import numpy as np
import pytest

from flower_ldp.accounting.composition import totals
from flower_ldp.mechanisms import (
    Codeword,
    Gaussian,
    JointCounts,
    KaryResponse,
    Laplace,
    RandomSource,
    SignDS,
    SubsetSelection,
)
from flower_ldp.mechanisms.gaussian import gaussian_delta
from flower_ldp.privacy import PrivacyEvent, PrivacySpent, Unit, meaning
from flower_ldp.wire.evaluation import EvalProposal, encode_eval_report
from flower_ldp.wire.proposal import UpdateProposal
from tests.cli import facts, flower_ldp
from tests.fixtures import signds_proposal
from tests.unit.cli.test_cli_plan import by_zcdp


def test_noise_below_a_bound_gives_the_epsilon_and_back() -> None:
    found = facts("plan", "laplace", "--noise-below", 1e-5, "--probability", 0.9)
    assert found["row"]["epsilon"] == pytest.approx(2 * math.log(10) / 1e-5)
    assert found["row"]["published_epsilon"] == pytest.approx(230_258.509)
    assert "protects nothing" in found["warnings"][0]
    back = facts("plan", "laplace", "--epsilon", found["row"]["epsilon"])
    assert back["noise"]["below"] == pytest.approx(1e-5)
    assert back["noise"]["scale"] == pytest.approx(1e-5 / math.log(10))


def test_the_published_setting_is_460520_a_row() -> None:
    asked = ("--published-epsilon", 230_260, "--rows", 3, "--rounds", 2)
    found = facts("plan", "laplace", *asked)
    assert found["row"] == {"epsilon": 460_520.0, "published_epsilon": 230_260.0}
    assert found["epsilon"]["round"] == 3 * 460_520.0
    assert found["epsilon"]["total_pure"] == 6 * 460_520.0


def test_rows_rounds_and_bytes_of_laplace() -> None:
    ask = ("plan", "laplace", "--epsilon", 0.5, "--classes", 10, "--rows", 4, "--rounds", 30)
    found = facts(*ask, "--clients", 25, "--delta", 1e-6)
    events = [PrivacyEvent("laplace", 0.5, count=120)]
    both = totals(events, delta=1e-6)[Unit.CLIENT]
    assert both.approximate is not None
    assert found["epsilon"] == {
        "unit": "client",
        "units": ["client", "example", "label"],
        "relation": "replace-one client",
        "round": 2.0,
        "total_pure": 60.0,
        "total_pld": both.approximate.epsilon,
        "total_smaller": both.smaller.epsilon,
        "total_smaller_delta": 1e-6,
        **by_zcdp(events),
    }
    mechanism = Laplace(0.5, 10, rows=4)
    report = mechanism.randomize(np.full((4, 10), 0.1), RandomSource.seeded(1))
    size = len(encode_eval_report(EvalProposal(mechanism, {}), report, []))
    assert found["bytes_up"] == {"per_round": size, "total": 30 * size}
    assert found["noise"]["reports"] == 100
    deviation = mechanism.standard_deviation / 10
    assert found["noise"]["mean_deviation"] == pytest.approx(deviation, rel=1e-3)
    assert found["meaning"]["total"] == meaning(PrivacySpent(Unit.CLIENT, 60.0))
    assert "2 per client, pure (laplace 4 x 0.5)" in flower_ldp(*ask).out


@pytest.mark.parametrize(("epsilon", "classes"), [(1.0, 10), (40.0, 2), (0.01, 1000)])
def test_labels_have_the_rates_of_the_law(epsilon: float, classes: int) -> None:
    ask = ("plan", "labels", "--classes", classes)
    found = facts(*ask, "--epsilon", epsilon, "--labels", 60_000)
    mechanism = KaryResponse(epsilon, classes)
    keep, other = (math.exp(mechanism.log_prob(1, value)) for value in (1, 0))
    response = found["response"]
    assert response["keep_probability"] == pytest.approx(keep, rel=1e-12)
    assert response["each_other"] == pytest.approx(other, rel=1e-9)
    assert response["flip_rate"] == pytest.approx((classes - 1) * other, rel=1e-9)
    assert found["epsilon"]["once"] == found["labels"]["epsilon_each"] == epsilon
    assert found["labels"]["flipped"] == pytest.approx(60_000 * (classes - 1) * other)
    assert found["labels"]["epsilon_if_all_change"] == pytest.approx(60_000 * epsilon)
    assert meaning(PrivacySpent(Unit.LABEL, epsilon)) == found["meaning"]["label"]
    if keep < 0.999:
        back = facts(*ask, "--keep-probability", keep)
        assert back["epsilon"]["once"] == pytest.approx(epsilon)


@pytest.mark.parametrize(("epsilon", "classes", "size"), [(1.5, 10, 3), (0.5, 62, 26), (4.0, 9, 1)])
def test_labels_are_compared_with_sets_of_them(epsilon: float, classes: int, size: int) -> None:
    ask = ("plan", "labels", "--classes", classes, "--epsilon", epsilon)
    found = facts(*ask)["subset_selection"]
    sets = SubsetSelection(epsilon, classes, size)
    assert found["size"] == size
    held = [sets.log_prob((1 << size) - 1, value) for value in (0, classes - 1)]
    assert held[0] - held[1] == pytest.approx(epsilon)
    assert found["keep_probability"] == pytest.approx(
        math.exp(held[0]) * math.comb(classes - 1, size - 1)
    )
    # A report's law under a uniform label is uniform: what it tells is the mean logarithm.
    keep, ways = found["keep_probability"], math.log(math.comb(classes, size))
    told = keep * (held[0] + ways) + (1 - keep) * (held[1] + ways)
    assert found["information"] == pytest.approx(told)
    words = flower_ldp(*ask).out
    times = found["information"] / found["information_kary"]
    assert (f"tell {times:.3g} times as much" in words) == (size > 1)
    assert ("sets of one label are best" in words) == (size == 1)


def test_labels_at_the_ends() -> None:
    assert flower_ldp("plan", "labels", "--classes", 10, "--epsilon", 1e-30).code == 0
    # More labels than a set may be of: nothing is said of sets.
    ask = ("plan", "labels", "--classes", 63, "--epsilon", 1)
    assert "subset_selection" not in facts(*ask)
    assert "subset selection" not in flower_ldp(*ask).out


def test_gaussian_noise_and_the_textbooks_delta() -> None:
    asked = ("--epsilon", 50, "--delta", 0.01, "--clip-norm", 3, "--params", 77, "--clients", 144)
    found = facts("plan", "gaussian", *asked)
    mechanism = Gaussian(50.0, 0.01, 3.0)
    noise = found["noise"]
    assert noise["deviation"] == mechanism.deviation
    assert noise["mean_deviation"] == pytest.approx(mechanism.deviation / 12)
    sigma = 6.0 * math.sqrt(2 * math.log(125)) / 50
    assert noise["textbook_deviation"] == pytest.approx(sigma)
    assert noise["textbook_delta"] == pytest.approx(gaussian_delta(50.0, 6.0 / sigma))
    report = mechanism.randomize(np.zeros(77), RandomSource.seeded(1))
    assert found["bytes_up"]["per_round"] == len(mechanism.encode(report, 77))
    assert "choose it far below" in found["warnings"][0]


def test_gaussian_rounds_lie_on_one_curve() -> None:
    ask = ("plan", "gaussian", "--epsilon", 1, "--delta", 1e-6, "--rounds", 50)
    found = facts(*ask, "--total-delta", 1e-5)["epsilon"]
    assert (found["total_sum"], found["total_sum_delta"]) == (50.0, pytest.approx(5e-5))
    shift = math.sqrt(50) * Gaussian(1.0, 1e-6).shift
    delta = gaussian_delta(found["total_composed"], shift)
    assert delta == pytest.approx(1e-5, rel=1e-5)
    assert delta <= 1e-5
    alike = facts(*ask)["epsilon"]
    assert alike["total_composed_delta"] == alike["total_sum_delta"]
    nothing = facts("plan", "gaussian", "--epsilon", 90, "--delta", 0.4, "--rounds", 3)
    assert nothing["epsilon"]["total_composed"] is None
    assert "their sum says nothing" in nothing["warnings"][0]


def test_codewords_are_planned_beside_signds() -> None:
    ask = ("plan", "codeword", "--epsilon", 8, "--params", 2_010, "--clients", 25, "--rounds", 3)
    found = facts(*ask)
    plan = Codeword(8.0).plan(2_010)
    code = found["code"]
    assert (code["n"], code["favoured"], code["bits"]) == (2_048, plan.favoured, 18)
    assert code["efficiency"] == plan.efficiency
    assert code["cosine"] == plan.cosine_of_sum(25)
    proposal = UpdateProposal(Codeword(8.0).sized(2_010))
    assert found["bytes_up"]["per_round"] == proposal.report_bytes(2_010)
    assert found["epsilon"]["total_pure"] == 24.0
    other = SignDS(8.0).plan(2_010)
    square = other.worth**2 / 2_010  # the squared cosine of one report
    assert found["signds"]["efficiency"] == pytest.approx(2_010 * square / (1 - square))
    assert found["signds"]["bytes_up"] == signds_proposal(SignDS(8.0).sized(2_010)).report_bytes(
        2_010
    )
    assert found["better"] == "codeword"
    said = flower_ldp(*ask).out
    assert "codeword, by the cosine of 25 reports" in said
    assert "18" in said


@pytest.mark.parametrize(("epsilon", "better"), [(6, "codeword"), (16, "signds"), (100, "signds")])
def test_signds_is_said_to_be_better_where_it_is(epsilon: int, better: str) -> None:
    ask = ("plan", "codeword", "--epsilon", epsilon, "--params", 2_010)
    assert facts(*ask)["better"] == better
    assert f"{better}, by the efficiency of a report" in flower_ldp(*ask).out


def test_the_noise_of_tables_by_query() -> None:
    found = facts("plan", "counts", "--epsilon", 1, "--examples", 569, "--sites", 5)
    deviation = 5**0.5 * JointCounts(1.0, (10,)).deviation
    assert found["noise"]["law"] == "Laplace"
    assert found["noise"]["deviation"] == pytest.approx(deviation)
    assert found["noise"]["points"] == pytest.approx(100 * deviation / 569)
    worst = [np.abs(np.random.default_rng(s).normal(size=10)).max() for s in range(4_000)]
    far = found["noise"]["largest_points"] / found["noise"]["points"]
    assert far == pytest.approx(np.median(worst), rel=0.03)
    assert found["epsilon"]["question"] == 1.0
    assert not found["warnings"]
    more = ("--tables", 20, "--delta", 1e-5)
    many = facts("plan", "counts", "--epsilon", 1, "--examples", 569, "--sites", 5, *more)
    assert many["noise"]["law"] == "normal"
    assert "hopeless" in many["warnings"][0]


def test_clients_with_one_row_are_hopeless_where_they_are() -> None:
    """Of 24 cells, 1,000 clients at epsilon 1 are 6 points off in each."""
    ask = ("plan", "counts", "--epsilon", 1, "--cells", 24, "--unit", "client", "--examples")
    found = facts(*ask, 1_000)
    assert found["noise"]["points"] == pytest.approx(6.0, abs=0.3)
    assert found["epsilon"]["unit"] == "client"
    assert "hopeless" in found["warnings"][0]
    needed = int(found["warnings"][0].split("about ")[1].split(" clients")[0].replace(",", ""))
    assert facts(*ask, needed)["noise"]["largest_points"] == pytest.approx(5.0, rel=1e-3)
    assert not facts(*ask, needed)["warnings"]
    mechanism, rng = SubsetSelection(1.0, 24), RandomSource.seeded(3)
    told = mechanism.randomize_array(np.zeros((40, 1_000), dtype=int), rng)
    estimates = [mechanism.estimate(mechanism.members(one).sum(axis=0), 1_000) for one in told]
    assert np.std(estimates, axis=0)[1:].mean() / 10 == pytest.approx(6.0, rel=0.15)
