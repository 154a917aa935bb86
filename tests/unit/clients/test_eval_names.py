"""The first names of protected evaluation stay, in every place that they had."""

from __future__ import annotations

from types import ModuleType

import pytest

from flower_ldp import clients, strategies
from flower_ldp.clients import reports as client_side
from flower_ldp.strategies import evaluation as server_side


@pytest.mark.parametrize("module", [strategies, server_side])
def test_the_strategy_is_the_same_class_under_both_names(module: ModuleType) -> None:
    assert module.LaplaceEvalStrategy is strategies.ProtectedEvalStrategy
    assert module.ProtectedEvalStrategy is strategies.ProtectedEvalStrategy


@pytest.mark.parametrize("module", [clients, client_side])
def test_the_release_is_the_same_class_under_both_names(module: ModuleType) -> None:
    assert module.LaplaceEvalRelease is clients.ProtectedEvalRelease
    assert module.ProtectedEvalRelease is clients.ProtectedEvalRelease


def test_a_class_in_place_of_a_release_is_named_as_it_is_now() -> None:
    with pytest.raises(TypeError, match=r"evaluate=ProtectedEvalRelease\(\)"):
        clients.LdpMod(evaluate=client_side.LaplaceEvalRelease)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"or ProtectedEvalRelease\(\)"):
        clients.LdpMod(train=8.0)  # type: ignore[arg-type]
