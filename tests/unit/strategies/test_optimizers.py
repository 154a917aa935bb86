"""Server optimizers against their recursions written out, and against Flower's own strategies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from flwr.app import MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAdagrad, FedAdam, FedYogi
from flwr.serverapp.strategy.fedopt import FedOpt
from numpy.typing import NDArray

from flower_ldp.mechanisms import Gaussian, SignDS
from flower_ldp.mechanisms.signds_round import encode_report
from flower_ldp.strategies import (
    Adagrad,
    Adam,
    FixedLength,
    FixedStep,
    GaussianStrategy,
    Momentum,
    ServerOptimizer,
    SignDSStrategy,
    Yogi,
)
from tests.fixtures import message, parse_config, record
from tests.unit.strategies.rounds import aggregated, ask, cosine, reply, unmoved

FLOWERS: dict[type[Any], Callable[..., FedOpt]] = {
    Adam: FedAdam,
    Yogi: FedYogi,
    Adagrad: FedAdagrad,
}
#: Parameters none of which is a default.
OTHER: dict[type[Any], dict[str, float]] = {
    Adam: {"eta": 0.5, "beta_1": 0.0, "beta_2": 0.9, "tau": 0.1},
    Yogi: {"eta": 0.5, "beta_1": 0.5, "beta_2": 0.0, "tau": 0.1},
    Adagrad: {"eta": 2.0, "tau": 0.1},
    Momentum: {"momentum": 0.8, "learning_rate": 0.5},
    FixedLength: {"length": 2.5, "rounds": 40, "momentum": 0.7, "final_fraction": 0.1},
}
every_optimizer = pytest.mark.parametrize("kind", OTHER)
adaptive = pytest.mark.parametrize("kind", FLOWERS)


def steps(rounds: int, dimension: int = 5) -> list[NDArray[np.float32]]:
    rng = np.random.default_rng(1)
    return [rng.normal(size=dimension).astype(np.float32) for _ in range(rounds)]


def steps_of_several_sizes() -> list[NDArray[np.float32]]:
    """Return steps in which some weights have none until later."""
    rng = np.random.default_rng(5)
    found = [rng.normal(size=40) * 10.0 ** rng.integers(-6, 3, 40) for _ in range(25)]
    for step in found[:10]:
        step[:7] = 0.0
    return [step.astype(np.float32) for step in found]


def flowers_step(strategy: FedOpt, proposed: NDArray[np.float32], server_round: int) -> Any:
    """Return by how much Flower's strategy moves a model of zeros to which one client adds that."""
    strategy.current_arrays = {"w": np.zeros_like(proposed)}
    metrics = MetricRecord({"num-examples": 1})
    content = RecordDict({"arrays": record({"w": proposed}), "metrics": metrics})
    return aggregated(strategy, [message(content, reply=True)], server_round)[0]["w"]


@adaptive
@pytest.mark.parametrize("defaults", [True, False])
def test_steps_are_those_of_flower_to_the_bit(kind: type[Any], defaults: bool) -> None:
    options = {} if defaults else OTHER[kind]
    ours, flowers = kind(**options), FLOWERS[kind](**options)
    for i, proposed in enumerate(steps_of_several_sizes()):
        taken = ours.step(proposed, i + 1)
        assert taken.dtype == np.float32
        expected = flowers_step(flowers, proposed, i + 1).astype(np.float32)
        np.testing.assert_array_equal(taken, expected)


@adaptive
def test_the_defaults_are_those_of_flower(kind: type[Any]) -> None:
    ours, flowers = kind(), FLOWERS[kind]()
    for parameter in OTHER[kind]:
        assert getattr(ours, parameter) == getattr(flowers, parameter)


def running_sums(given: list[NDArray[np.float32]], momentum: float) -> list[NDArray[np.float64]]:
    return [
        np.sum([momentum ** (i - j) * given[j].astype(float) for j in range(i + 1)], axis=0)
        for i in range(len(given))
    ]


def length(step: NDArray[np.float32]) -> float:
    return float(np.linalg.norm(step.astype(float)))


