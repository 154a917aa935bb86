"""What settings of other software give, held to that software and to another computation."""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np
import pytest
from flwr.app import Message, MetricRecord, RecordDict
from flwr.clientapp.mod import LocalDpMod, localdp_mod
from flwr.serverapp.strategy import (
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAdagrad,
    FedAvg,
    dp_adaptive_clipping,
    dp_fixed_clipping,
)
from flwr.supercore.differential_privacy import compute_stdv

from flower_ldp.mechanisms.gaussian import gaussian_delta
from flower_ldp.strategies.other_software import (
    central_wrapper,
    flowers_epsilon,
    local_dp_mod,
    mindspore_dp,
)
from tests.fixtures import Arrays, context, message, record


def left(mod: LocalDpMod, before: Arrays, after: Arrays) -> list[np.ndarray]:
    """Return the arrays that leave a client which trained one model into another."""
    asked = message(RecordDict({"arrays": record(before)}))
    moved = message(RecordDict({"arrays": record(after)}), reply=True)
    answer = mod(asked, context(), lambda *_: moved)
    return answer.content.array_records["arrays"].to_numpy_ndarrays()


def trained(node: int, update: np.ndarray) -> Message:
    metrics = MetricRecord({"num-examples": 1})
    content = RecordDict({"arrays": record({"w": update}), "metrics": metrics})
    return message(content, node=node, reply=True)


def mean(wrapper: Any, *updates: np.ndarray) -> np.ndarray:
    """Return the model that a wrapper makes of clients' updates to a model of zeros."""
    wrapper.current_arrays = record({"w": np.zeros_like(updates[0])})
    replies = [trained(node, update) for node, update in enumerate(updates, 7)]
    arrays, _ = wrapper.aggregate_train(1, replies)
    assert arrays is not None
    found: np.ndarray = arrays["w"].numpy()
    return found


