"""SignDS over the network: TLS, registered keys, a policy and a ledger at each site."""

from __future__ import annotations

import json
from pathlib import Path

from tests.network.federation import Federation
from tests.network.processes import wait_for
from tests.network.sites import add_site, make_app, sealed, spent


def test_three_sites_train_and_one_of_them_stops_when_its_budget_is_spent(tmp_path: Path) -> None:
    received = tmp_path / "received.json"
    with Federation.start(tmp_path / "federation", tls=True) as federation:
        nodes = [
            add_site(federation, part, budget=budget, connect=False)
            for part, budget in enumerate((42.0, 1_000.0, 1_000.0))
        ]
        for node in nodes:
            node.wait_until_connected()
        stranger = federation.add_node("stranger", register=False, connect=False)
        in_the_clear = federation.add_node(
            "in-the-clear",
            options=("--insecure", "--max-retries", "1"),
            secure=False,
            connect=False,
        )
        run = federation.submit(
            make_app(tmp_path), {"num-server-rounds": 3, "nodes": 3, "received": str(received)}
        )
        run.wait_for("^finished", timeout=580)
        assert [(spent(node), sealed(node)) for node in nodes] == [
            (42.0, 2),
            (63.0, 3),
            (63.0, 3),
        ]
        for outsider in (stranger, in_the_clear):
            wait_for(
                lambda node=outsider: not node.process.is_running,  # type: ignore[misc]
                f"{outsider.folder.name} giving up",
                timeout=60,
                shown=lambda: "",
            )
            assert "SuperNode ID" not in outsider.log
    found = json.loads(received.read_text())
    assert [found["metrics"][n]["accepted"] for n in "123"] == [3, 3, 2]
    assert found["metrics"]["3"]["rejected-ldp:refused:budget"] == 1
    assert found["metrics"]["3"]["epsilon-total"] == 63.0
    # The server's report, taken from its proposals and the refusals, says what the ledgers say.
    assert sorted(units["client"] for units in found["spent"].values()) == [42.0, 63.0, 63.0]
    assert "at most epsilon 63 per client (worst of 3 clients, a sum)" in run.output
