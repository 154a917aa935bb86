"""Amplification by shuffling: the theorem's figures, where it applies, and what it is not."""

from __future__ import annotations

import math

import numpy as np
import pytest

from flower_ldp.accounting.composition import ShuffleBound, shuffled
from tests.extras import extra

mpmath = extra("mpmath")
stats = extra("scipy.stats")


def by_the_book(epsilon: float, clients: int, delta: float) -> float:
    """Return the theorem's epsilon, written out in 30 digits."""
    with mpmath.workdps(30):
        grown, n = mpmath.exp(mpmath.mpf(epsilon)), mpmath.mpf(clients)
        root = mpmath.sqrt(grown * mpmath.log(4 / mpmath.mpf(delta)))
        inner = 8 * root / mpmath.sqrt(n) + 8 * grown / n
        return float(mpmath.log(1 + (grown - 1) / (grown + 1) * inner))


def clone_delta(clients: int, local: float, epsilon: float) -> float:
    """Return the exact delta of the pair of laws to which the paper's proof reduces.

    C others are clones of the two inputs, each with probability e^-local, and A of them of the
    first; the client's own report is of its own input with the chance of a response.
    """
    keep = 1.0 / (1.0 + math.exp(-local))
    total = 0.0
    for clones in range(clients):
        weight = float(stats.binom.pmf(clones, clients - 1, math.exp(-local)))
        if weight < 1e-20:
            continue
        here = stats.binom.pmf(np.arange(clones + 2), clones, 0.5)
        moved = stats.binom.pmf(np.arange(clones + 2) - 1, clones, 0.5)
        first = keep * moved + (1 - keep) * here
        second = (1 - keep) * moved + keep * here
        total += weight * float(np.maximum(first - math.exp(epsilon) * second, 0.0).sum())
    return total


@pytest.mark.parametrize(
    ("epsilon", "clients", "delta", "value"),
    [
        # Written out on paper: tanh(1/2) (8 sqrt(e ln(4e6) / 1e5) + 8e / 1e5), then ln(1 + .).
        (1.0, 10**5, 1e-6, 0.0725550),
        (4.0, 10**5, 1e-6, 0.5346),
        (1.0, 10**6, 1e-6, 0.0234968),
    ],
)
def test_known_values(epsilon: float, clients: int, delta: float, value: float) -> None:
    found = shuffled(epsilon, clients=clients, delta=delta)
    assert found is not None
    assert found.epsilon == pytest.approx(value, rel=1e-4)
    assert (found.delta, found.clients) == (delta, clients)


@pytest.mark.parametrize("epsilon", [1e-9, 0.1, 1.0, 3.0, 8.0])
@pytest.mark.parametrize("clients", [10**5, 10**7, 10**12])
@pytest.mark.parametrize("delta", [1e-3, 1e-6, 1e-12])
def test_formula_is_the_theorems(epsilon: float, clients: int, delta: float) -> None:
    found = shuffled(epsilon, clients=clients, delta=delta)
    if found is None:
        assert epsilon > math.log(clients / (16 * math.log(2 / delta)))
    else:
        book = by_the_book(epsilon, clients, delta)
        assert found.epsilon == pytest.approx(min(epsilon, book), rel=1e-12)


@pytest.mark.parametrize("clients", [300, 900])
@pytest.mark.parametrize("share", [0.1, 0.5, 1.0])
def test_bound_holds_for_the_pair_that_the_proof_reduces_to(clients: int, share: float) -> None:
    delta = 1e-2
    local = share * math.log(clients / (16 * math.log(2 / delta)))
    found = shuffled(local, clients=clients, delta=delta)
    assert found is not None
    assert clone_delta(clients, local, found.epsilon) <= delta
    # Far below the bound the same pair has a delta to speak of: the test is not vacuous.
    assert clone_delta(clients, local, found.epsilon / 10) > delta / 1000


def test_where_the_theorem_applies() -> None:
    clients, delta = 1000, 1e-6
    edge = math.log(clients / (16 * math.log(2 / delta)))
    assert shuffled(edge, clients=clients, delta=delta) is not None
    assert shuffled(math.nextafter(edge, 9), clients=clients, delta=delta) is None
    assert shuffled(8.0, clients=100, delta=1e-5) is None
    assert shuffled(1e-6, clients=1, delta=0.5) is None


def test_more_clients_larger_delta_or_smaller_epsilon_cost_less() -> None:
    def cost(epsilon: float = 2.0, clients: int = 10**6, delta: float = 1e-6) -> float:
        found = shuffled(epsilon, clients=clients, delta=delta)
        assert found is not None
        return found.epsilon

    by_clients = [cost(clients=10**k) for k in range(11, 4, -1)]
    by_delta = [cost(delta=10.0**-k) for k in range(2, 12)]
    by_epsilon = [cost(epsilon=k / 10) for k in range(1, 60)]
    for values in (by_clients, by_delta, by_epsilon):
        assert values == sorted(set(values))


def test_the_smallest_delta_there_is_has_a_bound_or_none() -> None:
    assert shuffled(8.0, clients=100, delta=5e-324) is None
    found = shuffled(1.0, clients=10**9, delta=5e-324)
    assert found is not None
    assert 0 < found.epsilon <= 1.0


def test_shuffling_never_costs_more_than_the_report() -> None:
    for clients in (40, 100, 1000):
        for epsilon in (1e-6, 0.01, 0.1):
            found = shuffled(epsilon, clients=clients, delta=0.5)
            assert found is None or found.epsilon <= epsilon


def test_the_text_says_the_condition() -> None:
    text = str(shuffled(1.0, clients=10**5, delta=1e-6))
    assert "ONLY IF a shuffler outside the server's control mixes 100,000 reports" in text
    assert "delta 1e-06" in text
    assert isinstance(shuffled(1.0, clients=10**5, delta=1e-6), ShuffleBound)


REFUSED = {
    "epsilon": (r"must be in \(0, inf\), got", [0.0, -1.0, math.inf, math.nan]),
    "clients": ("must be an integer in", [0, -1, 1.5, True, math.nan]),
    "delta": (r"must be in \(0, 1\), got", [0.0, 1.0, -1.0, math.nan]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_arguments_are_checked(name: str) -> None:
    text, values = REFUSED[name]
    for value in values:
        with pytest.raises(ValueError, match=f"{name} {text}.*{value}"):
            shuffled(**{"epsilon": 1.0, "clients": 100, "delta": 0.1, name: value})  # type: ignore[arg-type]
