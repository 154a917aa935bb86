"""Priors from randomized labels and those of neighbours, posteriors, clusters, histograms."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from flower_ldp.labels import (
    group_counts,
    nearest_examples,
    posterior,
    priors_from_counts,
    priors_from_likelihoods,
    priors_from_neighbours,
)
from flower_ldp.labels.clusters import cluster_sums, moved, nearest
from flower_ldp.labels.priors import CentralHistograms
from flower_ldp.mechanisms import KaryResponse, RandomSource, RRWithPrior, SubsetSelection
from flower_ldp.privacy import PrivacyEvent, Unit
from tests.extras import extra

optimize = extra("scipy.optimize")

RESPONSE = KaryResponse(1.0, 4)


def test_counts_by_group() -> None:
    found = group_counts([0, 1, 1, 3], [2, 0, 0, 2], 3, 4)
    assert found.tolist() == [[0, 2, 0, 0], [0, 0, 0, 0], [1, 0, 0, 1]]
    assert group_counts(np.zeros(0, int), np.zeros(0, int), 2, 3).tolist() == [[0] * 3] * 2


@pytest.mark.parametrize("counts", [[40, 30, 20, 10], [90, 3, 4, 3], [25, 25, 25, 25]])
def test_priors_are_the_likeliest(counts: list[int]) -> None:
    law = RESPONSE.transition()
    (found,) = priors_from_counts([counts], law, steps=4_000)

    def loss(logits: np.ndarray) -> float:
        p = np.exp(logits - logits.max())
        return -float(np.array(counts) @ np.log((p / p.sum()) @ law))

    starts = np.vstack([np.zeros(4), 3 * np.eye(4)])
    best = min(optimize.minimize(loss, start).fun for start in starts)
    assert -np.array(counts) @ np.log(found @ law) == pytest.approx(best, abs=1e-4)
    assert found.sum() == pytest.approx(1.0)


def test_every_step_raises_the_likelihood() -> None:
    counts, law = np.array([[80, 5, 10, 5], [3, 0, 1, 0]]), RESPONSE.transition()
    found = np.array([priors_from_counts(counts, law, steps=steps) for steps in range(1, 40)])
    fits = (counts * np.log(found @ law)).sum(axis=2)
    assert (np.diff(fits, axis=0) >= -1e-12).all()


def test_empty_groups_get_the_prior_of_all_and_smoothing_pulls_towards_it() -> None:
    counts, law = np.array([[0, 0, 0, 0], [50, 10, 10, 10], [2, 0, 0, 0]]), RESPONSE.transition()
    overall = priors_from_counts(counts.sum(axis=0, keepdims=True), law)[0]
    plain = priors_from_counts(counts, law)
    np.testing.assert_allclose(plain[0], overall)
    assert plain[2, 0] > 0.99
    smooth = priors_from_counts(counts, law, smoothing=1e9)
    np.testing.assert_allclose(smooth, np.tile(overall, (3, 1)), atol=1e-6)


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


# Neighbours.


def test_the_nearest_are_those_of_all_distances(monkeypatch: pytest.MonkeyPatch) -> None:
    # Several parts, the last not full.
    monkeypatch.setattr("flower_ldp.labels.clusters._AT_A_TIME", 16 * 50)
    points = np.random.default_rng(1).normal(size=(50, 3))
    distances = np.linalg.norm(points[:, np.newaxis] - points, axis=2)
    np.fill_diagonal(distances, np.inf)
    found = nearest_examples(points, 7)
    np.testing.assert_array_equal(np.sort(found), np.sort(distances.argsort(axis=1)[:, :7]))


def test_one_that_is_far_off_changes_no_others_neighbours() -> None:
    points = np.random.default_rng(1).normal(size=(60, 3))
    with_one = np.vstack([points, np.full(3, 1e8)])
    found = np.sort(nearest_examples(with_one, 5)[:60])
    np.testing.assert_array_equal(found, np.sort(nearest_examples(points, 5)))


def test_many_labels_and_neighbours_are_gathered_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    likelihood, near = rng.random((70, 1000)), rng.integers(0, 70, (70, 40))
    whole = priors_from_neighbours(likelihood, near, steps=2)
    monkeypatch.setattr("flower_ldp.labels.priors._AT_A_TIME", 40 * 1000)  # a row at a time
    np.testing.assert_array_equal(priors_from_neighbours(likelihood, near, steps=2), whole)


def test_an_example_is_not_its_own_neighbour_even_among_equals() -> None:
    found = nearest_examples(np.zeros((5, 2)), 4)
    assert [sorted(row) for row in found.tolist()] == [
        [other for other in range(5) if other != one] for one in range(5)
    ]


def test_reports_of_neighbours_find_labels_that_one_report_hides() -> None:
    rng = np.random.default_rng(2)
    labels = np.repeat(np.arange(4), 200)
    points = np.eye(4)[labels] * 4 + rng.normal(size=(800, 4))
    response = SubsetSelection(1.0, 4)
    likelihood = response.likelihood(response.randomize_array(labels, RandomSource.seeded(3)))
    prior = priors_from_neighbours(likelihood, nearest_examples(points, 20), steps=40)
    alone = (likelihood.argmax(axis=1) == labels).mean()
    together = (posterior(likelihood, prior).argmax(axis=1) == labels).mean()
    assert alone < 0.5
    assert together > 0.9


@pytest.mark.parametrize("offset", [0.0, 1e4, -1e6, 1e9])
@pytest.mark.parametrize("scale", [1.0, 1e-25, 1e25, 1e150])
def test_neither_origin_nor_unit_changes_who_is_near(offset: float, scale: float) -> None:
    """Years, coordinates and pixels are far from zero, and a square of single precision is not."""
    points = np.random.default_rng(1).normal(size=(60, 3)).round(3)
    moved_there = (points + offset) * scale
    found = nearest_examples(moved_there, 5)
    np.testing.assert_array_equal(np.sort(found), np.sort(nearest_examples(points, 5)))
    if scale < 1e30 and offset < 1e9:
        centers = nearest(moved_there, moved_there[:7])
        np.testing.assert_array_equal(centers, nearest(points, points[:7]))


def test_one_step_is_the_mean_of_the_neighbours_posteriors_and_more_reach_further() -> None:
    likelihood = np.array([[3.0, 1.0], [1.0, 4.0], [1.0, 1.0]])
    found = priors_from_neighbours(likelihood, [[1, 2], [0, 2], [0, 1]], steps=1)
    np.testing.assert_allclose(found[:, 0], [(0.2 + 0.5) / 2, (0.75 + 0.5) / 2, (0.75 + 0.2) / 2])
    np.testing.assert_allclose(found.sum(axis=1), 1.0)
    chain = np.array([[1.0, 1.0], [1.0, 1.0], [3.0, 1.0]])  # its end has a report
    for steps, first in ((1, [0.5, 0.5]), (2, [0.75, 0.25])):
        found = priors_from_neighbours(chain, [[1], [2], [2]], steps=steps)
        np.testing.assert_allclose(found[0], first)
    # An impossible report is taken at its word.
    sure = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    found = priors_from_neighbours(sure, [[1], [0], [0]], steps=2)
    np.testing.assert_array_equal(found, [[0.0, 1.0], [1.0, 0.0], [1.0, 0.0]])


# Central histograms.


def test_central_histograms_are_epsilon_per_label() -> None:
    mechanism = CentralHistograms(0.5, 3, 4)
    assert mechanism.events() == (PrivacyEvent("central_histograms", 0.5, unit=Unit.LABEL),)
    # One label replaced moves two entries by one each: their log-ratios add up to epsilon.
    loss = max(mechanism.noise.log_prob(x) - mechanism.noise.log_prob(x + 1) for x in range(50))
    assert 2 * loss == pytest.approx(0.5, abs=1e-12)


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


ONES, POINTS, NONE = np.ones((2, 3)), np.zeros((4, 2)), np.zeros(0, int)
NO_COUNTS = [[1, 2], [[1.0, 2.0]], [[1, -2]]]
NO_LAWS = [np.eye(3), np.ones((2, 2)), [[2.0, -1.0], [0.0, 1.0]]]
IMPOSSIBLE = [[0.0, 0.0], [1.0, -0.1], [1.0, math.nan]]
NO_LIKELIHOODS = [np.zeros((2, 3)), np.ones(2), np.full((2, 3), np.nan)]
NO_NEIGHBOURS = [[[1], [2]], [[1], [-1]], [[1]], [[1.0], [0.0]]]


@pytest.mark.parametrize(
    ("call", "values", "text"),
    [
        *((group_counts, ([bad], [0], 3, 4), "reports must be") for bad in (4, -1, 0.0)),
        (group_counts, ([0], [3], 3, 4), "groups must be"),
        (group_counts, ([0, 1], [0], 3, 4), "must be"),
        *((priors_from_counts, (bad, np.eye(2)), "counts must be") for bad in NO_COUNTS),
        *((priors_from_counts, ([[1, 2]], bad), "must be") for bad in NO_LAWS),
        (partial(priors_from_counts, steps=0), ([[1, 2]], np.eye(2)), "steps must be"),
        (partial(priors_from_counts, smoothing=-1.0), ([[1, 2]], np.eye(2)), "smoothing must be"),
        (partial(priors_from_counts, smoothing=math.nan), ([[1, 2]], np.eye(2)), "smoothing must"),
        (priors_from_likelihoods, ([0.5, 0.5], [0, 0], 2), "likelihood must"),
        (priors_from_likelihoods, (ONES, [0], 2), "a row for each of groups"),
        (priors_from_likelihoods, (np.ones((0, 2)), NONE, 2), "must"),
        *((priors_from_likelihoods, ([bad], [0], 2), "likelihood must") for bad in IMPOSSIBLE),
        *((priors_from_likelihoods, ([[1.0, 1.0]], [bad], 2), "groups must") for bad in (2, 0.0)),
        (partial(priors_from_likelihoods, steps=0), ([[1.0, 1.0]], [0], 2), "steps must be"),
        (posterior, ([[0.5, 0.5]], [0.5, 0.5, 0.0]), "prior must"),
        (posterior, ([0.5, 0.5], [0.5, 0.5]), "likelihood must"),
        *((posterior, ([bad], [0.5, 0.5]), "likelihood must") for bad in IMPOSSIBLE),
        (posterior, ([[0.5, 0.5]], [math.nan, 0.5]), "prior must"),
        *((nearest, (bad, POINTS), "features must") for bad in (POINTS[0], POINTS * np.nan)),
        (nearest, (POINTS, POINTS[:, :1]), "centers must have shape"),
        # Single precision does not hold these.
        (cluster_sums, (np.full((4, 2), 1e39), np.zeros((1, 2))), "finite"),
        *((nearest_examples, (POINTS + bad, 1), "features must") for bad in (np.nan, np.inf)),
        (nearest_examples, (POINTS[0], 1), "features must"),
        *((nearest_examples, (POINTS, bad), "count must") for bad in (0, 4)),
        *((priors_from_neighbours, (bad, [[1], [0]]), "likelihood") for bad in NO_LIKELIHOODS),
        *((priors_from_neighbours, (ONES, bad), "neighbours") for bad in NO_NEIGHBOURS),
        (partial(priors_from_neighbours, steps=0), (ONES, [[1], [0]]), "steps"),
        *((CentralHistograms, (bad, 1, 2), "epsilon must be") for bad in (0.0, 61.0)),
        *((CentralHistograms, (1.0, *bad), "must be") for bad in ((0, 2), (1, 1.5))),
    ],
)
def test_what_is_wrong_is_named(
    call: Callable[..., object], values: tuple[object, ...], text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        call(*values)
