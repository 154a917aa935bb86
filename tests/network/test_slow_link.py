"""Nodes that answer late or not at all: what the round does, and how long it takes."""

from __future__ import annotations

import json
import math
import re
import socket
import time
from pathlib import Path

from tests.network.federation import GUARDED, Federation
from tests.network.nodes import Node, Run
from tests.network.processes import wait_for
from tests.network.sites import add_site, make_app, sealed, spent
from tests.network.slow import slow_link

#: Longer than a SuperLink waits for a node's heartbeats, and a node for its app's.
ROUND_SECONDS = 80.0
HEARTBEATS_SECONDS = 60.0
#: A link of a satellite's delay and a modem's rate.
DELAY, RATE = 0.3, 5_000.0
SLACK = 15.0


def rounds(run: Run) -> dict[int, tuple[int, float]]:
    """Return how many reports came in each round, and how long it took."""
    found = re.findall(
        r"^round (\d+) train: (\d+) reports[^\0]*?^round \1: accuracy \S+ after (\S+) s",
        run.output,
        re.MULTILINE,
    )
    return {int(number): (int(reports), float(took)) for number, reports, took in found}


def wait_for_round(run: Run, number: int) -> None:
    run.wait_for(f"^round {number}: accuracy", timeout=3 * ROUND_SECONDS)


def started(node: Node) -> None:
    wait_for(
        lambda: "round 1: " in node.log, "the app at work", timeout=150, shown=lambda: node.log
    )


def test_the_link_is_as_slow_as_it_says(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = int(server.getsockname()[1])
        with slow_link(port, delay=0.2, rate=4_000.0) as link:
            before = time.monotonic()
            with socket.create_connection(("127.0.0.1", link.port)) as near:
                far, _ = server.accept()
                with far:
                    near.sendall(bytes(2_000))
                    near.shutdown(socket.SHUT_WR)
                    received = b"".join(iter(lambda: far.recv(4_096), b""))
                    took = time.monotonic() - before
                    assert received == bytes(2_000)
                    assert took >= 0.2 + 2_000 / 4_000.0
                    link.delay, link.rate = 0.0, math.inf
                    far.sendall(b"back")
                    assert near.recv(4) == b"back"


def test_a_round_goes_on_without_those_who_are_late_and_with_them_when_they_are_back(
    tmp_path: Path,
) -> None:
    with (
        Federation.start(tmp_path / "federation", tls=True) as federation,
        slow_link(federation.port, delay=DELAY, rate=RATE) as link,
    ):
        behaviours = ({}, {1: "dies"}, {}, {1: "hangs"})
        far, dying, _, gone = [
            add_site(
                federation,
                part,
                command=GUARDED,
                connect=False,
                behaviour=behaviour,
                port=link.port if part == 0 else None,
            )
            for part, behaviour in enumerate(behaviours)
        ]
        for node in federation.nodes.values():
            node.wait_until_connected()
        run = federation.submit(
            make_app(tmp_path, "faulty_client"),
            {"num-server-rounds": 9, "nodes": 3, "timeout": ROUND_SECONDS},
        )
        # The far node is slow, one app dies, and one node is killed while its app works.
        started(gone)
        gone.process.kill()
        wait_for_round(run, 1)
        assert (spent(far), sealed(far)) == (21.0, 1)
        assert (spent(dying), sealed(dying)) == (21.0, 0)
        assert (spent(gone), sealed(gone)) == (21.0, 0)
        # The link hardly carries anything any more, in the midst of a round.
        link.rate = 10.0
        wait_for_round(run, 2)
        link.delay, link.rate = 0.0, math.inf
        wait_for(
            lambda: any(reports == 3 for reports, _ in rounds(run).values()),
            "a round with the far node's report",
            timeout=4 * ROUND_SECONDS,
            shown=lambda: run.output[-4_000:] + far.log[-4_000:],
        )
        charges, reports = round(spent(far) / 21.0), sealed(far)
        run.stop()
    took = rounds(run)
    print("reports and seconds per round:", json.dumps(took))
    # Whoever fails is answered for when its heartbeats have been missed, before the timeout.
    assert took[1][0] == 2
    assert took[1][1] < HEARTBEATS_SECONDS + SLACK
    for reason in ("ldp:failed", "error"):
        assert f"'rejected-{reason}': 1" in run.output
    # What does not come in time is waited for until the timeout, and no longer.
    assert took[2][0] == 2
    assert ROUND_SECONDS - 1 < took[2][1] < ROUND_SECONDS + SLACK
    # Each of the far node's messages was charged once, and has one report or none.
    assert reports <= charges <= len(took) + 1
