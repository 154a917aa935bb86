"""Codebooks from proxy rows, the way back to rows, and the check of what a score is worth."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest

from flower_ldp.mechanisms.codebook import CodebookResponse
from flower_ldp.mechanisms.random import RandomSource
from flower_ldp.strategies.evaluation_scores import (
    CALINSKI_HARABASZ_SCORE,
    SILHOUETTE_SCORE,
    ClusterScore,
    ProxySupport,
    UntrustedScoreWarning,
    confidence_codebook,
    kmeans_codebook,
    score_trust,
    warn_if_near_uniform,
)


def model_rows(count: int, seed: int, sureness: float, classes: int = 5) -> np.ndarray:
    """Return softmax rows of a model whose logits favour one class by a varying margin."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(count, classes))
    logits[np.arange(count), rng.integers(classes, size=count)] += rng.gamma(2.0, sureness, count)
    odds = np.exp(logits)
    return odds / odds.sum(axis=1, keepdims=True)


PROXY = model_rows(1500, 0, 1.5)


def test_codes_are_levels_of_confidence_of_each_class() -> None:
    codes = confidence_codebook(PROXY, 3)
    assert codes.shape == (15, 5)
    np.testing.assert_allclose(codes.sum(axis=1), 1.0)
    assert codes.argmax(axis=1).tolist() == np.repeat(np.arange(5), 3).tolist()
    assert (np.diff(codes.max(axis=1).reshape(5, 3), axis=1) > 0).all()
    own = PROXY[PROXY.argmax(axis=1) == 2]
    order = np.argsort(own.max(axis=1))
    np.testing.assert_allclose(codes[6], own[order[: len(own) // 3]].mean(axis=0), atol=0.02)


def test_a_class_that_the_proxy_lacks_has_codes_too() -> None:
    codes = confidence_codebook(PROXY[PROXY.argmax(axis=1) != 3], 2)
    lacking = codes[codes.argmax(axis=1) == 3]
    assert len(lacking) == 2
    assert (lacking[:, [0, 1, 2, 4]] == lacking[:, [0]]).all()
    support = ProxySupport.of(CodebookResponse(codes, 1.0), PROXY[PROXY.argmax(axis=1) != 3])
    assert set(support.cells.tolist()) == set(range(10))
    np.testing.assert_array_equal(support.rows[-2:], lacking)


def test_a_uniform_proxy_gives_a_codebook_still() -> None:
    codes = confidence_codebook(np.full((4, 3), 1 / 3), 2)
    assert sorted(codes.argmax(axis=1).tolist()) == [0, 1, 2]
    CodebookResponse(codes, 1.0)


def test_equal_proxy_rows_give_each_code_once() -> None:
    proxy = np.repeat(np.eye(3) * 0.7 + 0.1, 50, axis=0)
    np.testing.assert_allclose(confidence_codebook(proxy, 3), np.eye(3) * 0.7 + 0.1)


def test_kmeans_gives_codes_on_the_simplex() -> None:
    codes = kmeans_codebook(PROXY, 20)
    assert codes.shape == (20, 5)
    CodebookResponse(codes, 1.0)


def test_shares_are_spread_over_their_cells() -> None:
    mechanism = CodebookResponse(confidence_codebook(PROXY), 1.0)
    support = ProxySupport.of(mechanism, PROXY)
    shares = np.random.default_rng(1).dirichlet(np.ones(mechanism.codes))
    spread = support.spread(shares)
    back = np.bincount(mechanism.encode(support.rows), spread, minlength=mechanism.codes)
    np.testing.assert_allclose(back, shares)
    assert all(np.ptp(spread[support.cells == code]) == 0 for code in range(mechanism.codes))


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="levels"):
        confidence_codebook(PROXY, 0)
    with pytest.raises(ValueError, match="at least one row"):
        confidence_codebook(PROXY[:0])
    with pytest.raises(ValueError, match="add up"):
        confidence_codebook(PROXY * 2)
    with pytest.raises(ValueError, match="codes"):
        kmeans_codebook(PROXY, 1)
    support = ProxySupport.of(CodebookResponse(confidence_codebook(PROXY), 1.0), PROXY)
    with pytest.raises(ValueError, match="shares"):
        support.spread([1.0])


@pytest.mark.parametrize("name", [SILHOUETTE_SCORE, CALINSKI_HARABASZ_SCORE])
def test_the_score_follows_clients_that_differ_from_the_proxy(name: str) -> None:
    clients = model_rows(2500, 2, 0.9)
    mechanism = CodebookResponse(confidence_codebook(PROXY), 6.0)
    support = ProxySupport.of(mechanism, PROXY)
    rng = RandomSource.seeded(3)
    reports = [mechanism.randomize(row[None], rng) for row in clients]
    score = ClusterScore(name)
    found = score.of_law(support.rows, support.spread(mechanism.estimate(reports)), 2500)
    true, proxy = score.of_rows(clients), score.of_rows(PROXY) * (2500 / len(PROXY))
    if name == SILHOUETTE_SCORE:
        proxy = score.of_rows(PROXY)
    assert abs(proxy / true - 1) > 0.15
    assert found == pytest.approx(true, rel=0.06)


def trust(epsilon: float, total: int = 1000, *, prior_alone: bool = False) -> tuple[bool, bool]:
    mechanism = CodebookResponse(confidence_codebook(PROXY), epsilon)
    support = ProxySupport.of(mechanism, PROXY)
    start = np.bincount(support.cells, minlength=mechanism.codes) / len(PROXY)
    rng = RandomSource.seeded(4)
    estimate = (lambda _: start) if prior_alone else None
    found = score_trust(mechanism, support, ClusterScore(), total, rng, estimate=estimate)
    return found.echoes_proxy, found.is_noise


def test_enough_epsilon_or_clients_are_trusted() -> None:
    assert trust(6.0) == (False, False)
    assert trust(2.0, total=50_000) == (False, False)


def test_noise_is_flagged() -> None:
    assert trust(0.5)[1]
    assert trust(3.0, total=50)[1]


def test_an_estimate_that_stays_with_its_prior_is_an_echo() -> None:
    assert trust(0.5, prior_alone=True)[0]


def test_what_is_flagged_is_warned_of() -> None:
    mechanism = CodebookResponse(confidence_codebook(PROXY), 0.5)
    support = ProxySupport.of(mechanism, PROXY)
    rng = RandomSource.seeded(5)
    with pytest.warns(UntrustedScoreWarning, match="more clients or a larger epsilon"):
        score_trust(mechanism, support, ClusterScore(), 100, rng).warn()


def test_a_score_that_is_not_defined_is_not_trusted() -> None:
    mechanism = CodebookResponse(confidence_codebook(PROXY), 5.0)
    support = ProxySupport.of(mechanism, PROXY)
    rng = RandomSource.seeded(6)
    found = score_trust(mechanism, support, ClusterScore(lambda rows, labels: math.nan), 100, rng)
    assert found.echoes_proxy
    assert found.is_noise


def test_a_near_uniform_model_is_warned_of() -> None:
    unsure = 0.9 * np.full((50, 10), 0.1) + 0.1 * np.eye(10)[np.arange(50) % 10]
    with pytest.warns(UntrustedScoreWarning, match=r"near uniform \(confidence 0\.10 of 1\)"):
        warn_if_near_uniform(unsure)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_if_near_uniform(np.eye(10) * 0.5 + 0.05)
    shares = np.r_[np.ones(50), np.zeros(10)]
    with pytest.warns(UntrustedScoreWarning, match=r"confidence 0\.10 of 1"):
        warn_if_near_uniform(np.r_[unsure, np.eye(10)], shares / 50)
