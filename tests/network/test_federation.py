"""SignDS over the network: TLS, registered keys, a policy and a ledger at each site."""

from __future__ import annotations

import json
from pathlib import Path

from tests.network.federation import Federation
from tests.network.sites import add_site, make_app, sealed, spent


def test_a_client_whose_budget_runs_out_refuses_and_the_others_go_on(tmp_path: Path) -> None:
    received = tmp_path / "received.json"
    with Federation.start(tmp_path / "federation", tls=True) as federation:
        nodes = [
            add_site(federation, part, budget=budget, connect=False)
            for part, budget in enumerate((42.0, 1_000.0))
        ]
        for node in nodes:
            node.wait_until_connected()
        run = federation.submit(
            make_app(tmp_path), {"num-server-rounds": 3, "received": str(received)}
        )
        run.wait_for("^finished", timeout=300)
        assert [(spent(node), sealed(node)) for node in nodes] == [(42.0, 2), (63.0, 3)]
    found = json.loads(received.read_text())
    assert [found["metrics"][n]["accepted"] for n in "123"] == [2, 2, 1]
    assert found["metrics"]["3"]["rejected-ldp:refused:budget"] == 1
