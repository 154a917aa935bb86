"""The guarded node's command: without what it needs it does not start, and says what is missing."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.network.federation import GUARDED
from tests.network.processes import free_port
from tests.network.sites import policy


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "no policy is named"),
        (["--ldp-policy", "simulation.yaml"], "--ldp-simulation"),
        (["--ldp-policy", "/nowhere/policy.yaml"], "/nowhere/policy.yaml"),
        (["--ldp-policy", "policy.yaml"], "ledger.sqlite does not exist"),
        (["--node-config", 'ldp-policy="other.yaml"', "--ldp-policy", "policy.yaml"], "two pol"),
    ],
)
def test_the_node_does_not_start_without_policy_and_ledger(
    arguments: list[str], complaint: str, tmp_path: Path
) -> None:
    (tmp_path / "policy.yaml").write_text(policy("ward-0"))
    (tmp_path / "other.yaml").write_text(policy("ward-0"))
    simulated = policy("ward-0").replace("mode: deployment", "mode: simulation")
    (tmp_path / "simulation.yaml").write_text(simulated)
    done = subprocess.run(
        [*GUARDED, "--insecure", "--port", str(free_port()), *arguments],
        cwd=tmp_path,
        env={**os.environ, "FLWR_HOME": str(tmp_path), "FLWR_DISABLE_UPDATE_CHECK": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 2
    assert "not started" in done.stderr
    assert complaint in done.stderr
