"""A listed app on a guarded node, between real processes; and the same app but for one thing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("scipy")

from flower_ldp.accounting.ledger import Ledger
from flower_ldp.app_digests import bundle_of, digest_of, this_environment
from tests.network.federation import GUARDED, Federation
from tests.network.nodes import APP_STARTED
from tests.network.sites import make_app

POLICY = """
data_id: ward-0
ledger: ledger.sqlite
mode: deployment
examples: 8
messages:
  train:
    dpsgd:
      epsilon: 8.0
      delta: 1.0e-2
      unit: example
      plan: {{rounds: 2, steps: 3, rate: 1.0, noise: 2.1, clip: 1.0}}
  train.forward:
    embedding_dp: {{epsilon: 2.0, unit: example}}
budgets:
  example:
    life: {{epsilon: 20.0, delta: 0.5}}
apps:
  {digest}:
    releases: [dpsgd, embedding_dp]
    run_config:
      rate: {{numbers: [0.01, 0.5]}}
      received: {{values: {received}}}
    environment: {environment}
unlisted_apps: refuse
"""
REFUSED = dict.fromkeys(("train", "train.forward"), "ldp:refused:app")


def listed_app(folder: Path) -> Path:
    """Write the app's folder."""
    folder.mkdir()
    app = make_app(folder, "listed_client")
    settings = app / "pyproject.toml"
    text = settings.read_text().replace("server_app:app", "listed_server:app")
    settings.write_text(text + "rate = 0.1\n")
    return app


def test_a_listed_apps_reports_leave_and_those_of_one_that_differs_in_a_byte_do_not(
    tmp_path: Path,
) -> None:
    app, other = listed_app(tmp_path / "listed"), listed_app(tmp_path / "other")
    client = other / "network_app" / "listed_client.py"
    client.write_text(client.read_text().replace("GAIN = 1.0", "GAIN = 9.0"))
    received = {name: tmp_path / f"{name}.json" for name in ("right", "other")}
    policy = POLICY.format(
        digest=digest_of(bundle_of(app)),
        environment=this_environment().digest,
        received=json.dumps([str(one) for one in received.values()]),
    )
    folder = tmp_path / "federation" / "ward-0"
    with Federation.start(tmp_path / "federation", stores=False) as federation:
        folder.mkdir()
        Ledger.open(folder / "ledger.sqlite", create=True).close()
        node = federation.add_node(
            "ward-0",
            policy=policy,
            command=GUARDED,
            options=("--ldp-gate", "reports"),
        )
        runs = [
            federation.submit(which, {"received": str(received[name]), "rate": 0.2})
            for name, which in (("right", app), ("other", other))
        ]
        for run in runs:
            run.wait_for("^finished", timeout=300)
        assert node.log.count(APP_STARTED) == 2
    found = {name: json.loads(path.read_text()) for name, path in received.items()}
    assert found == {
        "right": {
            "train": ["model", {"weight": True, "bias": True}, {"num-examples": 8}],
            "train.forward": ["report", True],
        },
        "other": REFUSED,
    }
    with Ledger.open(folder / "ledger.sqlite", read_only=True) as ledger:
        ledger.verify()
        costs = [str(event.cost) for entry in ledger.entries() for event in entry.events]
    # What the other one was asked for was not charged.
    assert sorted(costs) == ["epsilon 2", "epsilon 8, delta 0.01"]
