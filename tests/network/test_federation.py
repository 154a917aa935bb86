"""SignDS over the network: TLS, registered keys, a policy and a ledger at each site."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from flower_ldp.accounting.ledger import Ledger
from flower_ldp.privacy import Unit
from tests.network.federation import Federation

ROOT = Path(__file__).resolve().parents[2]
POLICY = """
data_id: {name}
ledger: ledger.sqlite
mode: deployment
messages:
  train:
    signds: {{epsilon: 20.0}}
    magrr: {{epsilon: 1.0}}
budgets:
  client:
    life: {{epsilon: {budget}}}
"""


def make_app(folder: Path, client: str = "gated_client") -> Path:
    """Copy the app, with one of its clients."""
    app = folder / "app"
    shutil.copytree(ROOT / "tests" / "network" / "app", app)
    shutil.copy(ROOT / "LICENSE", app / "LICENSE")
    settings = app / "pyproject.toml"
    text = settings.read_text(encoding="utf-8")
    settings.write_text(text.replace("gated_client", client), encoding="utf-8")
    return app


def test_a_client_whose_budget_runs_out_refuses_and_the_others_go_on(tmp_path: Path) -> None:
    received = tmp_path / "received.json"
    with Federation.start(tmp_path / "federation", tls=True) as federation:
        for number, budget in enumerate((42.0, 1000.0)):
            name = f"ward-{number}"
            (tmp_path / "federation" / name).mkdir()
            Ledger.open(tmp_path / "federation" / name / "ledger.sqlite", create=True).close()
            federation.add_node(
                name,
                {"partition-id": number, "num-partitions": 4},
                policy=POLICY.format(name=name, budget=budget),
            )
        run = federation.submit(
            make_app(tmp_path), {"num-server-rounds": 3, "received": str(received)}
        )
        run.wait_for("^finished", timeout=200)
        ledgers = [node.ledger for node in federation.nodes.values()]
    found = json.loads(received.read_text())
    assert [found["metrics"][n]["accepted"] for n in "123"] == [2, 2, 1]
    assert found["metrics"]["3"]["rejected-ldp:refused:budget"] == 1
    # The server's report, taken from its proposals and the refusals, says what the ledgers say.
    assert sorted(units["client"] for units in found["spent"].values()) == [42.0, 63.0]
    assert "at most epsilon 63 per client" in run.output
    for path, spent in zip(ledgers, (42.0, 63.0), strict=True):
        with Ledger.open(path) as ledger:
            (name,) = ledger.data_ids()
            total = ledger.totals(name)[Unit.CLIENT]
            assert total.epsilon == spent * 10**12
            assert ledger.verify().sealed == round(spent / 21)
