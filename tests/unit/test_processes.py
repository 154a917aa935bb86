"""In how many processes tests run: one for each core, but where engines and networks wait."""

from __future__ import annotations

import pytest

from tests.conftest import TESTS, _holds_engines


@pytest.mark.parametrize("path", [".", "network", "simulation/test_engine.py", "hostile"])
def test_engines_are_found_in_their_folders_and_above(path: str) -> None:
    assert _holds_engines(TESTS / path)
    assert _holds_engines(TESTS.parent)


@pytest.mark.parametrize("path", ["unit", "unit/simulation", "statistical", "long"])
def test_folders_of_the_same_name_elsewhere_hold_none(path: str) -> None:
    assert not _holds_engines(TESTS / path)
