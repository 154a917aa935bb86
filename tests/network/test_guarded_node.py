"""The guarded node between real processes: what a hostile app tries, and what arrives."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from tests.network.federation import GUARDED, Federation
from tests.network.sites import PARTS, ROOT, add_site, make_app, sealed, spent
from tests.network.tap import tapped

sys.path.insert(0, str(ROOT / "tests" / "network" / "app"))
from network_app import canary

GUARDED_PARTS = (0, 1, 2)
CONTROL = 3


def found_forms(part: int, *places: bytes) -> set[str]:
    """Return in which forms a client's canary is in any of the places."""
    return {
        name for name, form in canary.forms(part).items() if any(form in place for place in places)
    }


def test_nothing_that_a_hostile_app_plants_arrives(tmp_path: Path) -> None:
    received = tmp_path / "received.json"
    with Federation.start(tmp_path / "federation") as federation:
        with tapped(federation.port, tmp_path / "sent") as tap:
            for part in GUARDED_PARTS:
                add_site(federation, part, command=GUARDED, port=tap.port, connect=False)
            add_site(federation, CONTROL, port=tap.port, connect=False)
            for node in federation.nodes.values():
                node.wait_until_connected()
            run = federation.submit(
                make_app(tmp_path, "hostile_client"),
                {"num-server-rounds": 3, "nodes": 4, "received": str(received)},
            )
            run.wait_for("^finished", timeout=400)
            logs = {name: node.log for name, node in federation.nodes.items()}
            costs = [spent(federation.nodes[f"ward-{part}"]) for part in GUARDED_PARTS]
            reports = [sealed(federation.nodes[f"ward-{part}"]) for part in GUARDED_PARTS]
        places = (tap.sent, federation.stored(), received.read_bytes(), run.output.encode())
    # The search finds what the same app sends from a node without the guard.
    assert found_forms(CONTROL, *places) >= set(canary.forms(CONTROL)) - {"count as varint"}
    for part in GUARDED_PARTS:
        assert found_forms(part, *places) == set()
        assert canary.text(part) in logs[f"ward-{part}"] or part == 1
    tried = set(re.findall(r"trying (\w+)", "".join(logs[f"ward-{p}"] for p in GUARDED_PARTS)))
    assert len(tried) == 9
    # Each message was charged, whatever the app did; one way is a model of the right form.
    assert costs == [63.0] * 3
    assert sum(reports) <= 2
    found = json.loads(received.read_text())
    assert len(found["transcript"]) == 4 * 3
    assert PARTS == 4


def test_an_unmodified_app_trains_and_only_reports_leave(tmp_path: Path) -> None:
    received, unasked = tmp_path / "received.json", tmp_path / "unasked.json"
    app = make_app(tmp_path, "plain_client")
    with Federation.start(tmp_path / "federation") as federation:
        with tapped(federation.port, tmp_path / "sent") as tap:
            for part in GUARDED_PARTS:
                add_site(federation, part, command=GUARDED, port=tap.port, connect=False)
            for node in federation.nodes.values():
                node.wait_until_connected()
            run = federation.submit(
                app, {"num-server-rounds": 3, "nodes": 3, "received": str(received)}
            )
            run.wait_for("^finished", timeout=400)
            ledgers = [(spent(node), sealed(node)) for node in federation.nodes.values()]
            # FedAvg proposes nothing: refused before the app is started.
            plain = federation.submit(
                app,
                {
                    "strategy": "fedavg",
                    "num-server-rounds": 1,
                    "nodes": 3,
                    "received": str(unasked),
                },
            )
            plain.wait_for("^finished", timeout=200)
            after = [(spent(node), sealed(node)) for node in federation.nodes.values()]
        places = (tap.sent, federation.stored(), received.read_bytes(), unasked.read_bytes())
    for part in GUARDED_PARTS:
        assert found_forms(part, *places) == set()
    found = json.loads(received.read_text())
    assert [found["metrics"][n]["accepted"] for n in "123"] == [3, 3, 3]
    assert ledgers == [(63.0, 3)] * 3 == after
    refused = json.loads(unasked.read_text())["transcript"]
    assert len(refused) == 3
    assert all("ldp:refused:proposal" in one for one in refused)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ((), "no policy is named"),
        (("--ldp-policy", "/nowhere/policy.yaml"), "/nowhere/policy.yaml"),
        (("--ldp-gate", "no-such-gate"), "--ldp-gate"),
    ],
)
def test_the_node_does_not_start_without_policy_and_gate(
    arguments: tuple[str, ...], complaint: str, tmp_path: Path
) -> None:
    with Federation.start(tmp_path / "federation") as federation:
        policy = "" if arguments[:1] == ("--ldp-gate",) else None
        node = federation.add_node(
            "ward-0", policy=policy, command=GUARDED, options=arguments, connect=False
        )
        assert node.process.popen.wait(60) == 2
        assert "not started" in node.log
        assert complaint in node.log or policy is not None
