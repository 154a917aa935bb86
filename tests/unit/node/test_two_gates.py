"""An app with a gate of its own, under a node with one: who says that the inner one steps aside."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict

from flower_ldp import inner_gate
from flower_ldp.clients import CodewordRelease, LdpMod
from flower_ldp.mechanisms import Codeword
from flower_ldp.node import command
from flower_ldp.node.app_process import GATE, PRIVATIZES, says_that_it_privatizes
from flower_ldp.node.runtime_api import AppCalls
from flower_ldp.node.startup import Start, named_gate
from flower_ldp.wire.proposal import REPORT_KEY, UpdateProposal
from tests.fixtures import counted, make_site, message, policy_text
from tests.unit.clients.world import asking, training
from tests.unit.node.test_guard import MODEL, TRAINED
from tests.unit.node.test_runtime_api import Client

POLICY = policy_text("{train: {codeword: {epsilon: 8.0}}}")
#: All that a server, or a user who starts something, could write a sign into.
SIGN = {"gate": "privatize", GATE: "privatize", "ldp.gate": "privatize", "inner-gate": "aside"}
VARIABLES = ("FLOWER_LDP_GATE", "FLOWER_LDP_PRIVATIZES", "FLOWER_LDP_INNER_GATE", "LDP_GATE")


@pytest.fixture(autouse=True)
def process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a process in which no node has said anything."""
    monkeypatch.setattr(inner_gate, "node_privatizes", False)
    monkeypatch.delenv("FLOWER_LDP_POLICY", raising=False)


@pytest.fixture
def site(tmp_path: Path) -> Context:
    return make_site(tmp_path, POLICY)


def context(node: dict[str, Any] | None = None, run: dict[str, Any] | None = None) -> Context:
    return Context(3, 7, dict(node or {}), RecordDict(), dict(run or {}))


def asked(**records: ConfigRecord) -> Message:
    content = asking(UpdateProposal(Codeword(8.0, 100, 24)).to_fields(), MODEL)
    for name, one in records.items():
        content[name] = one
    return message(content)


raw = training(TRAINED)


def app(one: Message, _: Context) -> Message:
    """Answer as the README's app does, which is told of no policy."""
    return LdpMod(train=CodewordRelease())(one, context(), raw)


def app_aside(one: Message, given: Context) -> Message:
    """Answer so in a process that was told to step aside; here it is the node's as well."""
    inner_gate.node_privatizes = True
    return app(one, given)


def test_the_readmes_app_gets_more_than_noise_through(site: Context, tmp_path: Path) -> None:
    assert REPORT_KEY in named_gate("privatize")(asked(), site, app).content
    assert counted(tmp_path) == {"failed": 1}  # without the node's word: charged, and neutral
    again = asked()
    again.metadata.__dict__["_message_id"] = "m-2"
    assert REPORT_KEY in named_gate("privatize")(again, site, app_aside).content
    assert counted(tmp_path) == {"failed": 1}


@pytest.mark.parametrize("where", ["records", "run", "node", "state", "variables"])
def test_nobody_else_makes_a_gate_step_aside(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    one, given = asked(), context()
    if where == "records":
        one = asked(**{name: ConfigRecord({**SIGN}) for name in ("config", "ldp.gate", "gate")})
    elif where == "state":
        given.state["ldp.gate"] = ConfigRecord({**SIGN})
    elif where == "variables":
        for name in VARIABLES:
            monkeypatch.setenv(name, "privatize")
    else:
        given = context(**{where: SIGN})
    answer = LdpMod(train=CodewordRelease())(one, given, raw)
    assert answer.has_error()
    assert answer.error.reason == "ldp:refused:policy"


@pytest.mark.parametrize("gate", ["privatize", "reports"])
def test_an_app_without_its_gate_gets_nothing_raw_past_the_node(gate: str, site: Context) -> None:
    answer = named_gate(gate)(asked(), site, app_aside)
    assert list(answer.content) == [REPORT_KEY]


@pytest.mark.parametrize(
    ("name", "expected"),
    [("privatize", True), ("reports", False), ("unit_gate:ldp", True), ("unit_gate:own", False)],
)
def test_the_node_says_so_only_if_what_an_app_replies_never_leaves(
    name: str, expected: bool, site: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = "def own(message, context, call_next): return call_next(message, context)\n"
    ldp = "from flower_ldp.clients import LdpMod\nldp = LdpMod()\n"
    (tmp_path / "unit_gate.py").write_text(ldp + own)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("flower_ldp.extensions.loading._never", [])
    monkeypatch.setattr("flower_ldp.inner_gate.guarded_node", False)
    calls = AppCalls()
    options, arguments = command.site_parser().parse_known_args(["--ldp-gate", name])
    Start(options, arguments).setup(dict(site.node_config), None, calls)  # type: ignore[arg-type]
    with answering(calls) as words:
        assert says_that_it_privatizes(words) is expected


@dataclass
class Answer:
    """What somebody at the address says."""

    status: int
    body: bytes
    asked: int = 0


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (Answer(200, PRIVATIZES), True),
        (Answer(404, PRIVATIZES), False),
        (Answer(204, b""), False),
        (Answer(200, b""), False),
        (Answer(200, PRIVATIZES + b"s"), False),
        (Answer(200, b"<html>privatize"), False),
    ],
)
def test_another_answer_than_the_nodes_leaves_the_gate_on(answer: Answer, expected: bool) -> None:
    with saying(answer) as address:
        words = words_of(address)
        assert says_that_it_privatizes(words) is expected
        assert not says_that_it_privatizes(words[:-1])  # with TLS, of which it knows nothing


def test_nobody_at_the_address_leaves_the_gate_on() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        assert not says_that_it_privatizes(words_of(f"127.0.0.1:{taken.getsockname()[1]}"))
    assert not says_that_it_privatizes(words_of("nowhere.invalid:1"))


def test_a_proxy_of_the_users_shell_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    with saying(Answer(404, b"")) as node, saying(proxy := Answer(200, PRIVATIZES)) as address:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, f"http://{address}")
        assert not says_that_it_privatizes(words_of(node))
    assert proxy.asked == 0


def words_of(address: str) -> Sequence[str]:
    return ["--runtime-api-address", address, "--token-file", "/dev/fd/0", "--insecure"]


@contextmanager
def answering(calls: AppCalls) -> Iterator[Sequence[str]]:
    """Serve what a node's layer answers; Flower's own API, behind it, knows no such call."""

    async def flowers(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 404, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    found = Client(calls.around(flowers)).request("GET", GATE)
    with saying(Answer(found.status_code, found.content)) as address:
        yield words_of(address)


@contextmanager
def saying(answer: Answer) -> Iterator[str]:
    """Serve one answer at an address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:  # the library's name
            answer.asked += 1
            self.send_response(answer.status)
            self.send_header("content-length", str(len(answer.body)))
            self.end_headers()
            self.wfile.write(answer.body)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
