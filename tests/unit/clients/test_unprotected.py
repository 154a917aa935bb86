"""NOT_ENCRYPT: a raw reply leaves if the owner's policy lists its message, and is counted."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Message

from flower_ldp import inner_gate
from flower_ldp.accounting.ledger import Ledger
from flower_ldp.clients import LdpMod, SignDSRelease, UnprotectedMod
from flower_ldp.clients.unprotected import _warn_once
from flower_ldp.mechanisms import SignDS
from tests.fixtures import context, make_site, message, not_called, payload, policy_text, proposal
from tests.unit.clients.world import App, training

MODEL = {"w": np.zeros(40, dtype=np.float32)}
RAW = {"w": np.ones(40, dtype=np.float32)}
app = training(RAW)


def site(folder: Path, allowed: str, mode: str = "deployment") -> Context:
    text = policy_text("{train: {signds: {epsilon: 4.0}}}", mode=mode)
    return make_site(folder, f"{text}\nnot_encrypt: {allowed}\n")


def counted(folder: Path, account: str = "ward-7") -> int:
    with Ledger.open(folder / "ledger.sqlite") as ledger:
        return ledger.counts(account)["unprotected"]


def ask(mod: UnprotectedMod, node: Context, inner: App = app, kind: str = "train") -> Message:
    return mod(message(proposal(MODEL, SignDS(4.0, 0.2)), kind=kind), node, inner)


@pytest.mark.parametrize(
    ("allowed", "mode", "leaves"),
    [
        ("[train]", "deployment", True),
        ("[train, evaluate]", "simulation", True),
        ("[evaluate]", "deployment", False),
        ("[]", "deployment", False),
        ("[]", "simulation", False),
    ],
)
def test_the_policy_decides_by_name(
    allowed: str, mode: str, leaves: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _warn_once.cache_clear()
    node = site(tmp_path, allowed, mode)
    with caplog.at_level(logging.INFO, logger="flower_ldp"):
        found = ask(UnprotectedMod(("train",)), node, app if leaves else not_called)
    if leaves:
        assert np.array_equal(found.content["arrays"]["w"].numpy(), RAW["w"])  # type: ignore[index]
        assert "RAW UPDATES LEAVE THE CLIENTS" in caplog.text
        assert counted(tmp_path, "ward-7/node-7" if mode == "simulation" else "ward-7") == 1
    else:
        assert found.error.reason == "ldp:refused:policy"
        assert "To allow it: not_encrypt: [train]" in caplog.text


def test_without_a_policy_nothing_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FLOWER_LDP_POLICY", raising=False)
    found = ask(UnprotectedMod(("train",)), context(), not_called)
    assert found.error.reason == "ldp:refused:policy"


def test_the_app_cannot_change_what_the_node_is_configured_with(tmp_path: Path) -> None:
    node = site(tmp_path, "[train]")
    before = dict(node.node_config)

    def changing(sent: Message, own: Context) -> Message:
        own.node_config["ldp-policy"] = "/elsewhere"
        own.run_config["seed"] = 1
        own.state["kept"] = ConfigRecord({"round": 1})
        return app(sent, own)

    assert not ask(UnprotectedMod(("train",)), node, changing).has_error()
    assert (dict(node.node_config), dict(node.run_config)) == (before, {})
    assert node.state["kept"]["round"] == 1  # type: ignore[index]


def test_all_other_messages_are_the_gates(tmp_path: Path) -> None:
    node = site(tmp_path, "[train, evaluate]")
    mod = UnprotectedMod(("evaluate",), LdpMod(train=SignDSRelease()))
    assert payload(ask(mod, node))
    assert counted(tmp_path) == 0
    refused = ask(UnprotectedMod(("train",)), node, not_called, "evaluate")
    assert refused.error.reason == "ldp:refused:message"


def test_another_policy_than_the_nodes_first_is_refused(tmp_path: Path) -> None:
    mod = UnprotectedMod(("train",))
    for name, allowed in (("first", "[]"), ("second", "[train]")):
        (tmp_path / name).mkdir()
        found = ask(mod, site(tmp_path / name, allowed), not_called)
        assert found.error.reason == "ldp:refused:policy"


def test_a_guarded_node_sends_none_whatever_its_policy_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inner_gate, "guarded_node", True)
    found = ask(UnprotectedMod(("train",)), site(tmp_path, "[train]"), not_called)
    assert found.error.reason == "ldp:refused:policy"


def test_in_an_app_of_a_guarded_node_the_nodes_gate_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inner_gate, "node_privatizes", True)
    node = site(tmp_path, "[train]")
    assert not ask(UnprotectedMod(("train",)), node).has_error()  # to the node, not to the server
    assert counted(tmp_path) == 0
