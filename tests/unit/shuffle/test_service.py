"""The analyzer as a process of its own, behind TLS, and the server's end of it."""

from __future__ import annotations

import asyncio
import http.client
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from flower_ldp.shuffle import Analyzer, AnalyzerError, AnalyzerRefusal, ReportAnalyzer
from flower_ldp.shuffle import remote as remote_module
from flower_ldp.shuffle import service as service_module
from tests.unit.shuffle.batches import RUN, batch_of
from tests.unit.shuffle.certificates import make_certificate

FEW = 20
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals")


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "flower_ldp", "analyzer", *words]


class Service:
    """A process that serves, which can be killed and started again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.key, self.token = folder / "analyzer.key", folder / "analyzer.key.token"
        made = subprocess.run(
            command("keygen", str(self.key)), check=True, capture_output=True, text=True
        )
        self.signer = made.stdout.strip()
        self.tls_key, self.certificate = make_certificate(folder)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        words = ["serve", "--key", str(self.key), "--minimum", str(FEW), "--port", str(self.port)]
        words += ["--tls-key", str(self.tls_key), "--tls-certificate", str(self.certificate)]
        words += ["--state", str(self.folder / "state.sqlite")]
        log = (self.folder / "log").open("ab")
        with log:
            self.process = subprocess.Popen(command(*words), stdout=log, stderr=log)
        end = time.monotonic() + 60.0
        while time.monotonic() < end:
            assert self.process.poll() is None, (self.folder / "log").read_text()
            with socket.socket() as link:
                if link.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.05)
        raise AssertionError("the service does not listen")

    def stop(self, how: int = signal.SIGTERM) -> None:
        if self.process is not None:
            self.process.send_signal(how)
            self.process.wait(30)
            self.process = None

    def analyzer(self) -> Analyzer:
        url = f"https://127.0.0.1:{self.port}"
        return Analyzer(url, self.signer, token=self.token, certificates=self.certificate)

    def ask(self, method: str, path: str, body: bytes = b"", token: str = "") -> tuple[int, bytes]:
        context = ssl.create_default_context(cafile=self.certificate)
        link = http.client.HTTPSConnection("127.0.0.1", self.port, context=context)
        with closing(link):
            link.request(method, path, body, {"Authorization": f"Bearer {token}"} if token else {})
            answer = link.getresponse()
            return answer.status, answer.read()


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    found = Service(tmp_path_factory.mktemp("service"))
    found.start()
    yield found
    found.stop(signal.SIGKILL)


def test_a_service_without_requests_erases_old_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    analyzer = ReportAnalyzer(FEW, days=1.0, clock=lambda: now[0])
    analyzer.run_key(RUN)
    monkeypatch.setattr(service_module, "_ERASE_EVERY", 0.01)
    app = service_module.application(analyzer, "token")

    async def idle() -> None:
        async with app.router.lifespan_context(app):
            await asyncio.sleep(0.1)
            assert analyzer._db.execute("SELECT secret FROM run").fetchone() != (None,)
            now[0] = 86_401.0
            await asyncio.sleep(0.5)

    asyncio.run(idle())
    assert analyzer._db.execute("SELECT secret FROM run").fetchone() == (None,)


def test_the_same_sums_come_from_the_service(service: Service) -> None:
    analyzer = service.analyzer()
    key = analyzer.run_key(RUN)
    assert analyzer.run_key(RUN) == key
    batch = batch_of(key, 30)
    first = analyzer.sums(batch)
    again = analyzer.sums(replace(batch, sealed=batch.sealed[::-1]))
    assert first.accepted == 30
    assert np.array_equal(first.total, again.total)
    with pytest.raises(AnalyzerRefusal, match="answered for another batch"):
        analyzer.sums(replace(batch, sealed=batch.sealed[1:]))
    with pytest.raises(AnalyzerRefusal, match="20 are the fewest"):
        analyzer.sums(batch_of(key, 3, 2))
    analyzer.end_run(RUN)
    with pytest.raises(AnalyzerRefusal, match="has ended"):
        analyzer.run_key(RUN)


def test_nobody_is_answered_without_the_token(service: Service) -> None:
    for token in ("", "0" * 64, service.token.read_text().strip()[:-1]):
        for method, path in (("POST", "/sums"), ("POST", "/runs/7/key"), ("DELETE", "/runs/7/key")):
            assert service.ask(method, path, b"x", token)[0] == 401


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/runs/7/key", b"", 405),
        ("POST", "/runs/-7/key", b"", 409),
        ("POST", f"/runs/{2**64}/key", b"", 409),
        ("POST", "/runs/7", b"", 404),
        ("POST", "/sums", b"", 409),
        ("POST", "/sums", os.urandom(1_000), 409),
        ("POST", "/sums", b"\0\0\0\2\0\0\0\0{}", 409),
    ],
)
def test_malformed_requests_are_refused(
    service: Service, method: str, path: str, body: bytes, status: int
) -> None:
    token = service.token.read_text().strip()
    assert service.ask(method, path, body, token)[0] == status


def test_a_key_of_another_signer_is_refused_by_the_server(service: Service) -> None:
    other = replace(service.analyzer(), key="ed25519:" + "0" * 64)
    with pytest.raises(AnalyzerError, match="sent no key of run 9"):
        other.run_key(9)


def test_another_certificate_is_refused(service: Service, tmp_path: Path) -> None:
    _, other = make_certificate(tmp_path)
    with pytest.raises(AnalyzerError, match=r"does not answer: .*certificate"):
        replace(service.analyzer(), certificates=other).run_key(9)


def test_a_killed_service_answers_the_batch_again_when_it_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = Service(tmp_path)
    own.start()
    try:
        analyzer = own.analyzer()
        batch = batch_of(analyzer.run_key(RUN), 30)
        first = analyzer.sums(batch)
        own.stop(signal.SIGKILL)
        monkeypatch.setattr(remote_module, "_PAUSES", (0.2,) * 100)
        back = threading.Timer(1.0, own.start)
        back.start()
        again = analyzer.sums(batch)  # retries until it is back
        back.join()
        assert again.to_bytes() == first.to_bytes()
        with pytest.raises(AnalyzerRefusal, match="another batch"):
            analyzer.sums(replace(batch, sealed=batch.sealed[1:]))
        monkeypatch.setattr(remote_module, "_PAUSES", (0.0,))
        own.stop()
        with pytest.raises(AnalyzerError, match="does not answer"):
            analyzer.sums(batch)
    finally:
        own.stop(signal.SIGKILL)


def test_a_key_is_not_replaced_and_not_made_by_serving(tmp_path: Path) -> None:
    own = Service(tmp_path)
    assert own.key.stat().st_mode & 0o777 == own.token.stat().st_mode & 0o777 == 0o600
    before = own.key.read_bytes()
    again = subprocess.run(command("keygen", str(own.key)), capture_output=True, text=True)
    assert again.returncode == 1
    assert "a key is not replaced" in again.stderr
    assert own.key.read_bytes() == before
    words = ["--minimum", "20", "--tls-key", str(own.tls_key)]
    words += ["--tls-certificate", str(own.certificate)]
    missing = tmp_path / "missing.key"
    served = subprocess.run(
        command("serve", "--key", str(missing), *words), capture_output=True, text=True
    )
    assert served.returncode == 1
    assert "missing.key does not exist" in served.stderr
    assert not missing.exists()


@pytest.mark.parametrize(
    ("url", "key"),
    [
        ("http://127.0.0.1:1", "ed25519:" + "0" * 64),
        ("https://127.0.0.1:1/path", "ed25519:" + "0" * 64),
        ("127.0.0.1", "ed25519:" + "0" * 64),
        ("https://127.0.0.1", "ed25519:0"),
    ],
)
def test_addresses_and_keys_are_checked_where_they_are_written(url: str, key: str) -> None:
    with pytest.raises(ValueError, match="must be"):
        Analyzer(url, key, token="token")
