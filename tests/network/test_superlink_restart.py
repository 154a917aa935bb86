"""A SuperLink that is killed and started again: what the nodes and a new run do."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.network.federation import GUARDED, Federation
from tests.network.sites import add_site, make_app, sealed, spent


@pytest.fixture
def two_sites(tmp_path: Path) -> Iterator[Federation]:
    """A SuperLink with a database and two sites, of which one is a guarded node.

    The app has a gate of its own, so the guarded node lets its paid reports out.
    """
    with Federation.start(tmp_path / "federation", tls=True) as federation:
        add_site(federation, 0, connect=False)
        add_site(federation, 1, command=GUARDED, options=("--ldp-gate", "reports"), connect=False)
        for node in federation.nodes.values():
            node.wait_until_connected()
        yield federation


def accounts(federation: Federation) -> list[tuple[float, int]]:
    """Return what each site has spent, and how many reports it has released."""
    nodes = [federation.nodes[f"ward-{part}"] for part in range(2)]
    return [(spent(node), sealed(node)) for node in nodes]


def test_a_superlink_that_is_killed_goes_on_with_its_database(
    two_sites: Federation, tmp_path: Path
) -> None:
    received = tmp_path / "received.json"
    app = make_app(tmp_path)
    first_of_all = accounts(two_sites)
    first = two_sites.submit(app, {"num-server-rounds": 50, "nodes": 2})
    first.wait_for("^round 1: accuracy", timeout=200)
    two_sites.superlink.kill()
    before = accounts(two_sites)
    for (cost, _), (was, _) in zip(before, first_of_all, strict=True):
        assert cost >= was + 21.0
    restarted = time.monotonic()
    two_sites.restart_superlink()
    # The nodes come back by themselves, with the keys that the database holds.
    config = {"num-server-rounds": 1, "nodes": 2, "received": str(received)}
    second = two_sites.submit(app, config)
    second.wait_for("^finished", timeout=300)
    print(f"a new run had ended {time.monotonic() - restarted:.0f} s after the restart")
    after = accounts(two_sites)
    for (cost, reports), (cost_before, reports_before) in zip(after, before, strict=True):
        assert cost >= cost_before + 21.0
        assert reports > reports_before
    found = json.loads(received.read_text())
    assert found["metrics"]["1"]["accepted"] == 2
