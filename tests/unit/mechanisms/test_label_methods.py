"""Every method of randomizing labels: its law, and what configurations and policies know of it."""

from __future__ import annotations

import itertools
import math
import tracemalloc

import numpy as np
import pytest

from flower_ldp.labels import LABEL_METHODS, LabelMechanism, LabelStages, RandomizedLabels
from flower_ldp.mechanisms import (
    MECHANISMS,
    BinaryResponse,
    CodebookEmbedding,
    KaryResponse,
    RandomSource,
    RRWithPrior,
)
from flower_ldp.mechanisms.labels import label_mechanisms, reports_are_labels
from flower_ldp.policy.sections import mechanism_name
from flower_ldp.privacy import Unit, compose
from tests.extras import extra
from tests.fixtures import parse_label_config

CATEGORIES = 4
PRIORS = [
    [0.25] * 4,
    [0.7, 0.1, 0.1, 0.1],
    [0.0, 0.2, 0.3, 0.5],
    [0.0] * 4,
    [0.0, 1.0, 0.0, 0.0],
    [1e-320, 0.0, 1e-320, 0.0],
    [1e308, 1e308, 1e308, 3.0],
]
STAGES = [
    (method, stage) for method, stages in LABEL_METHODS.items() for stage in range(len(stages))
]
each = pytest.mark.parametrize(
    "mechanism", [label_mechanisms(method, 1.0, CATEGORIES)[stage] for method, stage in STAGES]
)


def reports(mechanism: LabelMechanism) -> np.ndarray:
    """Return all reports: the labels, or the sets of labels that are as large as one is."""
    every = np.arange(mechanism.report_end)
    if reports_are_labels(mechanism):
        return every
    (size,) = mechanism.law_terms
    return np.array([report for report in every if int(report).bit_count() == size])


def law(mechanism: LabelMechanism, prior: list[float] | None) -> np.ndarray:
    """Return P(report | label) with a row for each report."""
    return mechanism.likelihood(reports(mechanism), prior)


def priors(mechanism: LabelMechanism) -> list[list[float]] | list[None]:
    return PRIORS if mechanism.needs_prior else [None]


@pytest.mark.parametrize("epsilon", [0.01, 0.5, 1.0, 5.0, 20.0, 100.0])
@pytest.mark.parametrize(("method", "stage"), STAGES)
def test_the_law_keeps_to_epsilon_and_is_tight(method: str, stage: int, epsilon: float) -> None:
    mechanism = label_mechanisms(method, epsilon, CATEGORIES)[stage]
    assert isinstance(mechanism, LabelMechanism)
    assert (mechanism.epsilon, mechanism.categories) == (epsilon, CATEGORIES)
    assert compose(mechanism.events())[Unit.LABEL].epsilon == epsilon
    every = reports(mechanism)
    for prior in priors(mechanism):
        found = law(mechanism, prior)
        np.testing.assert_allclose(found.sum(axis=0), 1.0, rtol=1e-12)
        possible = found.any(axis=1)
        losses = np.ptp(np.log(found[possible]), axis=1)
        told = prior is None or possible.sum() > 1
        assert losses.max() == pytest.approx(epsilon if told else 0.0, abs=1e-12)
        if prior in (PRIORS[0], PRIORS[3]):
            np.testing.assert_allclose(found, KaryResponse(epsilon, CATEGORIES).transition())
        given = () if prior is None else (prior,)
        logs = [[mechanism.log_prob(one, label, *given) for label in range(4)] for one in every]
        np.testing.assert_allclose(np.exp(logs), found, rtol=1e-12)
        pairs = every.reshape(2, -1)
        many = None if prior is None else np.tile(prior, (*pairs.shape, 1))
        np.testing.assert_array_equal(mechanism.likelihood(pairs, many).reshape(-1, 4), found)


@each
def test_without_a_prior_reports_are_read_under_a_uniform_one(mechanism: LabelMechanism) -> None:
    every = reports(mechanism)
    found = RandomizedLabels(every, np.arange(len(every)), mechanism).likelihood()
    expected = law(mechanism, priors(mechanism)[0])
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    # And a report holds the label as often as is said.
    held = every[:, np.newaxis] >> np.arange(CATEGORIES) & 1
    if reports_are_labels(mechanism):
        held = np.eye(CATEGORIES)
    assert (expected * held).sum(axis=0).min() == pytest.approx(mechanism.keep_probability)


@each
def test_a_prior_is_needed_or_refused(mechanism: LabelMechanism) -> None:
    prior, text = (None, "be given") if mechanism.needs_prior else (PRIORS[0], "be left out")
    with pytest.raises(ValueError, match=f"prior must {text}"):
        mechanism.randomize_array([0], RandomSource.seeded(1), prior)
    with pytest.raises(ValueError, match=f"prior must {text}"):
        mechanism.likelihood([0], prior)


