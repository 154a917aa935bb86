"""Hints on what stands behind the gate and cannot work there; they never stand in the way."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
from flwr.app import RecordDict

from flower_ldp.clients.diagnostics import cause_of, hint_of
from flower_ldp.clients.reports import OpenUpdate
from flower_ldp.errors import ReleaseError, WireError
from flower_ldp.mechanisms import Gaussian
from flower_ldp.wire.layout import ModelLayout
from flower_ldp.wire.proposal import UpdateProposal
from tests.fixtures import record


class UnspeakableError(Exception):
    """An app's error whose text is an error."""

    def __str__(self) -> str:
        raise SystemExit(3)


def test_the_sentence_comes_first_and_an_own_errors_traceback_at_debug_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def said(error: Exception) -> list[str]:
        try:
            raise error
        except Exception as raised:
            return cause_of(raised).splitlines()

    own = WireError("layout", "arrays missing ['bias']")
    assert said(own) == ["flower_ldp.errors.WireError: layout: arrays missing ['bias']"]
    first, *trace = said(KeyError("bias"))
    assert first == "KeyError: 'bias'"
    assert trace[0].startswith("Traceback")
    with caplog.at_level(logging.DEBUG, logger="flower_ldp"):
        assert said(own)[1].startswith("Traceback")


def test_an_error_of_the_apps_own_has_none_and_of_flowers_mods_what_to_do() -> None:
    with pytest.raises(KeyError) as failed:
        {}["clipping_norm"]
    assert hint_of(failed.value) == ""
    assert hint_of(UnspeakableError()) == ""
    for name in ("fixedclipping_mod", "adaptiveclipping_mod"):
        error = ReleaseError(f"the app answered with an error: {name} requires the key")
        assert "take them out" in cause_of(error).splitlines()[-1]


def trained(how: str, labels: int) -> Any:
    """Train five classes of four features on rows of fewer classes, as apps of scikit-learn do."""
    linear = pytest.importorskip("sklearn.linear_model")
    rows, found = np.random.default_rng(0).random((20, 4)), np.arange(20) % labels
    if how == "warm fit":
        model = linear.LogisticRegression(warm_start=True, max_iter=1)
    else:
        model = linear.SGDClassifier(loss="log_loss", warm_start=how == "warm descent")
    model.classes_, model.coef_, model.intercept_ = np.arange(5), np.zeros((5, 4)), np.zeros(5)
    if how.startswith("partial"):
        all_of_them = np.arange(5 if how == "partial fit of all" else labels)
        return model.partial_fit(rows, found, classes=all_of_them)
    return model.fit(rows, found)


def complaint_of(arrays: dict[str, Any], layout: ModelLayout) -> str | None:
    """Return what a release complains of about a trained model."""
    opened = OpenUpdate(UpdateProposal(Gaussian(1.0, 1e-5, 1.0)), layout, arrays)
    return opened.complaint(RecordDict({"a": record(arrays)}))


@pytest.mark.parametrize(
    ("how", "labels"),
    [
        ("warm fit", 3),
        ("warm fit", 2),
        ("warm fit", 1),
        ("warm descent", 3),
        ("partial fit", 3),
        ("fit", 3),
        ("fit", 2),
    ],
)
def test_a_client_that_lacks_a_class_is_told_of_partial_fit(how: str, labels: int) -> None:
    layout = ModelLayout.of({"coef": np.zeros((5, 4)), "intercept": np.zeros(5)})

    def replied() -> None:
        model = trained(how, labels)
        arrays = {"coef": model.coef_, "intercept": model.intercept_}
        complaint = complaint_of(arrays, layout)
        if complaint is not None:  # as the gate makes of it
            raise ReleaseError(complaint)

    with pytest.raises((ValueError, ReleaseError)) as failed:
        replied()
    assert "partial_fit(rows, labels, classes=np.arange(n))" in hint_of(failed.value)
    how = "partial fit of all"
    replied()


def test_another_shape_has_no_such_hint() -> None:
    layout = ModelLayout.of({"w": np.zeros((5, 4)), "b": np.zeros(())})
    for wrong in ({"w": np.zeros((6, 4))}, {"w": np.zeros(20)}, {"b": np.zeros(1)}):
        arrays = {"w": np.zeros((5, 4)), "b": np.zeros(()), **wrong}
        complaint = complaint_of(arrays, layout)
        assert complaint is not None
        assert hint_of(ReleaseError(complaint)) == ""
