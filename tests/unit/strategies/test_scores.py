"""Scores: scikit-learn's on rows and on copies, and what a law's draws score on average."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flower_ldp.strategies import evaluation_scores as scores
from flower_ldp.strategies.evaluation_scores import (
    CALINSKI_HARABASZ_SCORE,
    SILHOUETTE_SCORE,
    ClusterScore,
    apportion,
)
from tests.extras import extra

cluster = extra("sklearn.cluster")
metrics = extra("sklearn.metrics")


def of_rows(name: str) -> Callable[..., float]:
    """Scikit-learn's function of this name."""
    return getattr(metrics, name.lower())


every_score = pytest.mark.parametrize("name", [SILHOUETTE_SCORE, CALINSKI_HARABASZ_SCORE])


def rows(count: int, seed: int = 0, classes: int = 4) -> np.ndarray:
    return np.random.default_rng(seed).dirichlet(np.full(classes, 0.3), count)


@every_score
def test_rows_score_as_in_scikit_learn(name: str) -> None:
    given = rows(300)
    found = ClusterScore(name).of_rows(given)
    assert found == pytest.approx(of_rows(name)(given, given.argmax(axis=1)), rel=1e-12)


def of_ever_more_copies(name: str, copies: np.ndarray, labels: np.ndarray) -> float:
    """Scikit-learn's score of rows, as a law scores that has each of them as often."""
    total, found = len(copies), of_rows(name)(copies, labels)
    if name == CALINSKI_HARABASZ_SCORE:
        return 1.0 + found * total / (total - len(np.unique(labels)))
    sizes = np.bincount(labels)[labels]
    each = metrics.silhouette_samples(copies, labels)
    # Of its own cluster, the mean distance to all but the row itself, over that to the next.
    ratio = np.where(each >= 0, 1.0 - each, 1.0 / (1.0 + each)) * (sizes - 1) / sizes
    return float(np.where(ratio < 1.0, 1.0 - ratio, 1.0 / np.maximum(ratio, 1.0) - 1.0).mean())


@every_score
@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    counts=st.lists(st.integers(0, 5), min_size=12, max_size=12).filter(lambda c: sum(c) > 6),
    seed=st.integers(0, 1000),
)
def test_a_law_scores_as_copies_do_in_scikit_learn(name: str, counts: list[int], seed: int) -> None:
    given, total = rows(12, seed), sum(counts)
    copies = np.repeat(given, counts, axis=0)
    labels = copies.argmax(axis=1)
    found = ClusterScore(name).of_law(given, np.divide(counts, total), total)
    if len(np.unique(labels)) < 2:
        assert math.isnan(found)
    elif len(np.unique(labels)) < total:
        # scikit-learn's distances of copies are off zero by up to 1e-8
        wanted = of_ever_more_copies(name, copies, labels)
        assert found == pytest.approx(wanted, rel=1e-6, abs=1e-6)


def test_a_silhouette_in_pieces_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    given, shares = rows(50), np.arange(50) / np.arange(50).sum()
    whole = ClusterScore().of_law(given, shares, 50)
    monkeypatch.setattr("flower_ldp.strategies.evaluation_scores._BLOCK", 150)
    assert ClusterScore().of_law(given, shares, 50) == pytest.approx(whole)


@every_score
@pytest.mark.parametrize("total", [60, 600])
def test_a_law_scores_as_its_draws_do_on_average(name: str, total: int) -> None:
    support = rows(400, 5)
    shares = np.random.default_rng(6).dirichlet(np.ones(400))
    found = ClusterScore(name).of_law(support, shares, total)
    rng = np.random.default_rng(7)
    draws = [
        ClusterScore(name).of_rows(support[rng.choice(400, total, p=shares)]) for _ in range(60)
    ]
    error = 5 * np.std(draws) / math.sqrt(len(draws))
    # what is of second order in the size of a cluster, 15 at least
    assert abs(found - np.mean(draws)) < error + 2.0 / total * abs(found) * 4


def test_a_law_of_few_clients_is_no_set_of_copies() -> None:
    support, shares = rows(40, 5), np.full(40, 1 / 40)
    law = ClusterScore().of_law(support, shares, 40)
    assert law > metrics.silhouette_score(support, support.argmax(axis=1)) + 0.01


def test_many_rows_are_sampled_alike_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flower_ldp.strategies.evaluation_scores.SILHOUETTE_ROWS", 2000)
    given = rows(2_400, 8, 3)
    found = ClusterScore().of_rows(given)
    assert found == ClusterScore().of_rows(given)
    counted = metrics.silhouette_score(given, given.argmax(axis=1))
    # 2,000 of 2,400 rows: the standard deviation is below 0.004
    assert found == pytest.approx(counted, abs=0.02)
    assert found != pytest.approx(counted, abs=1e-9)


