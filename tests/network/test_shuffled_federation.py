"""Shuffled rounds between real processes: sealed reports, an analyzer's sums, a node's restart."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from flower_ldp import refusals
from flower_ldp.accounting.ledger import Ledger
from tests.network.federation import GUARDED, Federation
from tests.network.nodes import Node
from tests.network.samples import command, here
from tests.network.sites import make_app, sealed, spent
from tests.network.test_deployment_samples import split
from tests.unit.shuffle.serving import Service

pytest.importorskip("uvicorn")

NODES, FEW, EPSILON = 6, 2, 12.0
#: The guarded nodes: one as the others, and one whose owner trusts another analyzer.
RESTARTED, STRANGER = 4, 5
POLICY = """
data_id: {name}
ledger: ledger.sqlite
mode: deployment
messages:
  train:
    codeword: {{epsilon: 12.0}}
budgets:
  client:
    life: {{epsilon: 100.0}}
analyzer: {{key: '{key}', minimum: {minimum}}}
"""


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    """An analyzer that begins to serve, by the command of both samples."""
    folder = tmp_path / "analyzer"
    folder.mkdir(mode=0o700)
    found = Service(folder)
    shared = {"0.0.0.0": "127.0.0.1", "9443": str(found.port), "2000": str(FEW)}
    places = {"compose": "/analyzer", "systemd": "/etc/flower-ldp-analyzer"}
    first, second = (
        here(command(sample, "analyzer"), {**shared, place: str(folder)})
        for sample, place in places.items()
    )
    assert split(first) == split(second)
    found.begin(first)
    yield found
    found.stop(signal.SIGKILL)


def shuffled_app(folder: Path, settings: dict[str, str]) -> Path:
    app = make_app(folder, "shuffled_client")
    file = app / "pyproject.toml"
    text = file.read_text(encoding="utf-8").replace("server_app:app", "shuffled_server:app")
    more = "".join(f"{name} = {json.dumps(value)}\n" for name, value in settings.items())
    file.write_text(text + more, encoding="utf-8")
    return app


def add_site(federation: Federation, number: int, key: str) -> Node:
    name = f"ward-{number}"
    folder = federation.folder / name
    folder.mkdir()
    Ledger.open(folder / "ledger.sqlite", create=True).close()
    command = GUARDED if number >= RESTARTED else ("flower-supernode",)
    return federation.add_node(
        name,
        policy=POLICY.format(name=name, key=key, minimum=FEW),
        command=command,
        connect=False,
    )


def test_sealed_reports_become_sums_and_are_given_again(service: Service, tmp_path: Path) -> None:
    again, received = tmp_path / "again", tmp_path / "received.json"
    analyzer = service.analyzer()
    with Federation.start(tmp_path / "federation", tls=True, stores=False) as federation:
        keys = [analyzer.key] * STRANGER + ["ed25519:" + 64 * "a"]
        nodes = [add_site(federation, number, key) for number, key in enumerate(keys)]
        for node in nodes:
            node.wait_until_connected()
        settings = {
            "analyzer": analyzer.url,
            "key": analyzer.key,
            "token": str(analyzer.token),
            "certificates": str(analyzer.certificates),
            "again": str(again),
        }
        run = federation.submit(
            shuffled_app(tmp_path, settings),
            {"nodes": NODES, "epsilon": EPSILON, "received": str(received)},
        )
        run.wait_for("^trained", timeout=300)
        accounts = [(spent(node), sealed(node)) for node in nodes]
        nodes[RESTARTED].process.stop()
        nodes[RESTARTED].restart()
        (tmp_path / "named").write_text(nodes[RESTARTED].node_id)
        (tmp_path / "named").rename(again)
        run.wait_for("^finished", timeout=300)
        # The local epsilon once, also where the report was asked for again.
        assert accounts == [(EPSILON, 1)] * STRANGER + [(0.0, 0)]
        assert [(spent(node), sealed(node)) for node in nodes] == accounts
        restarted, stranger = nodes[RESTARTED].node_id, nodes[STRANGER].node_id
    found = json.loads(received.read_text())
    answers = found["answers"]
    assert found["again"] == {restarted: answers[restarted]}
    assert answers.pop(stranger) == refusals.REFUSED_POLICY
    assert {len(one) // 2 for one in answers.values()} == {1_140}
    assert len(set(answers.values())) == STRANGER
    # What was added up is the known update, and what it cost is said.
    first, second = found["metrics"]
    assert first["accepted"] + second["accepted"] == STRANGER
    assert first["epsilon-total"] == second["epsilon-total"] == EPSILON
    for metrics in found["metrics"]:
        assert 0.0 < metrics["central-epsilon"] <= metrics["central-epsilon-minimum"] <= EPSILON
    assert f"epsilon 12 per client (worst of {NODES} clients, a sum)" in run.output
    assert "a client's report in a round has the central epsilon" in run.output
    update = np.linspace(1.0, -1.0, 650)
    model = np.ravel(found["model"])
    assert update @ model > 0.1 * np.linalg.norm(update) * np.linalg.norm(model)
