"""Priors from randomized labels, posteriors, clusters and central histograms."""

from __future__ import annotations

import math

import numpy as np
import pytest

from flower_ldp.labels import (
    group_counts,
    posterior,
    priors_from_counts,
    priors_from_likelihoods,
)
from flower_ldp.labels.clusters import cluster_sums, moved, nearest
from flower_ldp.labels.priors import CentralHistograms
from flower_ldp.mechanisms import KaryResponse, RandomSource, RRWithPrior
from flower_ldp.privacy import PrivacyEvent, Unit
from tests.extras import extra

optimize = extra("scipy.optimize")

RESPONSE = KaryResponse(1.0, 4)


def test_counts_by_group() -> None:
    found = group_counts([0, 1, 1, 3], [2, 0, 0, 2], 3, 4)
    assert found.tolist() == [[0, 2, 0, 0], [0, 0, 0, 0], [1, 0, 0, 1]]
    assert group_counts(np.zeros(0, int), np.zeros(0, int), 2, 3).tolist() == [[0] * 3] * 2
    for reports, groups in (([4], [0]), ([-1], [0]), ([0], [3]), ([0.0], [0]), ([0, 1], [0])):
        with pytest.raises(ValueError, match="must be"):
            group_counts(reports, groups, 3, 4)


def test_counts_of_clients_add_up_to_those_of_all() -> None:
    rng = np.random.default_rng(1)
    reports, groups = rng.integers(0, 4, 1_000), rng.integers(0, 7, 1_000)
    parts = [group_counts(reports[i::5], groups[i::5], 7, 4) for i in range(5)]
    np.testing.assert_array_equal(sum(parts), group_counts(reports, groups, 7, 4))


@pytest.mark.parametrize("counts", [[40, 30, 20, 10], [90, 3, 4, 3], [25, 25, 25, 25]])
def test_priors_are_the_likeliest(counts: list[int]) -> None:
    law = RESPONSE.transition()
    (found,) = priors_from_counts([counts], law, steps=4_000)

    def loss(logits: np.ndarray) -> float:
        p = np.exp(logits - logits.max())
        return -float(np.array(counts) @ np.log((p / p.sum()) @ law))

    best = min(
        optimize.minimize(loss, start).fun for start in np.vstack([np.zeros(4), 3 * np.eye(4)])
    )
    assert -np.array(counts) @ np.log(found @ law) == pytest.approx(best, abs=1e-4)
    assert found.sum() == pytest.approx(1.0)


def test_every_step_raises_the_likelihood() -> None:
    counts, law = np.array([[80, 5, 10, 5], [3, 0, 1, 0]]), RESPONSE.transition()
    fits = [
        (counts * np.log(priors_from_counts(counts, law, steps=steps) @ law)).sum(axis=1)
        for steps in range(1, 40)
    ]
    assert (np.diff(fits, axis=0) >= -1e-12).all()


def test_priors_come_near_the_truth_without_a_true_label() -> None:
    rng, truth = np.random.default_rng(2), np.array([[0.9, 0.1, 0, 0], [0, 0, 0.3, 0.7]])
    groups = np.repeat([0, 1], 40_000)
    labels = np.concatenate([rng.choice(4, 40_000, p=row) for row in truth])
    reports = RESPONSE.randomize_array(labels, RandomSource.seeded(2))
    counts = group_counts(reports, groups, 2, 4)
    found = priors_from_counts(counts, RESPONSE.transition(), steps=2_000)
    np.testing.assert_allclose(found, truth, atol=0.03)


def test_empty_groups_get_the_prior_of_all_and_smoothing_pulls_towards_it() -> None:
    counts, law = np.array([[0, 0, 0, 0], [50, 10, 10, 10], [2, 0, 0, 0]]), RESPONSE.transition()
    overall = priors_from_counts(counts.sum(axis=0, keepdims=True), law)[0]
    plain = priors_from_counts(counts, law)
    np.testing.assert_allclose(plain[0], overall)
    assert plain[2, 0] > 0.99
    smooth = priors_from_counts(counts, law, smoothing=1e9)
    np.testing.assert_allclose(smooth, np.tile(overall, (3, 1)), atol=1e-6)


