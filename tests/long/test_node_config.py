"""The name of the policy is the operator's: an app's is refused or forgotten, and never obeyed."""

from __future__ import annotations

import dataclasses
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable

from flower_ldp.accounting.ledger import Ledger
from flower_ldp.clients import LdpMod, SignDSRelease
from flower_ldp.clients.ldp_mod import kept_node_config
from flower_ldp.errors import ConfigError
from flower_ldp.mechanisms import SignDS
from flower_ldp.policy import find_policy
from flower_ldp.policy.files import no_environment
from flower_ldp.privacy import Unit
from tests.fixtures import context, message, proposal, record

MODEL = {"w": np.zeros(400, dtype=np.float32)}
POLICY = """\
data_id: {name}
ledger: {name}.sqlite
mode: deployment
messages: {{train: {{signds: {{epsilon: {epsilon}}}}}}}
budgets: {{client: {{life: {{epsilon: 1000.0}}}}}}
"""
KEY = "ldp-policy"


def policy(folder: Path, name: str, epsilon: float) -> str:
    path = folder / f"{name}.yaml"
    path.write_text(POLICY.format(name=name, epsilon=epsilon))
    path.chmod(0o600)
    Ledger.open(folder / f"{name}.sqlite", create=True).close()
    return str(path)


@pytest.fixture(autouse=True)
def _no_other_policy() -> Iterator[None]:
    with no_environment():
        yield


@pytest.fixture
def own(tmp_path: Path) -> str:
    return policy(tmp_path, "operator", 4.0)


@pytest.fixture
def theirs(tmp_path: Path) -> str:
    return policy(tmp_path, "app", 100.0)


def spent(path: str) -> float:
    with Ledger.open(Path(path).with_suffix(".sqlite")) as ledger:
        return sum(
            float(ledger.totals(name)[Unit.CLIENT].epsilon_text) for name in ledger.data_ids()
        )


def on(path: str) -> Context:
    return dataclasses.replace(context(), node_config={KEY: path, "partition-id": 0})


def asked(number: int, epsilon: float = 4.0) -> Message:
    return message(proposal(MODEL, SignDS(epsilon=epsilon, k=0.2)), message_id=f"m-{number}")


def hostile_app(gate: list[Callable[..., Message]], change: Callable[[Context], None]) -> ClientApp:
    """Return Flower's app, whose function answers, and changes its context."""
    app = ClientApp(mods=gate)

    @app.train()
    def train(sent: Message, given: Context) -> Message:
        change(given)
        update = np.ones(400, dtype=np.float32)
        return Message(RecordDict({"arrays": record({"w": update})}), reply_to=sent)

    return app


def behind(sent: Message, given: Context, call_next: ClientAppCallable) -> Message:
    """Give what lies inside a context of its own, as the gate does."""
    with kept_node_config(given) as inner:
        return call_next(sent, inner)


def name_another(path: str) -> Callable[[Context], None]:
    def change(given: Context) -> None:
        given.node_config[KEY] = path
        given.node_config["partition-id"] = 7
        given.node_id = 99

    return change


def stored(given: Context) -> Context:
    """Return a context as Flower keeps it between two messages."""
    from flwr.common.serde import context_from_proto, context_to_proto

    return context_from_proto(context_to_proto(given))


@pytest.mark.parametrize("more", ["", "answer_after: {train: 0.3}\n"])
def test_the_next_message_is_judged_by_the_operators_policy(
    own: str, theirs: str, more: str
) -> None:
    with Path(own).open("a") as file:
        file.write(more)
    given = on(own)
    for number in range(3):
        # Flower starts a process for each message, so each has a gate that has seen nothing.
        gate = LdpMod(train=SignDSRelease())
        app = hostile_app([gate], name_another(theirs))
        assert not app(asked(number), given).has_error()
        assert given.node_config == {KEY: own, "partition-id": 0}
        assert given.node_id == context().node_id
        given = stored(given)
    dear = hostile_app([LdpMod(train=SignDSRelease())], lambda _: None)
    assert dear(asked(9, 100.0), given).error.reason == "ldp:refused:policy"
    assert (spent(own), spent(theirs)) == (12.0, 0.0)


