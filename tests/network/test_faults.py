"""What a run does when nodes or clients fail, and how long it takes."""

from __future__ import annotations

import re
import time
from pathlib import Path

import numpy as np

from tests.network.federation import GUARDED, Federation
from tests.network.nodes import APP_STARTED, Node, Run
from tests.network.processes import wait_for
from tests.network.sites import add_site, make_app, sealed, spent

ROUND_SECONDS = 15.0
PATIENCE_SECONDS = 20.0
HANGS_LATER = dict.fromkeys(range(3, 21), "hangs")
#: Starting to send, fetching replies and evaluating take a little on top of the timeout.
SLACK = 25.0
#: A SuperLink believes a node to be there until two heartbeats have been missing. Flower's are due
#: in 30 seconds; these are sooner, and still rounds are shorter.
HEARTBEAT = 10
HEARTBEATS_SECONDS = 2.0 * HEARTBEAT


def seconds(run: Run) -> dict[int, float]:
    """Return how long each round took, from the run's log."""
    found = re.findall(r"^round (\d+): accuracy \S+ after (\S+) s", run.output, re.MULTILINE)
    return {int(number): float(took) for number, took in found}


def test_a_round_ends_in_time_whatever_fails_and_the_run_ends_when_nodes_are_gone(
    tmp_path: Path,
) -> None:
    best = tmp_path / "best.npz"
    hurry = {"TESTS_HEARTBEAT": str(HEARTBEAT)}
    with Federation.start(
        tmp_path / "federation", tls=True, stores=False, environment=hurry
    ) as federation:
        killed, faulty, poor = [
            add_site(federation, part, command=GUARDED, connect=False, **how)
            for part, how in enumerate(
                (
                    {"behaviour": {1: "hangs"}},
                    {"behaviour": {2: "sends garbage", **HANGS_LATER}},
                    {"budget": 42.0},
                )
            )
        ]
        for node in federation.nodes.values():
            node.wait_until_connected()
        run = federation.submit(
            make_app(tmp_path, "faulty_client"),
            {
                "num-server-rounds": 20,
                "nodes": 3,
                "timeout": ROUND_SECONDS,
                "patience": PATIENCE_SECONDS,
                "best": str(best),
            },
        )
        # A node is killed in the middle of its work, and started again.
        wait_for_log(killed, "round 1: hangs", run)
        killed.process.kill()
        assert (spent(killed), sealed(killed)) == (21.0, 0)
        before = time.monotonic()
        killed.restart()
        back = time.monotonic() - before
        wait_for(lambda: sealed(killed) >= 1, "a report", timeout=300, shown=lambda: run.output)
        # One charge went with the node. Every other one has its report, and none has two.
        assert spent(killed) / 21.0 - sealed(killed) in (1.0, 2.0)  # 2: one is being worked on
        # A budget is spent. (An app has sent garbage meanwhile.)
        wait_for_log(poor, "ldp:refused:budget", run)
        assert spent(poor) == 42.0
        assert poor.log.count(APP_STARTED) == 2  # not for a message that is refused
        # An app hangs, and the two other nodes are gone for good.
        wait_for_log(faulty, ": hangs", run)
        killed.process.kill()
        poor.process.kill()
        before = time.monotonic()
        run.wait_for("NodesUnavailableError", timeout=500)
        ended = time.monotonic() - before
        assert spent(poor) == 42.0
    took = seconds(run)
    print(f"seconds per round: {took}; a killed node is back after {back:.0f} s; the run ended")
    print(f"{ended:.0f} s after two of three nodes were gone for good")
    longest = ROUND_SECONDS + PATIENCE_SECONDS + SLACK
    assert all(value < longest for value in took.values())
    assert took[1] > ROUND_SECONDS - 5  # its message is lost with the node
    assert back < HEARTBEATS_SECONDS + SLACK
    assert ended < HEARTBEATS_SECONDS + PATIENCE_SECONDS + ROUND_SECONDS + SLACK
    assert "'rejected-ldp:refused:budget': 1" in run.output
    # What the app sent as garbage left as a neutral report, and only the site's log says so.
    assert "a neutral report takes the place of it" in faulty.log
    with np.load(best) as file:
        assert np.isfinite(file["weights"]).all()


def wait_for_log(node: Node, text: str, run: Run) -> None:
    wait_for(
        lambda: text in node.log,
        text,
        timeout=400,
        shown=lambda: node.log[-4_000:] + run.output[-4_000:],
    )
