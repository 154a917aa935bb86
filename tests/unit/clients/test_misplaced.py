"""Hints on what stands behind the gate and cannot work there; they never stand in the way."""

from __future__ import annotations

import logging

import pytest

from flower_ldp.clients.calling import cause_of
from flower_ldp.clients.misplaced import hint_of
from flower_ldp.errors import ReleaseError, WireError


class UnspeakableError(Exception):
    """An app's error whose text is an error."""

    def __str__(self) -> str:
        raise SystemExit(3)


def test_an_error_that_cannot_be_shown_has_no_hint() -> None:
    assert hint_of(UnspeakableError()) == ""


@pytest.mark.parametrize("name", ["fixedclipping_mod", "adaptiveclipping_mod"])
def test_the_hint_follows_the_cause(name: str) -> None:
    error = ReleaseError(f"the app answered with an error: {name} requires the key")
    assert "take them out" in cause_of(error).splitlines()[-1]


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


def test_an_error_of_the_apps_own_has_none() -> None:
    with pytest.raises(KeyError) as failed:
        {}["clipping_norm"]
    assert hint_of(failed.value) == ""
