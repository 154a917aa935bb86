"""SignDS and protected evaluation over the network: TLS, registered keys, a ledger at each site."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flower_ldp.simulation import load_folder, run_in_process
from tests.network.agreement import differences, rejected, sizes, statistics
from tests.network.federation import GUARDED, Federation
from tests.network.nodes import Node
from tests.network.processes import wait_for
from tests.network.sites import KNOWN, add_site, make_app, sealed, spent

#: Two rounds of training at 21 and evaluation at 17: more than the poor site has for a run.
COST = 76.0
#: What the reports of the run in which only noise is random cost in all.
KNOWN_COST = 46.1  # 5 times 4.02 and 2 times 13


@pytest.fixture(scope="module")
def three_sites(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """A SuperLink and three sites: one has a small budget for each run, one a guarded node.

    The app has a gate of its own, so the guarded node lets its paid reports out.
    """
    with Federation.start(
        tmp_path_factory.mktemp("federation"), tls=True, stores=False
    ) as federation:
        guarded: dict[str, Any] = {"command": GUARDED, "options": ("--ldp-gate", "reports")}
        for part, how in enumerate(({"run_budget": 67.0}, {}, guarded)):
            add_site(federation, part, connect=False, **how)
        for node in federation.nodes.values():
            node.wait_until_connected()
        yield federation


def accounts(federation: Federation) -> list[tuple[float, int]]:
    """Return what each site has spent, and how many reports it has released."""
    nodes = [federation.nodes[f"ward-{part}"] for part in range(3)]
    return [(spent(node), sealed(node)) for node in nodes]


def charged(
    before: list[tuple[float, int]], after: list[tuple[float, int]]
) -> list[tuple[float, int]]:
    return [(round(b[0] - a[0], 9), b[1] - a[1]) for a, b in zip(before, after, strict=True)]


def wait_for_end(node: Node) -> None:
    wait_for(
        lambda: not node.process.is_running,
        f"{node.folder.name} giving up",
        timeout=60,
        shown=lambda: node.log,
    )


def test_three_sites_train_and_evaluate_and_one_of_them_stops_when_its_budget_is_spent(
    three_sites: Federation, tmp_path: Path
) -> None:
    received = tmp_path / "received.json"
    before = accounts(three_sites)
    no_apps = ("--isolation", "process")
    stranger = three_sites.add_node("stranger", options=no_apps, register=False, connect=False)
    in_the_clear = three_sites.add_node(
        "in-the-clear",
        options=(*no_apps, "--insecure", "--max-retries", "1"),
        secure=False,
        connect=False,
    )
    run = three_sites.submit(
        make_app(tmp_path),
        {"num-server-rounds": 2, "nodes": 3, "rows": 8, "received": str(received)},
    )
    run.wait_for("^finished", timeout=580)
    assert charged(before, accounts(three_sites)) == [(59.0, 3), (COST, 4), (COST, 4)]
    for outsider in (stranger, in_the_clear):
        wait_for_end(outsider)
        assert "SuperNode ID" not in outsider.log
    found = json.loads(received.read_text())
    assert [found["metrics"][n]["accepted"] for n in "12"] == [3, 3]
    assert [found["private"][n]["accepted"] for n in "12"] == [3, 2]
    assert found["private"]["2"]["rejected-ldp:refused:budget"] == 1
    for private in found["private"].values():
        assert private["score-rows"] == 8 * private["accepted"]
        # the mean of losses in [0, 4], with noise of epsilon 1: 14 deviations
        assert abs(private["loss"]) < 4 + 14 * private["loss-noise"]
    assert found["private"]["2"]["epsilon-total"] == COST
    # The server's report, taken from its proposals and the refusals, says what the ledgers say.
    assert sorted(units["client"] for units in found["spent"].values()) == [59.0, COST, COST]
    assert "at most epsilon 76 per client (worst of 3 clients, a sum)" in run.output


def test_the_network_and_the_simulation_draw_from_the_same_laws(
    three_sites: Federation,
    tmp_path: Path,
    simulation_policy: Path,
) -> None:
    app = make_app(tmp_path, "known_client")
    before = accounts(three_sites)
    files = {name: tmp_path / f"{name}.json" for name in ("network", "simulation")}
    run = three_sites.submit(app, {**KNOWN, "received": str(files["network"])})
    run.wait_for("^finished", timeout=580)
    assert charged(before, accounts(three_sites)) == [(KNOWN_COST, 7)] * 3
    # The simulation is the package's own, in this process; Flower's engine has tests of its own.
    simulated = load_folder(app, {**KNOWN, "received": str(files["simulation"])})
    run_in_process(simulated.server, simulated.client, 3, run_config=simulated.run_config)
    read: dict[str, Any] = {name: json.loads(file.read_text()) for name, file in files.items()}
    exchanges = {name: found["exchanges"] for name, found in read.items()}
    # What is no matter of chance is the same.
    assert sizes(exchanges["network"]) == sizes(exchanges["simulation"])
    assert [len(reports) for _, reports in sizes(exchanges["network"])] == [3] * 7
    assert sorted(read["network"]["spent"].values(), key=str) == sorted(
        read["simulation"]["spent"].values(), key=str
    )
    # What is follows the exact laws in both, and differs by no more than they allow.
    laws = {name: statistics(found) for name, found in exchanges.items()}
    for name, found in laws.items():
        print(name, {which: f"{one.p_value():.2g}" for which, one in found.items()})
        assert rejected(found) == {}
    assert rejected(differences(laws["network"], laws["simulation"])) == {}