@pytest.mark.parametrize(
    ("counts", "law", "options"),
    [
        ([1, 2], np.eye(2), {}),
        ([[1.0, 2.0]], np.eye(2), {}),
        ([[1, -2]], np.eye(2), {}),
        ([[1, 2]], np.eye(3), {}),
        ([[1, 2]], np.ones((2, 2)), {}),
        ([[1, 2]], [[2.0, -1.0], [0.0, 1.0]], {}),
        ([[1, 2]], np.eye(2), {"steps": 0}),
        ([[1, 2]], np.eye(2), {"smoothing": -1.0}),
        ([[1, 2]], np.eye(2), {"smoothing": math.nan}),
    ],
)
def test_what_gives_no_prior_is_refused(
    counts: list[float], law: np.ndarray, options: dict[str, float]
) -> None:
    with pytest.raises(ValueError, match="must be"):
        priors_from_counts(counts, law, **options)  # type: ignore[arg-type]


def test_priors_from_likelihoods_are_those_from_counts_where_all_reports_have_one_law() -> None:
    rng = np.random.default_rng(5)
    reports, groups = rng.integers(0, 4, 500), rng.integers(0, 6, 500)
    groups[groups == 3] = 0
    scaled = RESPONSE.likelihood(reports) * rng.uniform(0.1, 9, (500, 1))
    found = priors_from_likelihoods(scaled, groups, 6, steps=7)
    counts = group_counts(reports, groups, 6, 4)
    held = [0, 1, 2, 4, 5]
    expected = priors_from_counts(counts, RESPONSE.transition(), steps=7)
    np.testing.assert_allclose(found[held], expected[held], rtol=1e-10)
    np.testing.assert_allclose(found.sum(axis=1), 1.0)


def test_priors_from_reports_with_priors_of_their_own_come_near_the_truth() -> None:
    rng, n = np.random.default_rng(3), 40_000
    truth, mechanism = np.array([0.7, 0.2, 0.1, 0.0]), RRWithPrior(1.0, 4)
    known = rng.dirichlet(np.ones(4), n)
    labels = rng.choice(4, n, p=truth)
    reports = mechanism.randomize_array(labels, RandomSource.seeded(3), known)
    likelihood = mechanism.likelihood(reports, known)
    (found,) = priors_from_likelihoods(likelihood, np.zeros(n, int), 1, steps=300)
    np.testing.assert_allclose(found, truth, atol=0.04)


def test_a_label_that_alone_explains_a_report_keeps_its_share() -> None:
    rows = np.tile([1e300, 0.0], (99, 1))
    rows = np.vstack([rows, [[0.0, 1e-300]]])
    found = priors_from_likelihoods(rows, np.zeros(100, int), 2, steps=5_000)
    np.testing.assert_allclose(found, [[0.99, 0.01], [0.99, 0.01]])


@pytest.mark.parametrize(
    ("likelihood", "groups", "steps"),
    [
        ([0.5, 0.5], [0, 0], 1),
        (np.ones((2, 2)), [0], 1),
        (np.ones((0, 2)), np.zeros(0, int), 1),
        ([[0.0, 0.0]], [0], 1),
        ([[1.0, -0.1]], [0], 1),
        ([[1.0, math.nan]], [0], 1),
        ([[1.0, 1.0]], [2], 1),
        ([[1.0, 1.0]], [0.0], 1),
        ([[1.0, 1.0]], [0], 0),
    ],
)
def test_likelihoods_that_give_no_prior_are_refused(
    likelihood: list[float], groups: list[int], steps: int
) -> None:
    with pytest.raises(ValueError, match=r"must (be|have)"):
        priors_from_likelihoods(likelihood, groups, 2, steps=steps)


def test_posterior_is_bayes() -> None:
    likelihood = RESPONSE.likelihood(np.array([0, 1, 3]))
    prior = np.array([[0.7, 0.1, 0.1, 0.1], [0.0, 0.0, 1.0, 1.0], [1.0, 1.0, 1.0, 1.0]])
    found = posterior(likelihood, prior)
    for row in range(3):
        joint = likelihood[row] * prior[row]
        np.testing.assert_allclose(found[row], joint / joint.sum())
    np.testing.assert_allclose(posterior(likelihood, prior[0])[0], found[0])


def test_impossible_reports_fall_back_to_a_uniform_prior() -> None:
    likelihood = np.array([[0.5, 0.5, 0.0], [0.2, 0.0, 0.6]])
    found = posterior(likelihood, [0.0, 0.0, 1.0])
    np.testing.assert_allclose(found, [[0.5, 0.5, 0.0], [0.0, 0.0, 1.0]])


