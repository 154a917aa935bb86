"""A hostile app inside the sandbox, between real processes: what it reaches, and what arrives."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.network.federation import GUARDED, SANDBOXED, Federation
from tests.network.nodes import Node
from tests.network.sites import ROOT, add_site, make_app, sealed, spent
from tests.sandbox import LIMITS, has_control_group, needs_sandbox

sys.path.insert(0, str(ROOT / "tests" / "network" / "app"))
from network_app import canary

#: Two nodes run the app: in the sandbox, and under the tests' own user, where each way is open.
INSIDE, CONTROL = 0, 1
#: Each node and app is a command's process: what their command lines show is looked for.
EXEC = {"TESTS_FORKS": "0"}


@contextlib.contextmanager
def heard() -> Iterator[tuple[int, int, list[bytes]]]:
    """Listen on this machine as an accomplice would: a port, a resolver, and what they heard."""
    got: list[bytes] = []
    with (
        socket.create_server(("127.0.0.1", 0)) as stream,
        socket.socket(type=socket.SOCK_DGRAM) as names,
    ):
        names.bind(("127.0.0.1", 0))

        def take() -> None:
            while True:
                try:
                    one, _ = stream.accept()
                except OSError:
                    return
                with one:
                    got.append(one.recv(4096))

        def resolve() -> None:
            while True:
                try:
                    asked, sender = names.recvfrom(4096)
                except OSError:
                    return
                got.append(asked)
                names.sendto(b"resolved", sender)

        for work in (take, resolve):
            threading.Thread(target=work, daemon=True).start()
        yield stream.getsockname()[1], names.getsockname()[1], got


def findings(node: Node) -> list[dict[str, Any]]:
    """Return what the app on a node found, round by round."""
    return [json.loads(text) for text in re.findall(r"found (\{.*\})$", node.log, re.MULTILINE)]


def survivors() -> list[int]:
    """Return the processes that the app left behind."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if path.read_bytes() == b"sleep\x00913\x00":
                found.append(int(path.parent.name))
    return found


@needs_sandbox
def test_an_app_in_the_sandbox_reaches_nothing_and_its_report_leaves(tmp_path: Path) -> None:
    received = tmp_path / "received.json"
    with (
        heard() as (port, resolver, got),
        Federation.start(tmp_path / "federation", tls=True) as federation,
    ):
        nodes = [
            add_site(
                federation,
                part,
                command=SANDBOXED if part == INSIDE else GUARDED,
                options=LIMITS if part == INSIDE else (),
                settings={"listener": port, "resolver": resolver},
                environment=EXEC,
                connect=False,
            )
            for part in (INSIDE, CONTROL)
        ]
        for node in nodes:
            node.wait_until_connected()
        run = federation.submit(
            make_app(tmp_path, "escaping_client"),
            {"num-server-rounds": 2, "nodes": 2, "received": str(received)},
        )
        run.wait_for("^finished", timeout=200)
        left = survivors()
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        inside, outside = (findings(node) for node in nodes)
        accounts = [(spent(node), sealed(node)) for node in nodes]
        stored = federation.stored() + received.read_bytes() + run.output.encode()
    # The app on the control finds every way open: the attempts are real.
    control = outside[-1]
    folder = str(federation.nodes["ward-1"].folder)
    assert {f"{folder}/policy.yaml", f"{folder}/node-key"} <= set(control["command_lines"])
    assert control["site"] == ["policy.yaml", "node-key", "node.log", "ledger.sqlite"]
    assert control["tokens"] >= 1
    assert (control["writing"], control["listener"], control["name"]) == (
        "written",
        "sent",
        "resolved",
    )
    assert (control["ptrace"], control["memory"], control["private_tmp"]) == (
        "held",
        0,
        ["left-by-app"],
    )
    assert len(left) == 2
    assert [part for part in (0, 1) if canary.text(part).encode() in b" ".join(got)] == [CONTROL]
    # In the sandbox it finds none, in the first round and after the first.
    assert len(inside) == 2
    for found in inside:
        assert found["command_lines"] == []
        assert found["tokens"] == 0
        assert found["site"] == "no: OperationalError"
        assert found["writing"] == "no: FileNotFoundError"
        assert found["listener"] == "no: ConnectionRefusedError"
        assert found["route"] == "no: OSError"
        assert found["name"] == "no: ConnectionRefusedError"
        assert found["private_tmp"] == []
        assert found["families"] == []
        assert found["ptrace"] == "no: Operation not permitted"
        assert found["call_32"] in (-signal.SIGSYS, 1)
        assert found["background"] == "started"
        if os.geteuid() == 0:
            assert found["who"] not in (0, os.geteuid())
        if has_control_group():
            assert found["memory"] == -signal.SIGKILL
    assert not (federation.nodes["ward-0"].folder / "left-by-app").exists()
    # Its output is marked as an app's, and both nodes' reports left, and nothing else.
    assert "[app] found {" in federation.nodes["ward-0"].log
    assert accounts == [(42.0, 2)] * 2
    for form in canary.forms(INSIDE).values():
        assert form not in stored
    assert json.loads(received.read_text())["metrics"]["2"]["accepted"] == 2
