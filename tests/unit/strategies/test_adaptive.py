"""Adam, Yogi and Adagrad against Flower's own strategies, fed the same steps."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAdagrad, FedAdam, FedYogi
from flwr.serverapp.strategy.fedopt import FedOpt
from numpy.typing import NDArray

from flower_ldp.mechanisms import Gaussian
from flower_ldp.strategies import Adagrad, Adam, GaussianStrategy, ServerOptimizer, Yogi
from tests.fixtures import message, parse_config, record

Steps = list[NDArray[np.float32]]
OURS: dict[str, Callable[..., ServerOptimizer]] = {"adam": Adam, "yogi": Yogi, "adagrad": Adagrad}
FLOWERS: dict[str, Callable[..., FedOpt]] = {
    "adam": FedAdam,
    "yogi": FedYogi,
    "adagrad": FedAdagrad,
}
OTHER: dict[str, dict[str, float]] = {
    "adam": {"eta": 0.5, "beta_1": 0.0, "beta_2": 0.9, "tau": 0.1},
    "yogi": {"eta": 0.5, "beta_1": 0.5, "beta_2": 0.0, "tau": 0.1},
    "adagrad": {"eta": 2.0, "tau": 0.1},
}


def proposals(scale: float = 1.0) -> Steps:
    """Return steps of several sizes; some weights have none until later."""
    rng = np.random.default_rng(5)
    steps = [scale * rng.normal(size=40) * 10.0 ** rng.integers(-6, 3, 40) for _ in range(25)]
    for step in steps[:10]:
        step[:7] = 0.0
    return [step.astype(np.float32) for step in steps]


def flowers_step(strategy: FedOpt, proposed: NDArray[np.float32], server_round: int) -> Any:
    """Return by how much Flower's strategy moves a model of zeros to which one client adds that."""
    strategy.current_arrays = {"w": np.zeros_like(proposed)}
    content: dict[str, Any] = {
        "arrays": record({"w": proposed}),
        "metrics": MetricRecord({"num-examples": 1}),
    }
    moved, _ = strategy.aggregate_train(
        server_round, [message(RecordDict(content), kind="train", reply=True)]
    )
    assert isinstance(moved, ArrayRecord)
    return moved["w"].numpy()


@pytest.mark.parametrize("given", [{}, OTHER], ids=["defaults", "others"])
@pytest.mark.parametrize("name", OURS)
def test_steps_are_those_of_flower_to_the_bit(
    name: str, given: dict[str, dict[str, float]]
) -> None:
    options = given.get(name, {})
    ours, flowers = OURS[name](**options), FLOWERS[name](**options)
    for i, proposed in enumerate(proposals()):
        expected = flowers_step(flowers, proposed, i + 1).astype(np.float32)
        taken = ours.step(proposed, i + 1)
        assert taken.dtype == np.float32
        np.testing.assert_array_equal(taken, expected)


@pytest.mark.parametrize("name", OURS)
def test_the_defaults_are_those_of_flower(name: str) -> None:
    ours, flowers = OURS[name](), FLOWERS[name]()
    for parameter in OTHER[name]:
        assert getattr(ours, parameter) == getattr(flowers, parameter)


@pytest.mark.parametrize("name", OURS)
def test_arrays_of_the_caller_are_never_changed_or_kept(name: str) -> None:
    first, second = proposals()[:2]
    kept_first, kept_second = first.copy(), second.copy()
    optimizer, fresh = OURS[name](), OURS[name]()
    taken = optimizer.step(first, 1)
    np.testing.assert_array_equal(first, kept_first)
    first[:] = 99.0
    taken[:] = 99.0
    fresh.step(kept_first, 1)
    np.testing.assert_array_equal(optimizer.step(second, 2), fresh.step(second, 2))
    np.testing.assert_array_equal(second, kept_second)


@pytest.mark.parametrize("name", OURS)
def test_state_is_not_part_of_equality_and_every_parameter_is_described(name: str) -> None:
    used = OURS[name](**OTHER[name])
    used.step(np.ones(3, dtype=np.float32), 1)
    assert used == OURS[name](**OTHER[name])
    for parameter, value in OTHER[name].items():
        assert f"{parameter}={value!r}" in used.describe()
    assert used.describe().lower().startswith(f"{name}(")


@pytest.mark.parametrize(
    ("parameter", "value", "interval"),
    [
        *(("eta", value, "(0, inf)") for value in (0.0, -1.0, math.inf, math.nan)),
        *(("tau", value, "(0, inf)") for value in (0.0, math.inf)),
        *(("beta_1", value, "[0, 1)") for value in (1.0, -0.1, math.nan)),
        *(("beta_2", value, "[0, 1)") for value in (1.0, -0.1, math.nan)),
    ],
)
def test_parameters_outside_their_intervals_are_refused(
    parameter: str, value: float, interval: str
) -> None:
    for name in OURS:
        if parameter in OTHER[name]:
            words = re.escape(f"{parameter} must be in {interval}, got {value}")
            with pytest.raises(ValueError, match=words):
                OURS[name](**{parameter: value})


@pytest.mark.parametrize("name", OURS)
@pytest.mark.parametrize("section", ["sign", "codeword"])
def test_a_configuration_builds_it(name: str, section: str) -> None:
    fields = ", ".join(f"{key}: {value}" for key, value in OTHER[name].items())
    chosen = f"{section}_server_optimizer: {{kind: {name}, {fields}}}"
    text = {
        "sign": f"encrypt:\n  encrypt_train_type: SIGNDS\n  signds:\n    {chosen}\n",
        "codeword": "encrypt:\n  encrypt_train_type: CODEWORD\n  codeword:\n"
        f"    codeword_eps: 4.0\n    {chosen}\n",
    }[section]
    config = parse_config(text).encrypt
    built = config.signds if section == "sign" else config.codeword
    assert built is not None
    assert built.server_optimizer() == OURS[name](**OTHER[name])
    again = f"{section}_server_optimizer: {{kind: {name}}}"
    config = parse_config(text.replace(chosen, again)).encrypt
    built = config.signds if section == "sign" else config.codeword
    assert built is not None
    assert built.server_optimizer() == OURS[name]()


def test_a_strategy_says_which_it_has(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="flwr")
    GaussianStrategy(Gaussian(8.0, 1e-6), server_optimizer=Adam()).summary()
    assert "Adam(eta=0.1, beta_1=0.9, beta_2=0.99, tau=0.001)" in caplog.text
