"""Nodes that answer late or not at all: what the round does, and how long it takes."""

from __future__ import annotations

import json
import math
import re
import socket
import time
from collections.abc import Callable
from pathlib import Path

from tests.network.federation import GUARDED, Federation
from tests.network.nodes import Node, Run
from tests.network.processes import wait_for
from tests.network.sites import add_site, make_app, sealed, spent
from tests.network.slow import SlowLink, slow_link

#: A SuperLink believes a node to be there, and a node its app, until two heartbeats have been
#: missing. Flower's are due in 30 seconds; these are sooner, and the rounds are shorter alike.
#: Not much sooner: a process that is not at work within two of them loses its task.
HEARTBEAT = 10
HEARTBEATS_SECONDS = 2.0 * HEARTBEAT
PATIENT, HASTY = 60.0, 20.0
SLACK = 25.0


def rounds(run: Run) -> dict[int, tuple[int, float]]:
    """Return how many reports came in each round, and how long it took."""
    found = re.findall(
        r"^round (\d+) train: (\d+) reports[^\0]*?^round \1: accuracy \S+ after (\S+) s",
        run.output,
        re.MULTILINE,
    )
    return {int(number): (int(reports), float(took)) for number, reports, took in found}


def wait_for_reports(run: Run, reports: int, after: int = 0) -> int:
    """Wait for a round with so many reports; return its number."""

    def found() -> list[int]:
        return [n for n, (came, _) in rounds(run).items() if n > after and came == reports]

    wait_for(
        lambda: bool(found()),
        f"a round with {reports} reports",
        timeout=6 * HASTY,
        shown=lambda: run.output[-4_000:],
    )
    return found()[0]


def started(node: Node) -> None:
    wait_for(
        lambda: "round 1: " in node.log, "the app at work", timeout=150, shown=lambda: node.log
    )


def kill_while_it_replies(federation: Federation, node: Node, link: SlowLink, run: Run) -> int:
    """Kill a node when its reply is announced and nothing of it has come; return the round.

    Flower itself would wait three minutes for the rest.
    """
    announced = f"Push replies from node_id={node.node_id}"

    def seen(text: str, log: Callable[[], str]) -> None:
        before = log().count(text)
        wait_for(lambda: log().count(text) > before, text, timeout=2 * HASTY, shown=log)

    seen(": trains", lambda: node.log)
    link.delay = 2.0  # for the announcement, its answer, and each part of the reply
    seen(announced, lambda: federation.superlink.output)
    time.sleep(0.5)  # the line is written first, then the announcement is stored
    node.process.kill()
    last = max(rounds(run))
    assert f"[ROUND {last + 1}/" in run.output
    return last + 1


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
    app = make_app(tmp_path, "faulty_client")
    hurry = {"TESTS_HEARTBEAT": str(HEARTBEAT)}
    with (
        Federation.start(
            tmp_path / "federation", tls=True, stores=False, environment=hurry
        ) as federation,
        slow_link(federation.port, delay=0.1, rate=20_000.0) as link,
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
        # A node is behind a slow link, one's app dies, and one is killed while its app works.
        first = federation.submit(app, {"num-server-rounds": 1, "nodes": 3, "timeout": PATIENT})
        started(gone)
        gone.process.kill()
        first.wait_for("^finished", timeout=3 * PATIENT)
        assert (spent(far), sealed(far)) == (21.0, 1)
        assert (spent(dying), sealed(dying)) == (21.0, 1)  # a neutral report, of the node's
        assert (spent(gone), sealed(gone)) == (21.0, 0)
        # The link is so slow that a round is over before the report is there. Heartbeats pass.
        (dying.folder / "behaviour.json").write_text("{}", encoding="utf-8")
        link.delay = 2.0
        second = federation.submit(app, {"num-server-rounds": 9, "nodes": 3, "timeout": HASTY})
        late = wait_for_reports(second, 2)
        # As slow as before, with all three at work: the report comes in time.
        link.delay = 0.1
        wait_for_reports(second, 3, after=late)
        broken = kill_while_it_replies(federation, far, link, second)
        wait_for_reports(second, 2, after=broken - 1)
        charges, reports = round(spent(far) / 21.0), sealed(far)
        second.stop()
    patient, hasty = rounds(first), rounds(second)
    print("reports and seconds per round:", json.dumps([patient, hasty]))
    # Whoever fails is answered for when its heartbeats have been missed, before the timeout.
    assert patient[1][0] == 3
    assert patient[1][1] < 2 * HEARTBEATS_SECONDS < PATIENT
    assert "'rejected-error': 1" in first.output
    assert "ldp:failed" not in first.output
    # What does not come in time is waited for until the timeout, and no longer.
    for late_round in (late, broken):
        assert HASTY - 1 < hasty[late_round][1] < HASTY + SLACK
    # Each of the far node's messages was charged once, and has one report, or none yet.
    assert charges - reports in (0, 1)
    assert charges <= len(hasty) + 2
