"""BatchNorm's running statistics are no weights: no report is about them, and they never move."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord

from flower_ldp.wire.layout import named_by, perhaps_statistics, running_statistics
from tests.fixtures import record
from tests.unit.strategies.rounds import run
from tests.unit.strategies.test_parts import EVERY_KIND, Make

Arrays = dict[str, Any]


def zeros(*shape: int) -> Any:
    return np.zeros(shape, dtype=np.float32)


#: As torch's state dictionary of a linear layer and a BatchNorm1d has it.
MODEL: Arrays = {
    "line.weight": zeros(20, 10),
    "norm.weight": zeros(20) + 1,
    "norm.bias": zeros(20),
    "norm.running_mean": zeros(20),
    "norm.running_var": zeros(20) + 1,
    "norm.num_batches_tracked": np.array(0),
}
WEIGHTS = ("line.weight", "norm.weight", "norm.bias")
STATISTICS = {"norm.running_mean", "norm.running_var"}


@pytest.mark.usefixtures("simulation_policy")
@EVERY_KIND
@pytest.mark.parametrize("trainable", [None, "*"])
def test_they_leave_a_run_as_they_came_and_are_not_counted(
    make: Make, release: type[Any], length: int, trainable: str | None
) -> None:
    """The app's pass has changed them, as passes in training do, some to NaN."""
    reply = {name: np.asarray(array + 2, array.dtype) for name, array in MODEL.items()}
    reply["norm.running_var"] = np.full(20, np.nan, np.float32)
    strategy = make()
    result = run(strategy, release(trainable=trainable), MODEL, reply)
    assert result.train_metrics_clientapp[2]["accepted"] == 4
    assert strategy._forecast.entries == 240
    same = {n for n, a in MODEL.items() if result.arrays[n].numpy().tobytes() == a.tobytes()}
    assert {*STATISTICS, "norm.num_batches_tracked"} <= same < set(MODEL)


@pytest.mark.parametrize(
    ("patterns", "expected"),
    [
        (["*"], set(WEIGHTS)),
        (["norm.*"], {"norm.weight", "norm.bias"}),
        (["norm.*", "norm.running_var"], {"norm.weight", "norm.bias", "norm.running_var"}),
    ],
)
def test_a_pattern_means_none_of_them_and_a_name_does(
    patterns: list[str], expected: set[str]
) -> None:
    assert set(named_by(patterns, MODEL)) == expected


UNSURE: Mapping[str, Arrays] = {
    "of two layers": {"a.running_mean": zeros(2), "b.running_var": zeros(2)},
    "of two lengths": {"a.running_mean": zeros(2), "a.running_var": zeros(3)},
    "matrices": {"running_mean": zeros(2, 2), "running_var": zeros(2, 2)},
}
OUTERMOST = {"running_mean": zeros(2), "running_var": zeros(2)}
IN_A_LIST = {str(place): array for place, array in enumerate(MODEL.values())}
OTHER_FRAMEWORK = {"norm/gamma": zeros(2), "norm/moving_mean": zeros(2)}
OTHERS: Mapping[str, tuple[Arrays, set[str], list[str]]] = {
    **{name: (model, set(), list(model)) for name, model in UNSURE.items()},
    "the outermost layer's": ({**OUTERMOST, "w": zeros(3)}, set(OUTERMOST), []),
    "of another framework": (OTHER_FRAMEWORK, set(), ["norm/moving_mean"]),
    "in a list": (IN_A_LIST, set(), ["3", "4"]),
    "none": ({"w": zeros(2), "b": zeros(2), "count": np.array(3.0)}, set(), []),
    "a counter after two others": ({"w": zeros(2, 2), "b": zeros(2), "n": np.array(3)}, set(), []),
}


@pytest.mark.parametrize(("model", "sure", "perhaps"), OTHERS.values(), ids=OTHERS)
def test_which_can_be_told_and_which_may_be(
    model: Arrays, sure: set[str], perhaps: list[str]
) -> None:
    assert running_statistics(model) == sure
    assert perhaps_statistics(model) == perhaps


@EVERY_KIND
def test_the_run_says_so(
    make: Make, release: type[Any], length: int, caplog: pytest.LogCaptureFixture
) -> None:
    def said(model: ArrayRecord, **part: Any) -> list[str]:
        caplog.clear()
        make(**part).expect(2, model)
        return [one.getMessage() for one in caplog.records if "statistics" in one.getMessage()]

    assert said(record(MODEL)) == [
        "BatchNorm's running statistics stay as they are: norm.running_mean, norm.running_var"
    ]
    (warned,) = said(ArrayRecord(list(MODEL.values())))
    assert "['3', '4']" in warned
    assert "trainable=" in warned
    assert said(ArrayRecord(list(MODEL.values())), trainable=["0", "1", "2"]) == []


def test_torch_names_them_so() -> None:
    nn = pytest.importorskip("torch.nn")
    layers = nn.Sequential(nn.Conv2d(1, 3, 2), nn.BatchNorm2d(3), nn.BatchNorm2d(3, affine=False))
    found = {name: one.numpy() for name, one in layers.state_dict().items()}
    expected = {f"{layer}.running_{what}" for layer in (1, 2) for what in ("mean", "var")}
    assert running_statistics(found) == expected
    assert perhaps_statistics(found) == []
