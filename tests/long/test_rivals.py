"""The rivals that benchmarks compare with: PrivUnit's law is the one that its paper promises."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("scipy")
pytest.importorskip("dp_accounting")

from scipy.integrate import quad
from scipy.special import beta, betainc

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module


@pytest.fixture
def priv_unit(module: Callable[[str], Any]) -> Any:
    return module("_priv_unit")


@pytest.fixture
def rivals(module: Callable[[str], Any]) -> Any:
    return module("_rivals")


def units(rng: np.random.Generator, count: int, dimension: int) -> Any:
    rows = rng.standard_normal((count, dimension))
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@pytest.mark.parametrize("dimension", [2, 5, 64, 2010])
@pytest.mark.parametrize("epsilon", [0.5, 2.0, 8.0])
def test_densities_differ_by_epsilon_and_no_more(
    priv_unit: Any, dimension: int, epsilon: float
) -> None:
    law = priv_unit.cap_law(dimension, epsilon)
    inside = law.probability / law.share
    outside = (1 - law.probability) / (1 - law.share)
    assert math.log(inside / outside) == pytest.approx(epsilon, rel=1e-9)
    half = (dimension - 1) / 2
    assert law.share == pytest.approx(betainc(half, half, (1 - law.threshold) / 2), rel=1e-9)


@pytest.mark.parametrize(("dimension", "epsilon"), [(3, 1.0), (20, 4.0), (300, 8.0)])
def test_the_mean_cosine_is_that_of_the_density_and_the_largest(
    priv_unit: Any, dimension: int, epsilon: float
) -> None:
    law = priv_unit.cap_law(dimension, epsilon)

    def density(cosine: float) -> float:
        return float((1 - cosine**2) ** ((dimension - 3) / 2) / beta(0.5, (dimension - 1) / 2))

    def mean(threshold: float) -> float:
        share, along = (
            quad(lambda t, k=power: t**k * density(t), threshold, 1)[0] for power in (0, 1)
        )
        favour = math.exp(epsilon) * share
        inside = favour / (favour + 1 - share)
        return float(along * (inside / share - (1 - inside) / (1 - share)))

    assert law.cosine == pytest.approx(mean(law.threshold), rel=1e-6)
    around = np.linspace(0.0, min(0.95, 2 * law.threshold), 40)
    assert law.cosine >= max(mean(one) for one in around) - 1e-9


@pytest.mark.parametrize(("dimension", "epsilon"), [(3, 1.0), (16, 4.0), (760, 8.0)])
def test_reports_have_the_law(priv_unit: Any, dimension: int, epsilon: float) -> None:
    rng, count = np.random.default_rng(5), 4_000
    law, own = priv_unit.cap_law(dimension, epsilon), units(rng, 1, dimension)
    reports = priv_unit.priv_unit(np.repeat(own, count, axis=0), epsilon, rng)
    np.testing.assert_allclose(np.linalg.norm(reports, axis=1), 1.0, atol=1e-9)
    cosines = reports @ own[0]
    assert cosines.mean() == pytest.approx(law.cosine, abs=5 * cosines.std() / math.sqrt(count))
    near = (cosines >= law.threshold).mean()
    error = math.sqrt(law.probability * (1 - law.probability) / count)
    assert near == pytest.approx(law.probability, abs=5 * error)
    # The rest of the mean is nothing: the report is unbiased once divided by the mean cosine.
    beside = np.linalg.norm(reports.mean(axis=0) - cosines.mean() * own[0])
    assert beside < 1.5 * math.sqrt(1 / count) + 5 / math.sqrt(count * dimension)


@pytest.mark.parametrize("name", ["PrivUnit", "ProjUnit", "Signs", "LocalGaussian", "Central"])
def test_each_finds_the_direction_of_many_that_agree(rivals: Any, name: str) -> None:
    own = units(np.random.default_rng(3), 1, 300)
    found = getattr(rivals, name)(8.0).direction(np.repeat(own, 500, axis=0))
    # SignDS names the largest entries alone; a vector in no relation has 0.06.
    assert float(own[0] @ found) / np.linalg.norm(found) > 0.6


def test_noise_of_central_dp_is_that_of_one_client_replaced(rivals: Any) -> None:
    from flower_ldp.mechanisms.gaussian import gaussian_delta

    central = rivals.Central(2.0)
    assert gaussian_delta(2.0, 2 / central.noise_multiplier) == pytest.approx(1e-5, rel=1e-6)
    rng = np.random.default_rng(8)
    clients = units(rng, 10, 2_000)
    noise = (central.direction(clients) - clients.mean(axis=0)) * 10
    assert noise.std() == pytest.approx(central.noise_multiplier, rel=0.1)


def test_clients_trained_together_are_trained_as_each_alone(module: Callable[[str], Any]) -> None:
    rng = np.random.default_rng(2)
    features = units(rng, 60, 7).astype(np.float32).reshape(4, 15, 7)
    labels = rng.integers(0, 10, (4, 15))
    first = rng.standard_normal((10, 7)).astype(np.float32)
    descended = module("_asked_once").descended
    together = descended(first, features, labels, 6, 3.0)
    for mine, *own in zip(together, features, labels, strict=True):
        np.testing.assert_allclose(mine, descended(first, *own, 6, 3.0), atol=1e-5)


def test_sealed_reports_train_and_cost_as_drawn_ones(module: Callable[[str], Any]) -> None:
    pytest.importorskip("cryptography", minversion="47")
    asked, shuffled = module("_asked_once"), module("shuffled")
    rng = np.random.default_rng(4)
    centres, labels = units(rng, 10, 15), np.arange(400) % 10
    features = (centres[labels] + 0.05 * rng.standard_normal((400, 15))).astype(np.float32)
    parts = list(rng.permutation(400).reshape(200, 2))
    images = asked.Images(features, labels, parts, features, labels)
    training = asked.Training("codeword", 4.0, 1, 8.0, 0.0, 0.3, 5, 4.0)
    mechanism = shuffled.Codeword(4.0, blocks=10)
    sealed = shuffled.sealed(images, training, mechanism)
    drawn = shuffled.drawn(images, training, mechanism)
    assert sealed["reports"] == drawn["reports"] == 200
    assert sealed["central_epsilon"] == drawn["central_epsilon"] < 3.5
    assert sealed["epsilon_total_most"] == 4.0
    assert sealed["clients_asked"] == 200
    assert min(sealed["accuracy"], drawn["accuracy"]) > 0.3