def test_another_configuration_in_place_of_the_first_is_not_kept(own: str, theirs: str) -> None:
    given = on(own)

    def change(inner: Context) -> None:
        inner.node_config = {KEY: theirs}

    app = hostile_app([LdpMod(train=SignDSRelease())], change)
    assert not app(asked(1), given).has_error()
    assert given.node_config == {KEY: own, "partition-id": 0}


def test_what_an_app_does_to_its_context_later_changes_nothing(own: str, theirs: str) -> None:
    given = on(own)
    left: list[Context] = []
    app = hostile_app([LdpMod(train=SignDSRelease())], left.append)
    app(asked(1), given)
    name_another(theirs)(left[0])
    assert (given.node_config[KEY], given.node_id) == (own, context().node_id)


def test_the_state_is_the_apps_and_the_runs_configuration_is_not(own: str) -> None:
    """A rehearsal sees the run's configuration, and what it says leaves."""
    given = on(own)
    given.run_config = {"rate": 0.1}

    def change(inner: Context) -> None:
        inner.state = RecordDict({"rounds": ConfigRecord({"seen": 1})})
        inner.run_config["rate"] = 0.5
        inner.run_config["labels"] = "of the data"

    hostile_app([behind], change)(asked(1), given)
    assert given.state.config_records["rounds"]["seen"] == 1
    assert given.run_config == {"rate": 0.1}


@pytest.mark.parametrize("more", ["", "answer_after: {train: 0.3}\n"])
def test_a_state_that_is_none_is_not_given_to_flower(own: str, more: str) -> None:
    with Path(own).open("a") as file:
        file.write(more)
    given = on(own)

    def change(inner: Context) -> None:
        inner.state = None  # type: ignore[assignment]

    app = hostile_app([LdpMod(train=SignDSRelease())], change)
    assert not app(asked(1), given).has_error()
    assert stored(given).state == RecordDict()


def test_an_app_that_raises_keeps_nothing_of_it_either(own: str, theirs: str) -> None:
    given = on(own)

    def change(inner: Context) -> None:
        inner.node_config[KEY] = theirs
        inner.state["done"] = ConfigRecord({})
        raise KeyError("late")

    app = hostile_app([behind], change)
    with pytest.raises(KeyError, match="late"):
        app(asked(1), given)
    assert given.node_config[KEY] == own
    assert "done" in given.state


class Trap(Context):
    """A context whose state is code of the app's."""

    @property  # type: ignore[override]
    def state(self) -> RecordDict:
        raise SystemExit("no")


def take_away(given: Context) -> None:
    del given.state
    del given.run_config


def put_nonsense(given: Context) -> None:
    given.state = given.run_config = cast(Any, object())


def set_a_trap(given: Context) -> None:
    given.__class__ = Trap


@pytest.mark.parametrize("change", [take_away, put_nonsense, set_a_trap])
@pytest.mark.parametrize("more", ["", "answer_after: {train: 0.3}\n"])
def test_a_context_that_cannot_be_kept_changes_no_answer(
    own: str, more: str, change: Callable[[Context], None]
) -> None:
    """It was an error after the charge: a message at no price."""
    with Path(own).open("a") as file:
        file.write(more)
    given = on(own)
    given.state["seen"] = ConfigRecord({"rounds": 1})
    given.run_config = {"rate": 0.5}
    answer = hostile_app([LdpMod(train=SignDSRelease())], change)(asked(1), given)
    assert not answer.has_error()
    assert stored(given).state.config_records["seen"]["rounds"] == 1
    assert given.run_config == {"rate": 0.5}


# One gate, one name.


