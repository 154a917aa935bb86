"""Advice before a training: what it chooses, what it predicts, and that its remedies are ones."""

from __future__ import annotations

import math
from functools import partial

import pytest

from flower_ldp.advice import POOR_COSINE, Remedies, UtilityForecast, Verdict, advise
from flower_ldp.mechanisms import Codeword, Gaussian, SignDS
from flower_ldp.mechanisms.base import GOOD_COSINE, run_cosine


@pytest.mark.parametrize(
    ("clients", "weights", "total", "cosine", "verdict"),
    [
        # MNIST, a linear head, asked once: 93, 88, 72, 40 and 64 % of 96.3; LeNet learns nothing.
        (1_000, 2_010, 8.0, 0.89, Verdict.GOOD),
        (1_000, 2_010, 4.0, 0.73, Verdict.GOOD),
        (1_000, 2_010, 2.0, 0.48, Verdict.POOR),
        (1_000, 2_010, 1.0, 0.27, Verdict.HOPELESS),
        (10_000, 2_010, 1.0, 0.66, Verdict.POOR),
        (100, 62_006, 8.0, 0.11, Verdict.HOPELESS),
        (1_000, 62_006, 8.0, 0.33, Verdict.HOPELESS),
    ],
)
def test_the_measured_runs_are_told_apart(
    clients: int, weights: int, total: float, cosine: float, verdict: Verdict
) -> None:
    found = advise(clients=clients, weights=weights, total_epsilon=total)
    assert found.outlook.run_cosine == pytest.approx(cosine, abs=0.006)
    assert found.verdict is verdict
    assert found.answers_per_client == 1
    assert found.mechanism == Codeword(total)
    assert found.outlook.clients_per_round * found.outlook.rounds <= clients
    signal = clients * found.plan.efficiency / weights
    assert found.outlook.run_cosine == pytest.approx(math.sqrt(signal / (1 + signal)))


@pytest.mark.parametrize(
    ("clients", "weights", "total"),
    [(1_000, 62_006, 8.0), (40, 2_010, 4.0), (10_000, 2_010, 1.0), (9, 3_000, 0.5), (60, 99, 2.0)],
)
def test_each_remedy_alone_makes_it_good(clients: int, weights: int, total: float) -> None:
    found = advise(clients=clients, weights=weights, total_epsilon=total)
    ways = found.remedies
    assert ways is not None
    tried = [(ways.clients, weights, total)]
    tried += [] if ways.weights is None else [(clients, ways.weights, total)]
    tried += [] if ways.total_epsilon is None else [(clients, weights, ways.total_epsilon)]
    for some, few, much in tried:
        better = advise(clients=some, weights=few, total_epsilon=much)
        assert GOOD_COSINE <= better.outlook.run_cosine < 0.8, (some, few, much)
        assert better.remedies is None
    assert f"{ways.clients:,} clients" in str(found)


def test_no_remedy_that_is_none_is_named() -> None:
    ways = advise(clients=5, weights=62_006, total_epsilon=8.0).remedies
    assert ways is not None
    assert ways.total_epsilon is None
    assert "no total up to 100 is enough" in str(ways)
    ways = advise(clients=3, weights=9, total_epsilon=0.001).remedies
    assert ways is not None
    assert ways.weights is None
    assert "weights" not in str(ways)


def test_one_weight_is_beyond_help() -> None:
    mechanism = SignDS(8.0)
    found = UtilityForecast(partial(mechanism.plan, quiet=True), 1, 99, 1, 99)
    assert found.remedies == Remedies(None, None, None)
    assert "nothing" in str(found.remedies)


@pytest.mark.parametrize("epsilon", [1.0, 90.0])
def test_one_weight_with_noise_has_an_outlook(epsilon: float) -> None:
    """Codewords are for two weights at least, and a run with noise is not: no advice ends it."""
    found = UtilityForecast(Gaussian(epsilon, 1e-6).plan, 1, 6, 4, 6)
    assert found.judgement()
    assert found.remedies is None or found.remedies.total_epsilon is None


@pytest.mark.parametrize(
    ("clients", "weights", "total", "words", "said"),
    [
        (1, 2, 8.0, "of 1 client (min_train_nodes=1) each", True),
        (9, 2, 8.0, "min_train_nodes", False),
        (5, 62_006, 8.0, "docs/dpsgd_release.md", True),
        (100, 62_006, 8.0, "docs/dpsgd_release.md", False),
        (5, 9, 8.0, "docs/dpsgd_release.md", False),
        (1_000, 62_006, 8.0, "53 spent", True),
        (1_000, 62_006, 8.0, "as a promise means nothing", True),
        (10_000, 2_010, 1.0, "means nothing", False),
    ],
)
def test_single_clients_few_sites_and_totals_that_mean_nothing_are_told(
    clients: int, weights: int, total: float, words: str, said: bool
) -> None:
    text = str(advise(clients=clients, weights=weights, total_epsilon=total))
    assert (words in text) is said


@pytest.mark.parametrize(
    ("clients", "rounds", "each"),
    [(10_000, 40, 250), (203, 33, 6), (199, 39, 5), (100, 20, 5), (4, 1, 4)],
)
def test_rounds_have_five_reports_and_are_forty_at_most(
    clients: int, rounds: int, each: int
) -> None:
    found = advise(clients=clients, weights=99, total_epsilon=2.0).outlook
    assert (found.rounds, found.clients_per_round) == (rounds, each)