@pytest.mark.parametrize(("momentum", "rate"), [(0.0, 1.0), (0.9, 1.0), (0.5, 0.25)])
def test_momentum_is_a_discounted_sum(momentum: float, rate: float) -> None:
    proposals, optimizer = steps(20), Momentum(momentum, rate)
    for i, total in enumerate(running_sums(proposals, momentum)):
        taken = optimizer.step(proposals[i], i + 1)
        assert taken.dtype == np.float32
        np.testing.assert_allclose(taken, rate * total, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("final_fraction", [0.0, 0.25, 1.0])
def test_length_decays_linearly_over_the_plan_and_stays(final_fraction: float) -> None:
    optimizer = FixedLength(2.0, rounds=8, momentum=0.7, final_fraction=final_fraction)
    proposals = steps(12)
    for i, total in enumerate(running_sums(proposals, 0.7)):
        taken = optimizer.step(proposals[i], i + 1)
        planned = 2.0 * (1 - min(i / 8, 1) * (1 - final_fraction))
        assert length(taken) == pytest.approx(planned, rel=1e-6)
        assert not planned or cosine(taken, total) == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("scale", [1e-25, 1e-6, 1e6, 1e25])
def test_only_the_direction_of_proposals_counts(scale: float) -> None:
    plain, scaled = FixedLength(1.0, rounds=10), FixedLength(1.0, rounds=10)
    for i, proposed in enumerate(steps(5)):
        taken = scaled.step(proposed * np.float32(scale), i + 1)
        np.testing.assert_allclose(taken, plain.step(proposed, i + 1), rtol=1e-4, atol=1e-6)


def test_no_direction_means_no_step() -> None:
    optimizer = FixedLength(1.0, rounds=10)
    np.testing.assert_array_equal(optimizer.step(np.zeros(3, dtype=np.float32), 1), np.zeros(3))
    assert length(optimizer.step(np.array([0, 3, 4], dtype=np.float32), 2)) == pytest.approx(0.9)


@every_optimizer
def test_arrays_of_the_caller_are_never_changed_or_kept(kind: type[Any]) -> None:
    first, second = steps(2)
    kept_first, kept_second = first.copy(), second.copy()
    optimizer, fresh = kind(**OTHER[kind]), kind(**OTHER[kind])
    taken = optimizer.step(first, 1)
    np.testing.assert_array_equal(first, kept_first)
    kept_taken = taken.copy()
    first[:] = 99.0
    fresh.step(kept_first, 1)
    np.testing.assert_array_equal(optimizer.step(second, 2), fresh.step(second, 2))
    np.testing.assert_array_equal(second, kept_second)
    np.testing.assert_array_equal(taken, kept_taken)
    taken[:] = 99.0
    np.testing.assert_array_equal(optimizer.step(second, 3), fresh.step(second, 3))


@every_optimizer
def test_state_is_not_part_of_equality_and_every_parameter_is_described(kind: type[Any]) -> None:
    used = kind(**OTHER[kind])
    used.step(np.ones(3, dtype=np.float32), 1)
    assert used == kind(**OTHER[kind])
    assert used.describe().startswith(f"{kind.__name__}(")
    for parameter, value in OTHER[kind].items():
        assert f"{parameter}={value!r}" in used.describe()


@adaptive
@pytest.mark.parametrize("section", ["sign", "codeword"])
@pytest.mark.parametrize("defaults", [True, False])
def test_a_configuration_builds_it(kind: type[Any], section: str, defaults: bool) -> None:
    options = {} if defaults else OTHER[kind]
    fields = "".join(f", {key}: {value}" for key, value in options.items())
    chosen = f"{section}_server_optimizer: {{kind: {kind.__name__.lower()}{fields}}}"
    text = {
        "sign": f"encrypt:\n  encrypt_train_type: SIGNDS\n  signds:\n    {chosen}\n",
        "codeword": "encrypt:\n  encrypt_train_type: CODEWORD\n  codeword:\n"
        f"    codeword_eps: 4.0\n    {chosen}\n",
    }[section]
    config = parse_config(text).encrypt
    built = config.signds if section == "sign" else config.codeword
    assert built is not None
    assert built.server_optimizer() == kind(**options)


def test_a_strategy_says_which_it_has(caplog: pytest.LogCaptureFixture) -> None:
    GaussianStrategy(Gaussian(8.0, 1e-6), server_optimizer=Adam()).summary()
    assert "Adam(eta=0.1, beta_1=0.9, beta_2=0.99, tau=0.001)" in caplog.text


SELECTION = SignDS(epsilon=20.0, k=0.2)
MODEL = {"w": np.ones(300, dtype=np.float32)}


def as_new(used: ServerOptimizer, kind: type[Any], server_round: int) -> bool:
    proposed = np.linspace(-1.0, 1.0, 300, dtype=np.float32)
    fresh = kind(**OTHER[kind]).step(proposed, server_round)
    return np.array_equal(used.step(proposed, server_round), fresh)


@every_optimizer
def test_a_run_begins_with_nothing_of_another_runs_model(kind: type[Any]) -> None:
    used = kind(**OTHER[kind])
    strategy = SignDSStrategy(SELECTION, FixedStep(0.5), server_optimizer=used)
    used.step(np.ones(7, dtype=np.float32), 1)
    strategy.expect(3, record(MODEL))
    assert as_new(used, kind, 1)


@every_optimizer
@pytest.mark.usefixtures("outside_a_run")
def test_a_step_that_is_not_finite_does_not_spoil_those_after_it(
    kind: type[Any], caplog: pytest.LogCaptureFixture
) -> None:
    used = kind(**OTHER[kind])
    # Of float32, in which steps are, this is an infinity.
    strategy = SignDSStrategy(SELECTION, FixedStep(1e39), server_optimizer=used)
    asked, _ = ask(strategy, MODEL, nodes=2)
    indices = np.arange(SELECTION.plan(300).dim_out)
    payload = encode_report(indices, 1, None, dimension=300)
    metrics = unmoved(strategy, [reply(payload, asked.metadata.dst_node_id)])
    assert metrics["accepted"] == 1
    assert "not finite" in caplog.text
    assert as_new(used, kind, 2)