def test_a_context_that_names_another_policy_is_refused(
    own: str, theirs: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="flower_ldp")  # the first of a run is a warning
    app = hostile_app([LdpMod(train=SignDSRelease())], lambda _: None)
    assert not app(asked(1), on(own)).has_error()
    for number in (2, 3):
        assert app(asked(number), on(theirs)).error.reason == "ldp:refused:policy"
    assert f"the node was started with the policy {own}, and now {theirs} is named" in caplog.text
    assert not app(asked(4), on(own)).has_error()
    assert (spent(own), spent(theirs)) == (8.0, 0.0)


def test_a_name_that_leads_elsewhere_from_another_folder_is_refused(
    tmp_path: Path, own: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    other = policy(tmp_path / "elsewhere", "operator", 100.0)
    monkeypatch.chdir(tmp_path)
    app = hostile_app([LdpMod(train=SignDSRelease())], lambda _: os.chdir(Path(other).parent))
    assert not app(asked(1), on("operator.yaml")).has_error()
    assert app(asked(2), on("operator.yaml")).error.reason == "ldp:refused:policy"
    assert (spent(own), spent(other)) == (4.0, 0.0)


def test_nodes_in_one_process_have_a_name_each(own: str, theirs: str) -> None:
    first, second = on(own), on(theirs)
    second.node_id = 8
    app = hostile_app([LdpMod(train=SignDSRelease())], lambda _: None)
    assert not app(asked(1), first).has_error()
    assert not app(asked(2), second).has_error()
    assert not app(asked(3), first).has_error()
    second.node_config[KEY] = own
    assert app(asked(4), second).error.reason == "ldp:refused:policy"


def test_the_variable_may_not_change_either(
    own: str, theirs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLOWER_LDP_POLICY", own)

    def change(_: Context) -> None:
        os.environ["FLOWER_LDP_POLICY"] = theirs

    app = hostile_app([LdpMod(train=SignDSRelease())], change)
    assert not app(asked(1), context()).has_error()
    assert app(asked(2), context()).error.reason == "ldp:refused:policy"
    assert (spent(own), spent(theirs)) == (4.0, 0.0)


# The environment that the process was started with.

FIND = """
import os, sys
{change}
from flower_ldp.policy import find_policy
{later}
for config in ({config}):
    found = find_policy(config)
    print(found and found.data_id)
"""


def started(own: str | None, **code: str) -> tuple[str, str]:
    environment = {**os.environ}
    environment.pop("FLOWER_LDP_POLICY", None)
    if own is not None:
        environment["FLOWER_LDP_POLICY"] = own
    text = FIND.format(**{"change": "", "later": "", "config": "{},", **code})
    done = subprocess.run(
        [sys.executable, "-c", text], env=environment, capture_output=True, text=True, check=False
    )
    return done.stdout.strip(), done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="Linux alone tells what a process began with")
def test_a_variable_that_is_set_before_this_package_is_imported_is_refused(
    own: str, theirs: str
) -> None:
    change = f"os.environ['FLOWER_LDP_POLICY'] = {theirs!r}"
    found, error = started(own, change=change)
    assert found == ""
    assert f"when this process was started, names {own}" in error


def test_a_variable_that_is_taken_away_still_names_the_policy(own: str, theirs: str) -> None:
    gone = "del os.environ['FLOWER_LDP_POLICY']"
    found, error = started(own, later=gone, config=f"{{}}, {{'ldp-policy': {theirs!r}}}")
    assert found == "operator"  # of the first alone
    assert "two policies" in error


def test_a_program_may_set_the_variable_that_it_was_started_without(own: str) -> None:
    assert started(None, later=f"os.environ['FLOWER_LDP_POLICY'] = {own!r}")[0] == "operator"
    assert started(None)[0] == "None"


def test_an_audit_brings_its_own_policy(theirs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flower_ldp.policy.files._at_start", "/nowhere/policy.yaml")
    with pytest.raises(ConfigError, match="two policies"):
        find_policy({KEY: theirs})
    with no_environment():
        found = find_policy({KEY: theirs})
    assert found is not None
    assert found.data_id == "app"
    with pytest.raises(ConfigError, match="cannot be read"):
        find_policy({})