@pytest.mark.parametrize(
    ("likelihood", "prior"),
    [
        ([[0.5, 0.5]], [0.5, 0.5, 0.0]),
        ([0.5, 0.5], [0.5, 0.5]),
        ([[0.5, -0.5]], [0.5, 0.5]),
        ([[0.5, 0.5]], [math.nan, 0.5]),
        ([[0.0, 0.0]], [0.5, 0.5]),
    ],
)
def test_what_gives_no_posterior_is_refused(likelihood: list[float], prior: list[float]) -> None:
    with pytest.raises(ValueError, match="must"):
        posterior(likelihood, prior)


@pytest.mark.parametrize("scale", [1.0, 1e-25, 1e25])
def test_neither_where_features_begin_nor_their_unit_changes_the_nearest_center(
    scale: float,
) -> None:
    points = np.random.default_rng(1).normal(size=(60, 3)).round(3)
    found = nearest((points + 1e6) * scale, (points[:7] + 1e6) * scale)
    np.testing.assert_array_equal(found, nearest(points, points[:7]))


def test_features_that_single_precision_does_not_hold_have_no_sums() -> None:
    with pytest.raises(ValueError, match="finite"):
        cluster_sums(np.full((4, 2), 1e39), np.zeros((1, 2)))


def test_nearest_centers_and_federated_means() -> None:
    rng = np.random.default_rng(3)
    points, centers = rng.normal(size=(9_000, 5)), rng.normal(size=(30, 5))
    centers[7] = 1e4  # nobody's
    distance = ((points[:, np.newaxis] - centers) ** 2).sum(axis=2)
    members = nearest(points, centers)
    np.testing.assert_array_equal(members, distance.argmin(axis=1))
    parts = [cluster_sums(points[i::4], centers) for i in range(4)]
    found = moved(centers, sum(s for s, _ in parts), sum(c for _, c in parts))
    for cluster in range(30):
        mine = points[members == cluster]
        expected = mine.mean(axis=0) if len(mine) else centers[cluster]
        np.testing.assert_allclose(found[cluster], expected, rtol=1e-4, atol=1e-5)
    for bad in (points[0], points * np.nan):
        with pytest.raises(ValueError, match="features must be a matrix"):
            nearest(bad, centers)
    with pytest.raises(ValueError, match="centers must have shape"):
        nearest(points, centers[:, :4])


# Central histograms.


def test_central_histograms_are_epsilon_per_label() -> None:
    mechanism = CentralHistograms(0.5, 3, 4)
    assert mechanism.events() == (PrivacyEvent("central_histograms", 0.5, unit=Unit.LABEL),)
    # One label replaced moves two entries by one each: their log-ratios add up to epsilon.
    loss = max(mechanism.noise.log_prob(x) - mechanism.noise.log_prob(x + 1) for x in range(50))
    assert 2 * loss <= 0.5 + 1e-12
    assert 2 * loss == pytest.approx(0.5)


def test_central_histograms_are_noisy_counts_and_give_priors() -> None:
    mechanism, rng = CentralHistograms(1.0, 200, 10), RandomSource.seeded(4)
    draws = np.random.default_rng(4)
    labels, groups = draws.integers(0, 10, 5_000), draws.integers(0, 200, 5_000)
    noise = mechanism.randomize(labels, groups, rng) - group_counts(labels, groups, 200, 10)
    deviation = mechanism.noise.standard_deviation
    assert abs(noise.mean()) < 5 * deviation / math.sqrt(2_000)
    assert noise.std() == pytest.approx(deviation, rel=0.15)
    priors = mechanism.priors([[-3, 0, 2], [-1, -1, 0]])
    assert priors.tolist() == [[0, 0, 2], [0, 0, 0]]
    assert RRWithPrior(1.0, 3).sizes(priors).tolist() == [1, 3]


@pytest.mark.parametrize("options", [(0.0, 1, 2), (61.0, 1, 2), (1.0, 0, 2), (1.0, 1, 1.5)])
def test_central_histograms_domains(options: tuple[float, int, int]) -> None:
    with pytest.raises(ValueError, match="must be"):
        CentralHistograms(*options)
