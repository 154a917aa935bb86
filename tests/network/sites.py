"""Sites for the network tests: an app to run, and a policy and a ledger for each node."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

from flower_ldp.accounting.ledger import Ledger
from flower_ldp.privacy import Unit
from tests.network.federation import Federation
from tests.network.nodes import Node

ROOT = Path(__file__).resolve().parents[2]
#: The app's digits are split into this many parts; the last is the server's.
PARTS = 4
#: Of the app with ``known_client``: a run in which only noise is random.
KNOWN = {
    "num-server-rounds": 5,
    "nodes": 3,
    "epsilon": 4.0,
    "magnitude-epsilon": 0.02,
    "rows": 6,
    "every": 2,
}
_POLICY = """
data_id: {name}
ledger: ledger.sqlite
mode: deployment
messages:
  train:
    signds: {{epsilon: 20.0}}
    magrr: {{epsilon: 1.0}}
  evaluate:
    laplace: {{epsilon: 16.0}}
    bounded_mean: {{epsilon: 1.0}}
budgets:
  client:
    run: {{epsilon: {run_budget}}}
    life: {{epsilon: {budget}}}
"""


def make_app(folder: Path, client: str = "gated_client") -> Path:
    """Copy the app, with one of its clients."""
    app = folder / f"app-{client}"
    shutil.copytree(ROOT / "tests" / "network" / "app", app)
    shutil.copy(ROOT / "LICENSE", app / "LICENSE")
    settings = app / "pyproject.toml"
    text = settings.read_text(encoding="utf-8")
    settings.write_text(text.replace("gated_client", client), encoding="utf-8")
    return app


def policy(name: str, budget: float = 1_000.0, run_budget: float = 1_000.0) -> str:
    """Return a policy that allows the app's SignDS rounds, at epsilon 21 each, and evaluations."""
    return _POLICY.format(name=name, budget=budget, run_budget=run_budget)


def add_site(
    federation: Federation,
    part: int,
    *,
    command: tuple[str, ...] = ("flower-supernode",),
    budget: float = 1_000.0,
    run_budget: float = 1_000.0,
    port: int | None = None,
    connect: bool = True,
    options: tuple[str, ...] = (),
    behaviour: dict[int, str] | None = None,
    settings: Mapping[str, int] | None = None,
    environment: Mapping[str, str] | None = None,
) -> Node:
    """Start a node that holds one part of the digits, with a new ledger.

    ``behaviour`` is what the app ``faulty_client`` does in which round, ``settings`` are more of
    the node's configuration, ``environment`` has variables of its own.
    """
    name = f"ward-{part}"
    folder = federation.folder / name
    folder.mkdir()
    Ledger.open(folder / "ledger.sqlite", create=True).close()
    (folder / "behaviour.json").write_text(json.dumps(behaviour or {}), encoding="utf-8")
    return federation.add_node(
        name,
        {
            "partition-id": part,
            "num-partitions": PARTS,
            "behaviour": str(folder / "behaviour.json"),
            "site": str(folder),
            **(settings or {}),
        },
        policy=policy(name, budget, run_budget),
        command=command,
        port=port,
        connect=connect,
        options=options,
        environment=environment,
    )


def spent(node: Node) -> float:
    """Return the epsilon that a site's ledger holds, after checking the whole ledger."""
    with Ledger.open(node.ledger) as ledger:
        ledger.verify()
        total = ledger.totals(node.folder.name).get(Unit.CLIENT)
    return 0.0 if total is None else total.epsilon / 10**12


def sealed(node: Node) -> int:
    """Return how many reports a site's ledger holds."""
    with Ledger.open(node.ledger) as ledger:
        return ledger.verify().sealed
