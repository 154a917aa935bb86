"""Who calls the node: sockets of this machine and their users, and a node that ends over one."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from flower_ldp.accounting.ledger import Ledger
from flower_ldp.node.runtime_api import can_read_the_node, owner_of
from tests.network.federation import NODE
from tests.network.processes import free_port, is_listening, wait_for

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the tables are those of Linux")
POLICY = """
data_id: ward-7
ledger: ledger.sqlite
mode: deployment
messages: {train: {signds: {epsilon: 2.0}}}
budgets: {client: {life: {epsilon: 6.0}}}
"""
TABLE = """  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid
   0: 0100007F:2386 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1001        0 1
   1: 0100007F:C001 0100007F:2386 01 00000000:00000000 00:00000000 00000000  1002        0 2
   2: 0000000000000000FFFF00000100007F:C002 0{0}:0000 01 0:0 0:0 0 77 0 3
   3: 00000000000000000000000001000000:C003 0{0}:0000 01 0:0 0:0 0 78 0 4
   4: 0100007F:C004 0100007F:2386 06 0:0 03:0 0 0 0 0 3
""".replace("{0}", "0" * 31)


@pytest.mark.parametrize(
    ("host", "port", "user"),
    [
        ("127.0.0.1", 0x2386, 1001),
        ("127.0.0.1", 0xC001, 1002),
        ("127.0.0.1", 0xC002, 77),
        ("::ffff:127.0.0.1", 0xC001, 1002),
        ("::1", 0xC003, 78),
        ("10.0.0.7", 0xC001, None),
        ("127.0.0.1", 0xC009, None),
        ("127.0.0.1", 0xC004, None),  # closed by its process: the table says user 0
    ],
)
def test_the_kernels_table_is_read(host: str, port: int, user: int | None, tmp_path: Path) -> None:
    (tmp_path / "tcp").write_text(TABLE)
    assert owner_of(host, port, (tmp_path / "tcp", tmp_path / "none")) == user


def test_root_can_read_the_node_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1001)
    found = [can_read_the_node(user) for user in (0, 1001, 1002, None)]
    assert found == [True, True, False, False]


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_a_socket_of_this_process_has_its_user(family: socket.AddressFamily) -> None:
    host = "127.0.0.1" if family is socket.AF_INET else "::1"
    try:
        server = socket.create_server((host, 0), family=family)
    except OSError:
        pytest.skip(f"there is no {host} here")
    with server, socket.create_connection(server.getsockname()[:2]) as one:
        assert owner_of(*one.getsockname()[:2]) == os.geteuid()


def test_a_node_ends_when_an_executor_of_its_own_user_calls(tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text(POLICY)
    Ledger.open(tmp_path / "ledger.sqlite", create=True).close()
    port, environment = free_port(), {**os.environ, "FLWR_HOME": str(tmp_path)}
    node = [*NODE, "--insecure", "--superlink", f"127.0.0.1:{free_port()}", "--port", str(port)]
    node += ["--isolation", "process", "--ldp-policy", str(tmp_path / "policy.yaml")]
    executor = [sys.executable, "-m", "flower_ldp.node.app_executor", "--insecure"]
    executor += ["--runtime-api-address", f"127.0.0.1:{port}"]
    with (tmp_path / "log").open("wb") as log:
        running = subprocess.Popen(node, env=environment, stdout=log, stderr=log)
        try:
            wait_for(
                lambda: is_listening(port) or running.poll() is not None,
                "the node listening",
                timeout=60,
                shown=(tmp_path / "log").read_text,
            )
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=20):
                pass
            assert running.poll() is None  # who only looks is no app
            calling = subprocess.Popen(executor, env=environment, stdout=log, stderr=log)
            try:
                assert running.wait(60) == 3
            finally:
                calling.kill()
                calling.wait()
        finally:
            running.kill()
            running.wait()
    said = (tmp_path / "log").read_text()
    assert "acquire-task is of this node's own user" in said
    assert "--sandbox" in said
