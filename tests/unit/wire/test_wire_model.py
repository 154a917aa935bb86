"""A plan in a strategy's configuration, and a model as bytes: both ways, strictly."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from flower_ldp.errors import WireError
from flower_ldp.mechanisms import TrainingPlan
from flower_ldp.wire.training_plan import (
    decode_model,
    encode_model,
    model_digest,
    plan_fields,
    read_plan,
    read_proximal,
)

SENT: dict[str, Any] = {
    "a": np.arange(6, dtype=np.float32).reshape(2, 3),
    "b": np.array(2.5, dtype=np.float64),
    "n": np.array(7, dtype=np.int64),
    "e": np.zeros((0, 3), dtype=np.float32),
}


@pytest.mark.parametrize("name", ["", "second"])
@pytest.mark.parametrize("clip", [None, 0.5, 1])
def test_a_plan_travels_beside_other_fields(name: str, clip: float | None) -> None:
    plan = TrainingPlan(20, 5, 0.05, 3.74, 1.0, 1e-5, name, clip=clip)
    assert ("ldp-clip" in plan_fields(plan)) == (clip is not None)
    assert read_plan({"server-round": 3, "lr": 0.1, **plan_fields(plan)}) == plan


def test_no_field_of_a_plan_is_no_plan() -> None:
    assert read_plan({"server-round": 3}) is None


@pytest.mark.parametrize(("value", "weight"), [(0.1, 0.1), (1, 1.0), (0, 0.0), (-0.0, 0.0)])
def test_the_proximal_weight(value: Any, weight: float) -> None:
    assert str(read_proximal({"proximal-mu": value})) == str(weight)


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf"), "1", True, [1.0]])
def test_a_proximal_weight_that_is_none(value: Any) -> None:
    with pytest.raises(WireError, match="proximal-mu"):
        read_proximal({"proximal-mu": value})


def test_a_model_comes_back_as_it_was() -> None:
    other = {name: array + 1 for name, array in SENT.items()}
    data = encode_model(other, SENT, 91)
    found, weight = decode_model(data, SENT)
    assert weight == 91
    for name, array in other.items():
        assert found[name].dtype == SENT[name].dtype
        assert found[name].shape == SENT[name].shape
        assert np.array_equal(found[name], array)


def test_all_models_of_one_message_have_one_length() -> None:
    sizes = {len(encode_model({n: a * k for n, a in SENT.items()}, SENT, k)) for k in range(9)}
    assert sizes == {9 + 24 + 8 + 8}


def test_another_model_than_was_sent_is_not_encoded() -> None:
    with pytest.raises(WireError, match="'a'"):
        encode_model({**SENT, "a": np.zeros((3, 2), np.float32)}, SENT, 1)
    with pytest.raises(WireError, match="'n'"):
        encode_model({name: SENT[name] for name in "abe"}, SENT, 1)


def test_a_digest_tells_names_shapes_dtypes_and_entries_apart() -> None:
    a = SENT["a"]
    others = [SENT, {"a": a}, {"b": a}, {"a": a.T.copy()}, {"a": a + 1}, {"a": a.astype("f8")}]
    assert len({model_digest(one) for one in others}) == len(others)
    assert model_digest({"a": a}) == model_digest({"a": a.astype(">f4").astype("<f4")})
