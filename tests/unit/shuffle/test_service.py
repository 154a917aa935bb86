"""The analyzer as a process of its own, behind TLS, and the server's end of it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from flower_ldp.shuffle import Analyzer, AnalyzerError, AnalyzerRefusal, ReportAnalyzer
from flower_ldp.shuffle import remote as remote_module
from flower_ldp.shuffle import service as service_module
from tests.unit.shuffle.batches import RUN, batch_of
from tests.unit.shuffle.certificates import make_certificate
from tests.unit.shuffle.serving import FEW, Service, command

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals")


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    found = Service(tmp_path_factory.mktemp("service"))
    found.start()
    yield found
    found.stop(signal.SIGKILL)


def test_a_service_without_requests_erases_old_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    analyzer = ReportAnalyzer(FEW, days=1.0, clock=lambda: now[0])
    analyzer.new_key(RUN)
    monkeypatch.setattr(service_module, "_ERASE_EVERY", 0.01)
    app = service_module.application(analyzer, "token")

    async def idle() -> None:
        async with app.router.lifespan_context(app):
            await asyncio.sleep(0.1)
            assert analyzer._rounds
            now[0] = 86_401.0
            await asyncio.sleep(0.5)

    asyncio.run(idle())
    assert not analyzer._rounds


def test_the_same_sums_come_from_the_service(service: Service) -> None:
    analyzer = service.analyzer()
    batch = batch_of(analyzer.new_key(RUN), 30)
    first = analyzer.sums(batch)
    again = analyzer.sums(replace(batch, sealed=batch.sealed[::-1]))
    assert first.accepted == 30
    assert np.array_equal(first.total, again.total)
    with pytest.raises(AnalyzerRefusal, match="was used for another batch"):
        analyzer.sums(replace(batch, sealed=batch.sealed[1:]))
    with pytest.raises(AnalyzerRefusal, match="20 are the fewest"):
        analyzer.sums(batch_of(analyzer.new_key(RUN), 3))


def test_nobody_is_answered_without_the_token(service: Service) -> None:
    for token in ("", "0" * 64, service.token.read_text().strip()[:-1]):
        for path in ("/sums", "/runs/7/keys"):
            assert service.ask("POST", path, b"x", token)[0] == 401


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/runs/7/keys", b"", 405),
        ("POST", "/runs/-7/keys", b"", 409),
        ("POST", f"/runs/{2**64}/keys", b"", 409),
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
    other = replace(service.analyzer(), key="ed25519:" + "a" * 64)
    with pytest.raises(AnalyzerError, match="sent no key of run 9"):
        other.new_key(9)


def test_another_certificate_is_refused(service: Service, tmp_path: Path) -> None:
    _, other = make_certificate(tmp_path)
    with pytest.raises(AnalyzerError, match=r"does not answer: .*certificate"):
        replace(service.analyzer(), certificates=other).new_key(9)


def test_an_analyzer_that_is_gone_is_an_error(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_module, "_PAUSES", (0.0,))
    gone = replace(service.analyzer(), url="https://127.0.0.1:1")
    with pytest.raises(AnalyzerError, match="does not answer"):
        gone.new_key(RUN)


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
        ("http://127.0.0.1:1", "ed25519:" + "a" * 64),
        ("https://127.0.0.1:1/path", "ed25519:" + "a" * 64),
        ("127.0.0.1", "ed25519:" + "a" * 64),
        ("https://127.0.0.1", "ed25519:0"),
        ("https://127.0.0.1", "ed25519:" + "0" * 64),
    ],
)
def test_addresses_and_keys_are_checked_where_they_are_written(url: str, key: str) -> None:
    with pytest.raises(ValueError, match="must be"):
        Analyzer(url, key, token="token")