def test_large_totals_are_asked_for_in_parts_that_fit() -> None:
    found = advise(clients=1_000, weights=62_006, total_epsilon=25.0, mechanism=Codeword)
    assert found.answers_per_client == 2
    assert found.mechanism.epsilon == 12.5
    third = advise(clients=9, weights=99, total_epsilon=8.0, answers_per_client=3)
    assert third.mechanism.epsilon == 2.666666666666
    assert advise(clients=99, weights=62_006, total_epsilon=640.0).answers_per_client >= 7


def test_signds_is_chosen_where_it_is_worth_more() -> None:
    assert isinstance(advise(clients=9, weights=2_010, total_epsilon=16.0).mechanism, SignDS)
    one = advise(clients=1_000, weights=2_010, total_epsilon=8.0, mechanism=SignDS)
    assert isinstance(one.mechanism, SignDS)
    assert (
        one.outlook.run_cosine
        < advise(clients=1_000, weights=2_010, total_epsilon=8.0).outlook.run_cosine
    )
    assert isinstance(advise(clients=9, weights=2**25, total_epsilon=1.0).mechanism, SignDS)


@pytest.mark.parametrize("epsilon", [0.01, 0.5, 2.0, 8.0])
@pytest.mark.parametrize("weights", [300, 62_006])
def test_below_eight_codewords_are_worth_as_much(epsilon: float, weights: int) -> None:
    signds = SignDS(epsilon).plan(weights, quiet=True).efficiency
    assert signds < 1.012 * Codeword(epsilon).plan(weights).efficiency


def test_rounds_that_are_given_are_kept() -> None:
    found = advise(clients=3, weights=9, total_epsilon=4.0, rounds=5)
    assert found.outlook.rounds == 5
    assert found.answers_per_client >= 2
    assert found.outlook.clients_per_round >= 1


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"clients": 0}, "clients must be"),
        ({"clients": True}, "clients must be"),
        ({"weights": 1}, "weights must be"),
        ({"total_epsilon": -1.0}, "total_epsilon must be"),
        ({"total_epsilon": 0.0}, "total_epsilon must be"),
        ({"total_epsilon": math.nan}, "total_epsilon must be"),
        ({"answers_per_client": 0}, "answers_per_client must be"),
        ({"rounds": 2, "answers_per_client": 3}, r"rounds must be an integer in \[3, 30\]"),
        ({"rounds": 11, "answers_per_client": 1}, r"rounds must be an integer in \[1, 10\]"),
        ({"total_epsilon": 300.0, "rounds": 2}, "rounds must be at least 3"),
        ({"total_epsilon": 300.0, "answers_per_client": 2}, "answers_per_client must be in"),
        ({"weights": 2**25, "mechanism": Codeword}, "weights must be at most"),
    ],
)
def test_what_is_wrong_or_contradicts_is_named(wrong: dict[str, object], said: str) -> None:
    given: dict[str, object] = {"clients": 10, "weights": 99, "total_epsilon": 8.0, **wrong}
    with pytest.raises(ValueError, match=f"^{said}"):
        advise(**given)  # type: ignore[arg-type]


def test_a_mechanism_is_one_of_two() -> None:
    with pytest.raises(TypeError, match="mechanism"):
        advise(clients=9, weights=9, total_epsilon=1.0, mechanism="signds")  # type: ignore[arg-type]


def test_thresholds_stand_in_order() -> None:
    assert Verdict.of(GOOD_COSINE) is Verdict.GOOD
    assert Verdict.of(GOOD_COSINE - 1e-9) is Verdict.of(POOR_COSINE) is Verdict.POOR
    assert Verdict.of(POOR_COSINE - 1e-9) is Verdict.HOPELESS


@pytest.mark.parametrize(
    ("blocks", "weights", "clients"), [(10, 200, 200), (10, 2_000, 200), (5, 200, 50), (2, 200, 20)]
)
def test_clients_that_are_asked_for_are_more_than_there_are(
    blocks: int, weights: int, clients: int
) -> None:
    """Reports of blocks lean away too, and no number of clients takes all of that back."""
    plan = Codeword(8.0, blocks=blocks).plan
    found = UtilityForecast(plan, weights, clients, 10, clients // 10)
    assert found.remedies is not None
    if run_cosine(plan(weights), 10**12) < GOOD_COSINE:
        assert found.remedies.clients is None
        return
    more = found.remedies.clients
    assert more is not None
    assert more > clients
    assert run_cosine(plan(weights), more) >= GOOD_COSINE


def test_more_clients_than_people_are_no_advice() -> None:
    found = advise(clients=1_000, weights=10**9, total_epsilon=0.001)
    assert found.remedies is not None
    assert found.remedies.clients is None
    assert "clients" not in found.outlook.judgement()


def test_few_clients_are_not_told_that_nothing_is_learned_where_a_few_more_are_enough() -> None:
    found = advise(clients=6, weights=200, total_epsilon=8.0)
    assert found.remedies is not None
    assert (found.remedies.clients or 0) < 50
    assert "no model" not in str(found)