@pytest.fixture
def added(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The deviations of the noise that Flower's software would add, and does not."""
    found: list[float] = []
    for module in (localdp_mod, dp_fixed_clipping, dp_adaptive_clipping):
        monkeypatch.setattr(module, "add_gaussian_noise_inplace", lambda _, by: found.append(by))
    return found


@pytest.mark.parametrize(
    "given", [(1.0, 1e-4, 10.0, 1e-5), (0.5, 1.0, 1.0, 1e-6), (2.0, 0.0, 3.0, 1e-3)]
)
def test_the_noise_is_what_localdpmod_adds(
    given: tuple[float, float, float, float], added: list[float]
) -> None:
    after = {"w": np.array([30.0, 0.0, 40.0])}
    (clipped,) = left(LocalDpMod(*given), {"w": np.zeros(3)}, after)
    noise = local_dp_mod(*given)
    assert added == pytest.approx([noise.deviation])
    # The clip, and so the distance: another update may be at the other end of the ball.
    assert 2 * np.linalg.norm(clipped) == pytest.approx(noise.distance)


def test_localdpmod_answers_an_update_of_zeros_with_an_error() -> None:
    with pytest.raises(ZeroDivisionError):
        left(LocalDpMod(1.0, 1.0, 1.0, 1e-5), {"w": np.zeros(3)}, {"w": np.zeros(3)})


@pytest.mark.parametrize(
    ("name", "sent"),
    [("counter", np.array(1234)), ("scale", np.array(1234.5)), ("integers", np.array([5, 6]))],
)
def test_localdpmod_lets_arrays_out_as_they_are(name: str, sent: np.ndarray) -> None:
    before, after = {"w": np.zeros(3), name: np.zeros_like(sent)}, {"w": np.ones(3), name: sent}
    # Integers in a vector cannot be clipped at all; in a wide clip they leave.
    mod = LocalDpMod(100.0 if sent.shape else 1.0, 1e-3, 1.0, 1e-5)
    assert np.array_equal(left(mod, before, after)[1], sent)


def test_localdpmod_clips_no_update_with_a_nan() -> None:
    mod, after = LocalDpMod(1.0, 2.0, 1.0, 1e-5), {"w": np.array([np.nan, 1e6])}
    (found,) = left(mod, {"w": np.zeros(2)}, after)
    assert found[1] == pytest.approx(1e6, rel=1e-3)


def test_a_wrapper_around_another_strategy_moves_further_than_its_noise_is_for() -> None:
    def step(update: float) -> float:
        wrapper = DifferentialPrivacyServerSideFixedClipping(FedAdagrad(), 1e-12, 1.0, 20)
        wrapper.strategy.current_arrays = {"w": np.zeros(1)}
        updates = [update, *[1e-3, -1e-3] * 9, 1e-3]
        return float(mean(wrapper, *(np.full(1, one) for one in updates))[0])

    assert step(9.0) - step(-9.0) > 1.9 * (2 * 1.0 / 20)


def test_the_setting_of_a_hospital_platform_is_850_million() -> None:
    noise = local_dp_mod(1.0, 1e-4, 10.0, 1e-5)
    # Far out the curve is a normal tail: epsilon = mu^2 / 2 + mu z, z of the tail delta.
    shift = 2.0 / (1e-4 * math.sqrt(2 * math.log(1.25e5)) / 10.0)
    tail = 4.264891  # of 1e-5
    assert noise.epsilon(1e-5) == pytest.approx(shift**2 / 2 + shift * tail, rel=1e-6)
    assert noise.epsilon(1e-5) == pytest.approx(8.52e8, rel=1e-3)


def test_without_noise_there_is_no_epsilon() -> None:
    noise = local_dp_mod(1.0, 0.0, 1.0, 1e-5)
    assert noise.epsilon(1e-5) == noise.epsilon(1e-5, 9) == math.inf


def test_mindspore_keeps_its_word_for_one_clip_and_not_for_two() -> None:
    noise = mindspore_dp(3.0, 50.0, 0.01)
    assert gaussian_delta(50.0, 3.0 / noise.deviation) == pytest.approx(0.01, rel=1e-6)
    assert gaussian_delta(50.0, noise.shift) > 0.999
    assert noise.epsilon(0.01) == pytest.approx(165.23, rel=1e-4)


@pytest.mark.parametrize("rounds", [1, 7, 400])
def test_rounds_add_up_as_squares(rounds: int) -> None:
    noise = local_dp_mod(1.0, 2.0, 1.0, 1e-5)
    many = noise.epsilon(1e-5, rounds)
    shift = noise.shift * math.sqrt(rounds)
    if many < 100:
        assert gaussian_delta(many, shift) == pytest.approx(1e-5, rel=1e-4)
    assert many == pytest.approx(local_dp_mod(math.sqrt(rounds), 2.0, 1.0, 1e-5).epsilon(1e-5))


@pytest.mark.parametrize("weight", [1.0, 5.0])
def test_a_central_wrapper_is_a_shift_of_its_mean(weight: float) -> None:
    multiplier, clip, sampled = 0.7, 3.0, 20
    deviation = compute_stdv(multiplier, clip, sampled)
    moves = weight * clip / sampled  # how far one client can move the mean
    for replace, distance in ((True, 2 * moves), (False, moves)):
        noise = central_wrapper(multiplier, weight, replace=replace)
        assert noise.shift == pytest.approx(distance / deviation)


def test_a_client_that_is_left_out_shifts_the_mean_as_far_as_one_replaced(
    added: list[float],
) -> None:
    def found(*updates: float) -> float:
        wrapper = DifferentialPrivacyServerSideFixedClipping(FedAvg(), 1.0, 1.0, 4)
        return float(mean(wrapper, *(np.full(1, update) for update in updates))[0])

    whole = found(9.0, 9.0, 9.0, -9.0)
    left_out, zeros = found(9.0, 9.0, 9.0) - whole, found(9.0, 9.0, 9.0, 1e-9) - whole
    assert added == pytest.approx([0.25] * 3)
    for moved, replace in ((left_out, True), (zeros, False)):
        noise = central_wrapper(1.0, 1.0, replace=replace)
        assert noise.shift == pytest.approx(moved / added[0])
    with pytest.raises(ZeroDivisionError):  # of exact zeros the wrapper makes an error
        found(9.0, 0.0)


@pytest.mark.parametrize(("multiplier", "rounds"), [(1.0, 1), (1.0, 50), (8.0, 100)])
def test_flowers_accountant_is_a_bound_of_the_same(multiplier: float, rounds: int) -> None:
    pytest.importorskip("dp_accounting")
    theirs = flowers_epsilon(multiplier, rounds, 1e-5, 20, 100)
    exact = central_wrapper(multiplier, 1.0, replace=False).epsilon(1e-5, rounds)
    assert theirs is not None
    assert exact <= theirs <= 1.3 * exact


def test_flowers_accountant_is_left_out_where_it_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("dp_accounting", "dp_accounting.rdp"):
        monkeypatch.setitem(sys.modules, name, None)
    assert flowers_epsilon(1.0, 1, 1e-5, 2, 2) is None


def test_the_adaptive_wrapper_makes_its_noise_for_the_clip_after_its_update(
    added: list[float],
) -> None:
    wrapper = DifferentialPrivacyServerSideAdaptiveClipping(
        FedAvg(), 1.0, 2, initial_clipping_norm=1.0, clipped_count_stddev=1.0
    )
    mean(wrapper, np.full(3, 9.0), np.full(3, 9.0))
    assert wrapper.clipping_norm != 1.0  # both updates were clipped to this
    assert added == pytest.approx([wrapper.noise_multiplier * wrapper.clipping_norm / 2])
