"""Priors from the reports of neighbours."""

from __future__ import annotations

import numpy as np
import pytest

from flower_ldp.labels import nearest_examples, posterior, priors_from_neighbours
from flower_ldp.mechanisms import RandomSource, SubsetSelection


def test_the_nearest_examples_are_those_of_all_distances(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "flower_ldp.labels.clusters._AT_A_TIME", 16 * 50
    )  # several, the last not full
    points = np.random.default_rng(1).normal(size=(50, 3))
    distances = np.linalg.norm(points[:, np.newaxis] - points, axis=2)
    np.fill_diagonal(distances, np.inf)
    found = nearest_examples(points, 7)
    np.testing.assert_array_equal(np.sort(found), np.sort(distances.argsort(axis=1)[:, :7]))


@pytest.mark.parametrize("offset", [0.0, 1e4, -1e6, 1e9])
@pytest.mark.parametrize("scale", [1.0, 1e-25, 1e25, 1e150])
def test_neither_where_features_begin_nor_their_unit_changes_who_is_near(
    offset: float, scale: float
) -> None:
    """Years, coordinates and pixels are far from zero, and a square of single precision is not."""
    points = np.random.default_rng(1).normal(size=(60, 3)).round(3)
    found = nearest_examples((points + offset) * scale, 5)
    np.testing.assert_array_equal(np.sort(found), np.sort(nearest_examples(points, 5)))


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


@pytest.mark.parametrize(
    ("features", "count"),
    [
        (np.zeros(4), 1),
        (np.full((4, 2), np.nan), 1),
        (np.full((4, 2), np.inf), 1),
        (np.zeros((4, 2)), 0),
        (np.zeros((4, 2)), 4),
    ],
)
def test_what_has_no_such_neighbours_is_refused(features: np.ndarray, count: int) -> None:
    with pytest.raises(ValueError, match=r"features must|count must"):
        nearest_examples(features, count)


def test_one_step_is_the_mean_of_the_neighbours_posteriors() -> None:
    likelihood = np.array([[3.0, 1.0], [1.0, 4.0], [1.0, 1.0]])
    found = priors_from_neighbours(likelihood, [[1, 2], [0, 2], [0, 1]], steps=1)
    np.testing.assert_allclose(found[:, 0], [(0.2 + 0.5) / 2, (0.75 + 0.5) / 2, (0.75 + 0.2) / 2])
    np.testing.assert_allclose(found.sum(axis=1), 1.0)


def test_a_second_step_brings_in_neighbours_of_neighbours() -> None:
    likelihood = np.array([[1.0, 1.0], [1.0, 1.0], [3.0, 1.0]])  # a chain, its end has a report
    chain = [[1], [2], [2]]
    np.testing.assert_allclose(priors_from_neighbours(likelihood, chain, steps=1)[0], [0.5, 0.5])
    np.testing.assert_allclose(priors_from_neighbours(likelihood, chain, steps=2)[0], [0.75, 0.25])


def test_an_impossible_report_is_taken_at_its_word() -> None:
    likelihood = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    found = priors_from_neighbours(likelihood, [[1], [0], [0]], steps=2)
    np.testing.assert_array_equal(found, [[0.0, 1.0], [1.0, 0.0], [1.0, 0.0]])


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


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"likelihood": np.zeros((2, 3))}, "likelihood"),
        ({"likelihood": np.ones(2)}, "likelihood"),
        ({"likelihood": np.full((2, 3), np.nan)}, "likelihood"),
        ({"neighbours": [[1], [2]]}, "neighbours"),
        ({"neighbours": [[1], [-1]]}, "neighbours"),
        ({"neighbours": [[1]]}, "neighbours"),
        ({"neighbours": [[1.0], [0.0]]}, "neighbours"),
        ({"steps": 0}, "steps"),
    ],
)
def test_what_is_wrong_is_named(changes: dict, named: str) -> None:
    given = {"likelihood": np.ones((2, 3)), "neighbours": [[1], [0]], "steps": 1} | changes
    with pytest.raises(ValueError, match=named):
        priors_from_neighbours(given["likelihood"], given["neighbours"], steps=given["steps"])
