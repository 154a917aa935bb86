"""A part of a model: its fields, which arrays it names, and what of a model it moves."""

from __future__ import annotations

import numpy as np
import pytest

from flower_ldp.mechanisms import Subspace
from flower_ldp.wire.layout import WHOLE, ModelLayout, Part, named_by, patterns_of, without_part
from tests.fixtures import reason_of

MODEL: dict[str, np.ndarray] = {
    "trunk.weight": np.arange(6, dtype=np.float32).reshape(2, 3),
    "head.weight": np.array([1.0, 2.0, 3.0], dtype=np.float64),
    "head.count": np.array(7, dtype=np.int64),
    "head.bias": np.array(0.5, dtype=np.float16),
    "head.empty": np.zeros(0, dtype=np.float32),
    "odd[0]": np.zeros(2, dtype=np.float32),
}
HEAD = Part(("head.weight", "head.bias"))
FIELDS = {"trainable": ["head.weight"], "subspace-dimension": 2, "subspace-seed": 5}


@pytest.mark.parametrize("missing", ["subspace-dimension", "subspace-seed"])
def test_the_fields_of_a_subspace_go_together(missing: str) -> None:
    fields = {name: value for name, value in FIELDS.items() if name != missing}
    assert reason_of(without_part, fields) == "fields"


def test_fields_round_trip_and_others_are_passed_on() -> None:
    part = Part(("head.weight",), Subspace(2, 5))
    assert part.to_fields() == FIELDS
    assert without_part({"version": 1, **FIELDS}) == ({"version": 1}, part)
    assert without_part({"trainable": ["a", "b"]}) == ({}, Part(("a", "b")))


def test_without_fields_a_proposal_is_about_all() -> None:
    assert WHOLE.to_fields() == {}
    assert without_part({"version": 1}) == ({"version": 1}, WHOLE)


@pytest.mark.parametrize(
    ("patterns", "names"),
    [
        (("head.*",), ("head.weight", "head.bias")),
        (("*bias", "trunk.weight"), ("trunk.weight", "head.bias")),
        (("*",), ("trunk.weight", "head.weight", "head.bias", "odd[0]")),
        (("odd[0]",), ("odd[0]",)),
        (("[ht]*.weight",), ("trunk.weight", "head.weight")),
    ],
)
def test_patterns_name_floating_arrays_in_the_records_order(
    patterns: tuple[str, ...], names: tuple[str, ...]
) -> None:
    assert named_by(patterns, MODEL) == names


@pytest.mark.parametrize("pattern", ["lora", "HEAD.*", "head.count", "*count", "head.empty"])
def test_a_pattern_without_an_array_is_refused_with_those_there_are(pattern: str) -> None:
    with pytest.raises(ValueError, match="matches no floating-point array; there are") as caught:
        named_by(("head.*", pattern), MODEL)
    assert "'trunk.weight', 'head.weight', 'head.bias', 'odd[0]'" in str(caught.value)
    assert repr(pattern) in str(caught.value)


def test_of_many_arrays_some_are_named() -> None:
    many = {f"w{n}": np.zeros(1) for n in range(1_000)}
    with pytest.raises(ValueError, match=r"'w39' and 960 more$"):
        named_by(("x",), many)
    with pytest.raises(ValueError, match=r"there are none$"):
        named_by(("x",), {})


def test_arguments_of_other_types_are_refused() -> None:
    assert patterns_of(None) is None
    assert patterns_of("head.*") == ("head.*",)
    assert patterns_of(["a", "b"]) == ("a", "b")
    for given in (3, [3], {"a"}, b"head"):
        with pytest.raises(TypeError, match="trainable must be names or patterns"):
            patterns_of(given)  # type: ignore[arg-type]
    for empty in ("", [], ["a", ""]):
        with pytest.raises(ValueError, match="none empty"):
            patterns_of(empty)


@pytest.mark.parametrize("names", [("head.count",), ("head.weight", "nothing")])
def test_a_part_that_the_model_has_not_is_refused(names: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match=f"no floating-point arrays of the model: .*{names[-1]}"):
        ModelLayout.of(MODEL, Part(names))


def test_a_subspace_of_more_dimensions_than_weights_is_refused() -> None:
    assert ModelLayout.of(MODEL, Part(HEAD.names, Subspace(4))).entries == 4
    with pytest.raises(ValueError, match="needs a model of 5 to"):
        ModelLayout.of(MODEL, Part(HEAD.names, Subspace(5)))


def test_only_the_part_is_compared_and_moved() -> None:
    layout = ModelLayout.of(MODEL, HEAD)
    assert (layout.dimension, layout.entries) == (4, 4)
    trained = {"head.bias": np.array(1.5, dtype=np.float16), "head.weight": np.full(3, 2.0)}
    # Others may come along: whatever they hold, of whatever shape, does not count.
    others = {"trunk.weight": np.full(9, np.nan), "head.count": np.array("x"), "m": np.zeros(1)}
    for model in (trained, {**trained, **others}):
        np.testing.assert_array_equal(layout.difference(model, MODEL), [1.0, 0.0, -1.0, 1.0])
    moved = layout.add(MODEL, np.array([1.0, 0.0, -1.0, 1.0]))
    assert list(moved) == list(MODEL)
    assert all(moved[name] is MODEL[name] for name in MODEL if name not in (HEAD.names or ()))
    assert (moved["head.weight"] == trained["head.weight"]).all()
    assert moved["head.bias"] == trained["head.bias"]


@pytest.mark.parametrize(
    ("trained", "odd"), [({"head.weight": np.zeros(3)}, "head.bias"), ({}, "head.weight")]
)
def test_what_lacks_the_part_is_no_update(trained: dict[str, np.ndarray], odd: str) -> None:
    with pytest.raises(ValueError, match=f"arrays missing .*{odd}"):
        ModelLayout.of(MODEL, HEAD).difference(trained, MODEL)


def test_in_a_subspace_reports_are_about_the_projection() -> None:
    within = Subspace(3, 1)
    layout = ModelLayout.of(MODEL, Part(HEAD.names, within))
    assert (layout.dimension, layout.entries) == (4, 3)
    update, step = np.arange(4, dtype=np.float32), np.arange(3, dtype=np.float32)
    np.testing.assert_array_equal(layout.project(update), within.project(update))
    np.testing.assert_array_equal(layout.lift(step), within.lift(step, 4))
    whole = ModelLayout.of(MODEL, HEAD)
    assert whole.project(update) is update
    assert whole.lift(step) is step