@pytest.mark.parametrize("method", LABEL_METHODS)
def test_a_configuration_and_a_policy_know_the_method(method: str) -> None:
    shares = ", stage_shares: [2, 1]" if len(LABEL_METHODS[method]) > 1 else ""
    config = parse_label_config(
        f"label_dp: {{eps: 1.0, categories: {CATEGORIES}, response: {method}{shares}}}"
    )
    mechanisms = label_mechanisms(method, 1.0, CATEGORIES)
    assert config.stages() == LabelStages(mechanisms, (2, 1) if shares else (1,))
    for mechanism in mechanisms:
        assert mechanism_name(mechanism.name) in MECHANISMS


@each
def test_what_a_ledger_keeps_of_a_mechanism_fixes_its_law(mechanism: LabelMechanism) -> None:
    (kept,) = LabelStages((mechanism,), (1,)).terms(5)["mechanisms"]
    assert kept == [type(mechanism).__name__, mechanism.name, 1.0, *mechanism.law_terms]
    single = reports_are_labels(mechanism)
    assert len(kept) == (3 if single else 4)
    assert mechanism.report_end == (CATEGORIES if single else 1 << CATEGORIES)


@pytest.mark.parametrize("other", [BinaryResponse(1.0), CodebookEmbedding(1.0, 10), 1.0, None])
def test_other_mechanisms_randomize_no_labels(other: object) -> None:
    assert not isinstance(other, LabelMechanism)


optimize = extra("scipy.optimize")


@pytest.mark.parametrize("epsilon", [0.2, 1.0, 2.5])
def test_no_other_private_report_is_true_more_often(epsilon: float) -> None:
    # The best epsilon-LDP matrix P(report | value) by linear programming (Theorem 3).
    k, rng = 4, np.random.default_rng(1)
    for prior in rng.dirichlet(np.full(k, 0.7), size=12):
        bounds = np.zeros((k**2 * (k - 1), k, k))
        pairs = itertools.product(range(k), itertools.permutations(range(k), 2))
        for row, (report, (value, other)) in zip(bounds, pairs, strict=True):
            row[value, report], row[other, report] = 1.0, -math.exp(epsilon)
        best = optimize.linprog(
            -np.diag(prior).ravel(),
            A_ub=bounds.reshape(len(bounds), -1),
            b_ub=np.zeros(len(bounds)),
            A_eq=np.kron(np.eye(k), np.ones(k)),
            b_eq=np.ones(k),
        )
        ours = RRWithPrior(epsilon, k).likelihood(range(k), prior).diagonal() @ prior
        assert ours == pytest.approx(-best.fun, abs=1e-8)


def test_a_sure_prior_gives_a_constant_report_and_one_for_each_is_one_for_all() -> None:
    mechanism = RRWithPrior(1.0, 3)
    prior = [0.0, 0.0, 4.0]
    reports = mechanism.randomize_array([0, 1, 2], RandomSource.seeded(1), prior)
    assert reports.tolist() == [2, 2, 2]
    # The same prior given for each value is the same law, draw by draw.
    rng, values, prior = RandomSource.seeded(3), np.arange(40_000) % 3, [0.6, 0.3, 0.1]
    alike = mechanism.randomize_array(values, RandomSource.seeded(3), prior)
    each = mechanism.randomize_array(values, rng, np.tile(prior, (40_000, 1)))
    np.testing.assert_array_equal(alike, each)


def test_each_value_has_its_own_prior_across_blocks() -> None:
    mechanism, rng = RRWithPrior(0.5, 6), np.random.default_rng(2)
    priors = rng.dirichlet(np.full(6, 0.2), size=(20_000, 2))
    values = rng.integers(0, 6, size=(20_000, 2))
    reports = mechanism.randomize_array(values, RandomSource.seeded(2), priors)
    assert reports.shape == values.shape
    assert reports.dtype == np.int64
    sizes = mechanism.sizes(priors)
    assert len(np.unique(sizes)) > 3
    rank = np.argsort(np.argsort(-priors, axis=-1), axis=-1)
    of_report = np.take_along_axis(rank, reports[..., np.newaxis], axis=-1)[..., 0]
    assert (of_report < sizes).all()
    # Each pair of a size and a rank of the value follows the law: the share that is kept.
    of_value = np.take_along_axis(rank, values[..., np.newaxis], axis=-1)[..., 0]
    inside = of_value < sizes
    for size in range(2, 6):
        chosen = inside & (sizes == size)
        n, keep = chosen.sum(), math.exp(0.5) / (math.exp(0.5) + size - 1)
        kept = (reports == values)[chosen].mean()
        assert abs(kept - keep) < 5.2 * math.sqrt(keep * (1 - keep) / n)  # 1e-6 in all


def test_many_categories_take_no_table_of_values_by_categories() -> None:
    categories, n = 20_000, 16_384  # a table of truth values alone would have 328 MB
    mechanism = RRWithPrior(12.0, categories)
    prior = 1.0 / np.arange(1, categories + 1)
    values = np.arange(n) * 7 % categories
    tracemalloc.start()
    reports = mechanism.randomize_array(values, RandomSource.seeded(3), prior)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100e6
    assert (mechanism.likelihood(reports[:50], prior)[np.arange(50), values[:50]] > 0).all()
    each = np.broadcast_to(prior, (30, categories))
    assert mechanism.randomize_array(values[:30], RandomSource.seeded(4), each).shape == (30,)
