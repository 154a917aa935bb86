"""The guarded node loads no extension: it does not start with a policy that allows one."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import NoReturn

import pytest

from flower_ldp.accounting.ledger import Ledger
from flower_ldp.errors import ConfigError
from flower_ldp.extensions import Allowed, load_extension, loading
from flower_ldp.node import startup
from flower_ldp.node.runtime_api import AppCalls
from tests.extension_world import policy_text

DIGEST = "sha256:" + "0f" * 32
OPTIONS = argparse.Namespace(ldp_simulation=False, ldp_gate="no gate")
START = startup.Start(OPTIONS, argparse.Namespace())


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    def stop(reason: str) -> NoReturn:
        raise SystemExit(reason)

    monkeypatch.setattr(startup, "stop", stop)  # which would end the process of the tests
    monkeypatch.setattr(loading, "_never", [])
    monkeypatch.setattr("flower_ldp.inner_gate.guarded_node", False)
    monkeypatch.delenv("FLOWER_LDP_POLICY", raising=False)
    Ledger.open(tmp_path / "spent.sqlite", create=True).close()
    (tmp_path / "policy.yaml").write_text(policy_text(DIGEST))
    return {"ldp-policy": str(tmp_path / "policy.yaml")}


def test_a_policy_with_extensions_is_refused_at_the_start(config: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="the guarded node loads none"):
        START.policy(config)  # type: ignore[arg-type]
    with pytest.raises(SystemExit, match="the guarded node loads none"):
        START.setup(config, None, AppCalls())  # type: ignore[arg-type]


def test_one_that_gets_them_later_does_not_load_them_either(config: dict[str, str]) -> None:
    path = Path(config["ldp-policy"])
    path.write_text(path.read_text().partition("extensions:")[0])
    with pytest.raises(SystemExit, match="no gate"):  # after the policy was taken
        START.setup(config, None, AppCalls())  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="the guarded node loads none"):
        load_extension(Allowed("one_bit", "one-bit", "0.1.0", DIGEST))
