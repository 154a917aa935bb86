"""Flower's mods beside the gate: behind it, and outside of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from flwr.app import Message
from flwr.client.mod import secaggplus_mod
from flwr.clientapp.mod import (
    LocalDpMod,
    adaptiveclipping_mod,
    arrays_size_mod,
    fixedclipping_mod,
    message_size_mod,
)
from flwr.clientapp.typing import Mod

from flower_ldp.mechanisms import SignDS
from flower_ldp.strategies import RunStopped, SignDSStrategy
from tests.unit.combines.world import app_of, first_error, gate, has_moved, one_step, run, told

pytestmark = [
    pytest.mark.usefixtures("simulation_policy"),
    pytest.mark.filterwarnings("ignore::flower_ldp.mechanisms.signds.SmallTopSetWarning"),
]

MODS: dict[str, Callable[[], Mod]] = {
    "arrays_size_mod": lambda: arrays_size_mod,
    "message_size_mod": lambda: message_size_mod,
    "LocalDpMod": lambda: LocalDpMod(1.0, 2.0, 1.0, 1e-5),
    "fixedclipping_mod": lambda: fixedclipping_mod,
    "adaptiveclipping_mod": lambda: adaptiveclipping_mod,
    "secaggplus_mod": lambda: secaggplus_mod,
}
WORKS = ("arrays_size_mod", "message_size_mod", "LocalDpMod")
HINTS = {
    "fixedclipping_mod": "take them out",
    "adaptiveclipping_mod": "take them out",
    "secaggplus_mod": "secaggplus_mod cannot stand behind LdpMod: take it out",
}


def test_the_page_has_a_row_for_each_mod() -> None:
    assert told("Flower's mods") == {name: "works" if name in WORKS else "fails" for name in MODS}


@pytest.mark.parametrize("name", WORKS)
def test_a_mod_behind_the_gate_that_works_and_outside_of_it_where_it_only_looks(name: str) -> None:
    outside = [] if name == "LocalDpMod" else [MODS[name]()]
    result = run(SignDSStrategy(SignDS(8.0)), app_of(one_step, [*outside, gate(), MODS[name]()]))
    assert has_moved(result)
    assert result.train_metrics_clientapp[1]["accepted"] == 3


@pytest.mark.parametrize("name", HINTS)
def test_a_mod_behind_the_gate_that_cannot_work_is_told_in_words(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    called: list[Message] = []
    app = app_of(one_step, [gate(), MODS[name]()], called)
    with pytest.raises(RunStopped, match="ldp:failed 3 times"):
        run(SignDSStrategy(SignDS(8.0)), app)
    assert called == []
    assert HINTS[name] in first_error(caplog)


@pytest.mark.parametrize("name", ["LocalDpMod", "fixedclipping_mod", "secaggplus_mod"])
def test_mods_that_change_models_cannot_stand_outside(name: str) -> None:
    with pytest.raises(RunStopped, match="no round gave a model"):
        run(SignDSStrategy(SignDS(8.0)), app_of(one_step, [MODS[name](), gate()]))
