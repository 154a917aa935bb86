"""A model as one vector: what is counted, that nothing is mixed up, what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import DTypeLike, NDArray

from flower_ldp.errors import WireError
from flower_ldp.wire.layout import ArraySpec, ModelLayout

Model = dict[str, NDArray[Any]]
FLOATS = ("f2", "f4", "f8")
COUNTERS = ("i8", "u1", "?")
#: A long double, where there is one.
LONG = "g" if np.longdouble(1).nbytes > 8 else "c8"
DTYPES = st.sampled_from([*FLOATS, *COUNTERS, ">f4"])
SHAPES = st.lists(st.integers(0, 3), max_size=3).map(tuple)


def model() -> Model:
    """A model with every kind of array: axes and none, floats, a counter, an empty one."""
    return {
        "weight": np.arange(6, dtype=np.float32).reshape(2, 3),
        "batches": np.array(7, dtype=np.int64),
        "scale": np.array(2.0, dtype=np.float64),
        "empty": np.zeros((0, 4), dtype=np.float32),
        "bias": np.array([1.0, 2.0], dtype=np.float16),
        "mask": np.array([True, False]),
    }


@st.composite
def models(draw: st.DrawFn) -> Model:
    """Draw a model with at least one floating-point entry; values are small integers."""
    specs = draw(st.lists(st.tuples(SHAPES, DTYPES), max_size=5))
    rng = np.random.default_rng(draw(st.integers(0, 1000)))
    specs.insert(draw(st.integers(0, len(specs))), ((2,), "f4"))
    return {
        f"a{i}": rng.integers(0, 2, size=shape).astype(dtype)
        for i, (shape, dtype) in enumerate(specs)
    }


def test_layout_counts_floating_point_entries_only() -> None:
    layout = ModelLayout.of(model())
    assert layout.dimension == 6 + 1 + 0 + 2
    assert [spec.name for spec in layout.specs] == list(model())
    assert layout.specs[0] == ArraySpec("weight", (2, 3), np.dtype(np.float32))
    assert [spec.is_float for spec in layout.specs] == [True, False, True, True, True, False]


@pytest.mark.parametrize(("shape", "size"), [((), 1), ((3, 0), 0), ((2**20, 2**20), 2**40)])
def test_the_size_of_an_array(shape: tuple[int, ...], size: int) -> None:
    assert ArraySpec("a", shape, np.dtype(np.float32)).size == size


@pytest.mark.parametrize("dtype", ["c8", "U3", "M8[s]", "O", "V4", LONG])
def test_unsupported_dtypes_are_refused_by_name(dtype: DTypeLike) -> None:
    arrays = {"weight": np.zeros(2, dtype=np.float32), "odd": np.empty(2, dtype=dtype)}
    with pytest.raises(ValueError, match="array 'odd' has dtype"):
        ModelLayout.of(arrays)


@pytest.mark.parametrize(
    "arrays", [{}, {"n": np.zeros(3, dtype=np.int64)}, {"e": np.zeros((0,), dtype=np.float32)}]
)
def test_a_model_without_entries_is_refused(arrays: Model) -> None:
    with pytest.raises(ValueError, match="no floating-point entries"):
        ModelLayout.of(arrays)


def test_difference_is_flat_in_the_order_of_the_record() -> None:
    old, new = model(), model()
    new["weight"] = old["weight"] + np.float32(10)
    new["scale"] = np.array(2.5)
    new["bias"] = np.array([1.0, 0.0], dtype=np.float16)
    new["batches"] = np.array(8)
    update = ModelLayout.of(old).difference(dict(reversed(new.items())), old)
    assert update.dtype == np.float32
    np.testing.assert_array_equal(update, [10] * 6 + [0.5, 0, -2])


def test_difference_is_taken_before_rounding_to_float32() -> None:
    old = {"w": np.array([1e8], dtype=np.float64)}
    new = {"w": np.array([1e8 + 0.125], dtype=np.float64)}
    np.testing.assert_array_equal(ModelLayout.of(old).difference(new, old), [0.125])


@pytest.mark.parametrize(("dtype", "top"), [("f4", 3e38), ("f8", 1e300)])
def test_an_overflow_becomes_an_infinity_for_the_mechanism_to_refuse(
    dtype: DTypeLike, top: float
) -> None:
    old, new = {"w": np.array([-top], dtype=dtype)}, {"w": np.array([top], dtype=dtype)}
    np.testing.assert_array_equal(ModelLayout.of(old).difference(new, old), [np.inf])


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_values_that_are_not_finite_are_kept_for_the_mechanism_to_refuse(value: float) -> None:
    old, new = {"w": np.zeros(2, np.float32)}, {"w": np.array([0, value], dtype=np.float32)}
    np.testing.assert_array_equal(ModelLayout.of(old).difference(new, old), [0, value])


def test_other_arrays_are_refused_by_name() -> None:
    fewer, extra = model(), {"extra": np.zeros(1)}
    del fewer["bias"]
    for arrays, text in (
        (fewer, r"missing \['bias'\]"),
        (model() | extra, r"added \['extra'\]"),
        (fewer | extra, r"missing \['bias'\], added \['extra'\]"),
    ):
        with pytest.raises(WireError, match=f"arrays {text}$"):
            ModelLayout.of(model()).difference(arrays, model())


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("weight", np.zeros((3, 2), dtype=np.float32)),
        ("weight", np.zeros(1, dtype=np.float32)),  # would broadcast in silence
        ("weight", np.zeros((2, 3), dtype=np.float64)),
        ("batches", np.array(7, dtype=np.int32)),
        ("scale", np.array([2.0])),
    ],
)
def test_other_shapes_and_dtypes_are_refused_by_name(name: str, array: NDArray[Any]) -> None:
    with pytest.raises(ValueError, match=f"array '{name}' is .*, sent was "):
        ModelLayout.of(model()).difference(model() | {name: array}, model())


def test_add_moves_floats_and_leaves_counters() -> None:
    old = model()
    moved = ModelLayout.of(old).add(old, np.arange(9, dtype=np.float32))
    assert list(moved) == list(old)
    np.testing.assert_array_equal(moved["weight"], np.arange(0, 12, 2).reshape(2, 3))
    np.testing.assert_array_equal(moved["scale"], 8)
    np.testing.assert_array_equal(moved["bias"], [8, 10])
    assert moved["batches"] is old["batches"]
    assert moved["mask"] is old["mask"]
    np.testing.assert_array_equal(old["weight"], model()["weight"])


@pytest.mark.parametrize("surplus", [-1, 1])
def test_an_update_of_another_length_is_refused(surplus: int) -> None:
    layout = ModelLayout.of(model())
    with pytest.raises(ValueError, match="update must have shape"):
        layout.add(model(), np.zeros(layout.dimension + surplus, dtype=np.float32))


@given(models(), st.integers(0, 1000))
def test_adding_a_difference_gives_the_trained_model(old: Model, seed: int) -> None:
    layout = ModelLayout.of(old)
    step = np.random.default_rng(seed).integers(-2, 3, layout.dimension).astype(np.float32)
    new = layout.add(old, step)
    for name, array in new.items():
        assert isinstance(array, np.ndarray)
        assert (array.shape, array.dtype) == (old[name].shape, old[name].dtype)
    assert ModelLayout.of(new) == layout
    np.testing.assert_array_equal(layout.difference(new, old), step)


def test_differences_of_half_precision_are_taken_in_single() -> None:
    old = {"w": np.array([-60_000.0, 1.0], dtype=np.float16)}
    new = {"w": np.array([60_000.0, 1.001], dtype=np.float16)}
    update = ModelLayout.of(old).difference(new, old)
    assert update.dtype == np.float32
    exact = new["w"].astype(np.float64) - old["w"].astype(np.float64)
    np.testing.assert_array_equal(update, exact.astype(np.float32))
