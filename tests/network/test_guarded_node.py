"""The guarded node's command: without what it needs it does not start, and says what is missing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.network.federation import GUARDED
from tests.network.processes import free_port
from tests.network.sites import policy

CASES = [
    ([], "no policy is named"),
    (["--ldp-policy", "simulation.yaml"], "--ldp-simulation"),
    (["--ldp-policy", "/nowhere/policy.yaml"], "/nowhere/policy.yaml"),
    (["--ldp-policy", "policy.yaml"], "ledger.sqlite does not exist"),
    (["--ldp-policy", "policy.yaml", "--allow-runtime-dependency-installation"], "an app would"),
    (["--node-config", 'ldp-policy="other.yaml"', "--ldp-policy", "policy.yaml"], "two pol"),
]
#: Loads what the node's command loads, which takes seconds, and runs each command in a child.
_EACH = """
import json, os, sys
import flower_ldp.node.runtime_api, flower_ldp.node.flower_api
from flower_ldp.node.command import main
found = []
for number, words in enumerate(json.loads(sys.argv[1])):
    sys.stdout.flush()
    pid = os.fork()
    if not pid:
        os.dup2(os.open(f"{number}.log", os.O_CREAT | os.O_WRONLY), 2)
        sys.argv = ["flower-ldp-supernode", *words]
        try:
            main()
        finally:
            os._exit(77)  # no other case is this child's
    found.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
print(json.dumps(found))
"""


def test_the_node_does_not_start_without_policy_and_ledger(tmp_path: Path) -> None:
    """And it warns of --insecure, once, where it gets that far."""
    (tmp_path / "policy.yaml").write_text(policy("ward-0"))
    (tmp_path / "other.yaml").write_text(policy("ward-0"))
    simulated = policy("ward-0").replace("mode: deployment", "mode: simulation")
    (tmp_path / "simulation.yaml").write_text(simulated)
    site = GUARDED[GUARDED.index("flower_ldp.node") + 1 :]
    words = [[*site, "--insecure", "--port", str(free_port()), *case] for case, _ in CASES]
    done = subprocess.run(
        [sys.executable, "-c", _EACH, json.dumps(words)],
        cwd=tmp_path,
        env={**os.environ, "FLWR_HOME": str(tmp_path), "FLWR_DISABLE_UPDATE_CHECK": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == [2] * len(CASES)
    for number, (_, complaint) in enumerate(CASES):
        said = (tmp_path / f"{number}.log").read_text()
        assert "not started" in said
        assert complaint in said
        refused_before = complaint == "an app would"
        assert said.count("--insecure: no TLS") == (not refused_before)