@every_score
def test_a_clustering_may_label(name: str) -> None:
    given = rows(200, 9)
    kmeans = cluster.KMeans(3, n_init=2, random_state=0)
    found = ClusterScore(name, kmeans).of_rows(given)
    labels = cluster.KMeans(3, n_init=2, random_state=0).fit_predict(given)
    assert found == pytest.approx(of_rows(name)(given, labels))
    assert not hasattr(kmeans, "labels_")


def test_a_clustering_of_a_law_is_weighted() -> None:
    support = np.concatenate([rows(40, 10), rows(40, 11)])
    shares = np.r_[np.full(40, 1 / 40), np.zeros(40)]
    kmeans = cluster.KMeans(3, n_init=2, random_state=0)
    found = ClusterScore(SILHOUETTE_SCORE, kmeans).of_law(support, shares, 1000)
    alone = ClusterScore(SILHOUETTE_SCORE, kmeans).of_law(support[:40], shares[:40], 1000)
    assert found == pytest.approx(alone)


def test_a_clustering_without_weights_gets_copies() -> None:
    support, shares = rows(20, 12), np.full(20, 1 / 20)
    tree = cluster.AgglomerativeClustering(3)
    found = ClusterScore(SILHOUETTE_SCORE, tree).of_law(support, shares, 60)
    copies = np.repeat(support, 3, axis=0)
    wanted = metrics.silhouette_score(copies, tree.fit_predict(copies))
    assert found == pytest.approx(wanted, abs=1e-6)


def test_any_callable_may_score() -> None:
    support, shares = np.eye(3), [0.5, 0.25, 0.25]
    score = ClusterScore(lambda rows, labels: float(len(rows) + 10 * len(set(labels.tolist()))))
    assert score.of_rows(support) == 33.0
    assert score.of_law(support, shares, 8) == 38.0


def test_a_third_score_in_the_table_is_the_one_that_is_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def davies_bouldin(rows: np.ndarray, labels: np.ndarray) -> float:
        return float(metrics.davies_bouldin_score(rows, labels))

    monkeypatch.setitem(scores._OF_ROWS, "DAVIES_BOULDIN_SCORE", davies_bouldin)
    support, shares = rows(30, 15), np.full(30, 1 / 30)
    named, called = ClusterScore("DAVIES_BOULDIN_SCORE"), ClusterScore(davies_bouldin)
    assert named.of_rows(support) == called.of_rows(support)
    assert named.of_law(support, shares, 90) == called.of_law(support, shares, 90)


@every_score
@pytest.mark.parametrize("given", [np.tile([0.9, 0.1], (5, 1)), np.eye(2)])
def test_what_is_not_defined_is_nan(name: str, given: np.ndarray) -> None:
    assert math.isnan(ClusterScore(name).of_rows(given))


@every_score
def test_one_cluster_in_a_law_is_nan(name: str) -> None:
    support = np.array([[0.9, 0.1], [0.8, 0.2], [0.1, 0.9]])
    assert math.isnan(ClusterScore(name).of_law(support, [0.5, 0.5, 0.0], 10))


def test_apportioning_is_to_the_largest_remainders() -> None:
    assert apportion([0.5, 0.3, 0.2], 9).tolist() == [4, 3, 2]
    law = np.random.default_rng(13).dirichlet(np.ones(7))
    for total in (1, 10, 1001):
        counts = apportion(law, total)
        assert counts.sum() == total
        assert np.abs(counts - law * total).max() < 1


def test_labels_are_the_largest_entries() -> None:
    assert ClusterScore()._label(np.array([[0.2, 0.8], [0.5, 0.5]]), None).tolist() == [1, 0]


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="finite"):
        ClusterScore().of_rows(np.array([[np.nan, 1.0]]))
    with pytest.raises(ValueError, match="shape"):
        ClusterScore().of_rows(np.ones(3))
    for shares in ([0.5], [0.5, 0.6], [1.5, -0.5], [np.nan, 1.0]):
        with pytest.raises(ValueError, match="shares must"):
            ClusterScore().of_law(np.eye(2), shares, 10)
    with pytest.raises(ValueError, match="total"):
        ClusterScore().of_law(np.eye(2), [0.5, 0.5], 0)


def test_farther_clusters_score_higher() -> None:
    rng = np.random.default_rng(14)
    spread = [rng.dirichlet(np.array([c, 1, 1]), 100) for c in (4, 20, 100)]
    mixed = [np.concatenate([r, np.roll(r, 1, axis=1)]) for r in spread]
    for name in (SILHOUETTE_SCORE, CALINSKI_HARABASZ_SCORE):
        scores = [ClusterScore(name).of_rows(m) for m in mixed]
        assert all(low < high for low, high in pairwise(scores))
