"""What a hostile app tries on guarded nodes, between real processes, and what arrives."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from flower_ldp.accounting.ledger import Ledger
from tests.network.federation import GUARDED, SANDBOXED, Federation
from tests.network.nodes import APP_STARTED
from tests.network.sites import ROOT, add_site, make_app, sealed, spent
from tests.network.tap import Tap, tapped
from tests.sandbox import LIMITS, missing

sys.path.insert(0, str(ROOT / "tests" / "network" / "app"))
from network_app import canary

#: In the sandbox where one can be made, as the guide starts it.
HARD = GUARDED if missing() else (*SANDBOXED, *LIMITS)
GUARDED_PARTS = (0, 1, 2)
#: The part whose app calls all of the runtime API, and so what the sandbox leaves of it. What the
#: gate lets out does not depend on where an app ran, and each in a sandbox takes seconds more.
IN_THE_SANDBOX = 1
#: Runs the same apps on a node without the guard: what it sends must be found.
CONTROL = 3


@pytest.fixture(scope="module")
def tapped_federation(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[Federation, Tap]]:
    """Three guarded nodes and a plain one. All that they send is written down."""
    # The tap has what a database would hold, and what the SuperLink does not keep.
    folder = tmp_path_factory.mktemp("guarded")
    with (
        Federation.start(folder / "federation", stores=False) as federation,
        tapped(federation.port, folder / "sent") as tap,
    ):
        for part in GUARDED_PARTS:
            command = HARD if part == IN_THE_SANDBOX else GUARDED
            add_site(federation, part, command=command, port=tap.port, connect=False)
        add_site(federation, CONTROL, port=tap.port, connect=False)
        for node in federation.nodes.values():
            node.wait_until_connected()
        yield federation, tap


def accounts(federation: Federation) -> list[tuple[float, int]]:
    """Return what each guarded site has spent, and how many reports it has released."""
    nodes = [federation.nodes[f"ward-{part}"] for part in GUARDED_PARTS]
    return [(spent(node), sealed(node)) for node in nodes]


def failures(federation: Federation) -> list[int]:
    """Return how many neutral reports each guarded site has sent."""
    found = []
    for part in GUARDED_PARTS:
        with Ledger.open(federation.nodes[f"ward-{part}"].ledger) as ledger:
            found.append(ledger.counts(f"ward-{part}").get("failed", 0))
    return found


def found_forms(part: int, *places: bytes) -> set[str]:
    """Return in which forms a client's canary is in any of the places."""
    return {
        name for name, form in canary.forms(part).items() if any(form in place for place in places)
    }


def test_nothing_that_a_hostile_app_plants_arrives(
    tapped_federation: tuple[Federation, Tap], tmp_path: Path
) -> None:
    federation, tap = tapped_federation
    received = tmp_path / "received.json"
    before = accounts(federation)
    run = federation.submit(
        make_app(tmp_path, "hostile_client"),
        {
            **{"num-server-rounds": 3, "nodes": 4, "insists": 1},
            **{"rows": 2, "every": 3, "received": str(received)},
        },
    )
    run.wait_for("^finished", timeout=580)
    places = (tap.sent, federation.stored(), received.read_bytes(), run.output.encode())
    # The search finds what the same app sends from a node without the guard.
    assert found_forms(CONTROL, *places) >= set(canary.forms(CONTROL)) - {"count as varint"}
    logs = [federation.nodes[f"ward-{part}"].log for part in GUARDED_PARTS]
    for part in GUARDED_PARTS:
        assert canary.text(part) in logs[part]
        assert found_forms(part, *places) == set()
    assert len(set(re.findall(r"trying (\w+)$", "".join(logs), re.MULTILINE))) == 9
    assert len(set(re.findall(r"trying (\w+) of predictions", "".join(logs)))) == 3
    # Of the runtime API an app has what it needs to answer, and no more.
    assert "every_runtime_call" in logs[IN_THE_SANDBOX]
    calls = dict(re.findall(r"(\w+) was (taken|not taken)", "".join(logs)))
    assert len(calls) == 7
    assert set(calls.values()) == {"not taken"}
    # Every message was charged, and answered by a report: what is no model, or no rows, and an app
    # that fails leave as a neutral one, whatever message they say they answer.
    charged = [(now[0] - then[0]) for then, now in zip(before, accounts(federation), strict=True)]
    assert charged == [3 * 21.0 + 5.0] * 3
    found = json.loads(received.read_text())
    for kind, messages in (("train", 9), ("evaluate", 3)):
        replies = [one for one in found["transcript"] if one.split()[2] == kind]
        assert len(replies) == messages + messages // 3  # and the control's
        assert sum("ldp.report" in one for one in replies) == messages
        assert not any("ldp:failed" in one for one in replies)


def test_an_app_with_and_without_a_gate_trains_and_only_reports_leave(
    tapped_federation: tuple[Federation, Tap], tmp_path: Path
) -> None:
    """Its own gate, which has no policy here, steps aside where the node privatizes."""
    federation, tap = tapped_federation
    received, unasked = tmp_path / "received.json", tmp_path / "unasked.json"
    before, failed = accounts(federation), failures(federation)
    app = make_app(tmp_path, "plain_client")
    run = federation.submit(app, {"num-server-rounds": 2, "nodes": 4, "received": str(received)})
    run.wait_for("^finished", timeout=580)
    after = accounts(federation)
    assert [(b[0] - a[0], b[1] - a[1]) for a, b in zip(before, after, strict=True)] == [
        (42.0, 2)
    ] * 3
    found = json.loads(received.read_text())
    # The plain node sends its raw model, which SignDSStrategy does not take, and asks for no more.
    assert [(found["metrics"][n]["accepted"], found["metrics"][n]["rejected"]) for n in "12"] == [
        (3, 1),
        (3, 0),
    ]
    # Of what the app computed, and none of them neutral.
    assert failures(federation) == failed
    # FedAvg proposes nothing: refused before the app is started.
    starts = [federation.nodes[f"ward-{part}"].log.count(APP_STARTED) for part in GUARDED_PARTS]
    plain = federation.submit(
        app,
        {"strategy": "fedavg", "num-server-rounds": 1, "nodes": 4, "received": str(unasked)},
    )
    plain.wait_for("^finished", timeout=400)
    assert accounts(federation) == after
    assert starts == [
        federation.nodes[f"ward-{part}"].log.count(APP_STARTED) for part in GUARDED_PARTS
    ]
    replies = json.loads(unasked.read_text())["transcript"]
    assert sum("ldp:refused:proposal" in one for one in replies) == 3
    places = (tap.sent, federation.stored(), received.read_bytes(), unasked.read_bytes())
    assert "count as zigzag varint" in found_forms(CONTROL, *places)
    for part in GUARDED_PARTS:
        assert found_forms(part, *places) == set()
