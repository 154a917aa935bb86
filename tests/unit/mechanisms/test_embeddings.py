"""Embeddings: the law, the price of a record, the estimators, and what a bottom's claim adds."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from flower_ldp.errors import RefusalError
from flower_ldp.mechanisms import (
    BottomModelClaim,
    CodebookEmbedding,
    RandomSource,
    UnaryEncoding,
    best_accuracy,
)
from flower_ldp.policy import Policy
from flower_ldp.privacy import PrivacyEvent, Unit, compose
from tests.fixtures import parse_policy

REPORTS = [np.array(bits) for bits in itertools.product((0, 1), repeat=4)]
RECORDS = [bits * 2.5 - 1 for bits in REPORTS]
ONE_HOT = list(np.eye(4))


@pytest.mark.parametrize("epsilon", [1e-3, 1.0, 5.0, 60.0])
def test_arbitrary_records_cost_half_of_epsilon_a_bit_and_others_epsilon(epsilon: float) -> None:
    for mechanism, reports, values, cost in (
        (UnaryEncoding(epsilon, 4), REPORTS, RECORDS, 2 * epsilon),
        (UnaryEncoding(epsilon, 4, one_hot=True), REPORTS, ONE_HOT, epsilon),
        (CodebookEmbedding(epsilon, 4), range(4), ONE_HOT, epsilon),
    ):
        table = np.array([[mechanism.log_prob(r, v) for r in reports] for v in values])
        np.testing.assert_allclose(np.exp(table).sum(axis=1), 1.0, rtol=1e-12)
        assert np.ptp(table, axis=0).max() == pytest.approx(cost, rel=1e-12)
        assert mechanism.events() == (PrivacyEvent(mechanism.name, cost, unit=Unit.EXAMPLE),)


def test_epsilon_zero_is_full_randomness_and_costs_nothing() -> None:
    mechanism = UnaryEncoding(0.0, 4)
    assert {mechanism.log_prob(r, v) for r in REPORTS for v in RECORDS} == {-4 * math.log(2)}
    assert mechanism.events() == ()
    ones = mechanism.randomize(np.ones((5_000, 4)), RandomSource.seeded(1)).mean(axis=0)
    # five standard deviations for each of four means
    assert np.abs(ones - 0.5).max() < 5 * 0.5 / math.sqrt(5_000)


def test_without_epsilon_there_is_quantization_alone_and_no_claim() -> None:
    mechanism = UnaryEncoding(None, 4)
    value = np.array([[0.1, 0.0, -0.0, -3.0], [np.inf, -np.inf, 1e-300, 5.0]])
    found = mechanism.randomize(value, RandomSource.seeded(1))
    assert found.dtype == np.uint8
    np.testing.assert_array_equal(found, [[1, 0, 0, 0], [1, 0, 1, 1]])
    assert mechanism.record_epsilon == math.inf
    assert mechanism.log_prob(found, value) == 0.0
    assert mechanism.log_prob(1 - found, value) == -math.inf
    np.testing.assert_array_equal(mechanism.estimate(found), found)


@pytest.mark.parametrize("epsilon", [1e-3, 0.5, 5.0, 30.0])
def test_the_estimates_are_unbiased(epsilon: float) -> None:
    bits, codes = UnaryEncoding(epsilon, 4), CodebookEmbedding(epsilon, 4)
    for mechanism, reports, value, expected in (
        *((bits, REPORTS, value, value > 0) for value in RECORDS),
        *((codes, range(4), value, value) for value in ONE_HOT),
    ):
        chances = np.exp([mechanism.log_prob(report, value) for report in reports])
        mean = chances @ np.array([mechanism.estimate(report) for report in reports])
        np.testing.assert_allclose(mean, expected, atol=1e-9)
    np.testing.assert_allclose(codes.estimate([0, 2, 1]).sum(axis=1), 1.0)


def test_the_code_is_the_first_of_the_largest_scores() -> None:
    mechanism = CodebookEmbedding(1.0, 3)
    scores = np.array([[0.0, 2.0, 1.0], [5.0, 5.0, 1.0], [-np.inf, -2.0, -np.inf]])
    np.testing.assert_array_equal(mechanism.encode(scores), [1, 0, 1])
    assert mechanism.encode(scores[0]) == 1


@pytest.mark.parametrize("shape", [(3,), (2, 3), (0, 3)])
def test_the_input_is_never_changed_and_the_shape_is_kept(shape: tuple[int, ...]) -> None:
    value = np.ones(shape)
    value.flags.writeable = False
    for epsilon in (0.0, 1.0):
        report = UnaryEncoding(epsilon, 3).randomize(value, RandomSource.seeded(0))
        assert report.shape == shape
        assert report.flags.writeable
    assert (
        np.shape(CodebookEmbedding(1.0, 3).randomize(value, RandomSource.seeded(0))) == shape[:-1]
    )
    np.testing.assert_array_equal(value, np.ones(shape))


def test_a_value_of_another_number_of_records_has_the_neutral_law() -> None:
    bits, report = UnaryEncoding(1.0, 3), np.ones((2, 3), dtype=int)
    assert bits.log_prob(report, np.ones((1, 3))) == pytest.approx(-6 * math.log(2))
    law = CodebookEmbedding(1.0, 3).log_prob([0, 1], np.ones((1, 3)))
    assert law == pytest.approx(-2 * math.log(3))


def test_no_estimator_of_the_class_beats_the_limit() -> None:
    mechanism = CodebookEmbedding(1.5, 3)
    chances = np.exp([[mechanism.log_prob(r, v) for r in range(3)] for v in np.eye(3)])
    best = max(
        np.mean([chances[v, r] for r, v in enumerate(guess)])
        for guess in itertools.product(range(3), repeat=3)
    )
    assert best == pytest.approx(best_accuracy(1.5, 3))
    assert best_accuracy(0.0, 10) == pytest.approx(0.1)
    assert best_accuracy(4.0, 10) == pytest.approx(0.8585, abs=1e-4)


# Claims: what follows for the ledger from how a bottom came to be.

RELEASE = UnaryEncoding(5.0, 128).events()
DP = BottomModelClaim("dp", 2.0, 1e-5)
PUBLIC, CONDITIONAL = BottomModelClaim("public"), BottomModelClaim("conditional")


def test_a_claim_costs_the_release_and_a_private_bottom_its_training() -> None:
    assert PUBLIC.events(RELEASE) == RELEASE
    (release,) = DP.events(CodebookEmbedding(6.0, 10).events())
    (training,) = DP.training()
    assert release == PrivacyEvent("codebook_embedding", 6.0, unit=Unit.EXAMPLE)
    assert training == PrivacyEvent("bottom_training", 2.0, 1e-5, Unit.EXAMPLE)
    total = compose((release, training))[Unit.EXAMPLE]
    assert (total.epsilon, total.delta) == (8.0, 1e-5)
    assert "epsilon 2, delta 1e-05" in DP.covers
    assert all(claim.events(()) == () for claim in (PUBLIC, DP, CONDITIONAL))


def test_a_conditional_claim_is_in_the_name_of_every_event() -> None:
    (event,) = CONDITIONAL.events(RELEASE)
    assert event == PrivacyEvent("embedding_dp:conditional", 320.0, unit=Unit.EXAMPLE)
    assert "conditional on the bottom model" in CONDITIONAL.covers


PLAIN = "embedding_dp: {epsilon: 320.0, unit: example}"
BY_NAME = '"embedding_dp:conditional": {epsilon: 320.0, unit: example}'
TRAINED = PLAIN + ", bottom_training: {epsilon: 2.0, delta: 1.0e-5, unit: example}"


def policy(mode: str, mechanisms: str, unlisted: str = "refuse") -> Policy:
    messages = f"{{train.forward: {{{mechanisms}}}}}" if mechanisms else "{}"
    return parse_policy(
        f"{{data_id: a, ledger: a.sqlite, mode: {mode}, messages: {messages},"
        f" unlisted_messages: {unlisted}, budgets: {{example: {{life: {{epsilon: 1000.0}}}}}}}}"
    )


@pytest.mark.parametrize(
    ("judge", "claim", "allowed"),
    [
        *((policy(mode, PLAIN), PUBLIC, True) for mode in ("deployment", "simulation")),
        *((policy(mode, PLAIN), CONDITIONAL, False) for mode in ("deployment", "simulation")),
        *((policy(mode, BY_NAME), CONDITIONAL, True) for mode in ("deployment", "simulation")),
        *((policy(mode, BY_NAME), PUBLIC, False) for mode in ("deployment", "simulation")),
        (policy("simulation", "", "answer"), CONDITIONAL, True),
        (policy("deployment", "", "answer"), CONDITIONAL, False),
        (policy("deployment", "", "answer"), PUBLIC, True),
        (policy("deployment", PLAIN), DP, False),
        (policy("deployment", TRAINED), DP, True),
        (policy("deployment", TRAINED), BottomModelClaim("dp", 2.1, 1e-5), False),
    ],
)
def test_a_policy_allows_each_claim_by_itself(
    judge: Policy, claim: BottomModelClaim, allowed: bool
) -> None:
    events = (*claim.events(RELEASE), *claim.training())
    try:
        judge.check("train.forward", events)
        found = True
    except RefusalError:
        found = False
    assert found is allowed
