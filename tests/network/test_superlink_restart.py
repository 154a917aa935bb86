"""A SuperLink that is killed and started again: what the nodes and a new run do."""

from __future__ import annotations

import json
import time
from pathlib import Path

from tests.network.federation import Federation
from tests.network.sites import add_site, make_app, sealed, spent


def test_a_superlink_that_is_killed_goes_on_with_its_database(tmp_path: Path) -> None:
    received = tmp_path / "received.json"
    app = make_app(tmp_path)
    with Federation.start(tmp_path / "federation", tls=True) as federation:
        nodes = [add_site(federation, part, connect=False) for part in (0, 1)]
        for node in nodes:
            node.wait_until_connected()
        first = federation.submit(app, {"num-server-rounds": 50})
        first.wait_for("^round 1: accuracy", timeout=200)
        federation.superlink.kill()
        before = [(spent(node), sealed(node)) for node in nodes]
        assert all(cost >= 21.0 for cost, _ in before)
        restarted = time.monotonic()
        federation.restart_superlink()
        # The nodes come back by themselves, with the keys that the database holds.
        second = federation.submit(app, {"num-server-rounds": 1, "received": str(received)})
        second.wait_for("^finished", timeout=300)
        print(f"a new run had ended {time.monotonic() - restarted:.0f} s after the restart")
        after = [(spent(node), sealed(node)) for node in nodes]
    for (cost, reports), (cost_before, reports_before) in zip(after, before, strict=True):
        assert cost >= cost_before + 21.0
        assert reports > reports_before
    found = json.loads(received.read_text())
    assert found["metrics"]["1"]["accepted"] == 2
