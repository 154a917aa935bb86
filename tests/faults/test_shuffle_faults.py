"""Shuffled rounds whose parts are killed: one report of a client, and one answer of a round."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from flower_ldp import refusals
from flower_ldp.accounting.ledger import Ledger
from flower_ldp.shuffle import AnalyzerRefusal
from flower_ldp.shuffle import remote as remote_module
from flower_ldp.shuffle.sealing import new_key, signer_of
from tests.faults.shuffle_worker import CLIENTS
from tests.fixtures import ROOT, make_site, policy_text
from tests.network.processes import wait_for
from tests.unit.shuffle.batches import RUN, batch_of
from tests.unit.shuffle.serving import FEW, Service

if sys.platform == "win32":
    pytest.skip("signals", allow_module_level=True)

WORKER = Path(__file__).with_name("shuffle_worker.py")
SIGNING = bytes(range(32))


def work(*words: object) -> str:
    """Have parts killed; return what was printed."""
    command = [sys.executable, str(WORKER), *map(str, words)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_killed_client_repeats_its_ciphertext_or_sends_none(tmp_path: Path) -> None:
    """Of two draws the analyzer would have two reports."""
    key = new_key(SIGNING, 3, FEW)[0]
    rule = f"analyzer: {{key: '{signer_of(SIGNING)}', minimum: {FEW}}}\n"
    for step in CLIENTS:
        (tmp_path / step).mkdir(mode=0o700)
        make_site(tmp_path / step, policy_text("{train: {codeword: {epsilon: 4.0}}}") + rule)
    told = json.loads(work("client", tmp_path, key.to_bytes().hex()))
    for step, (drawn, sent) in told.items():
        is_sealed = step in ("sealed", "answered")
        assert (drawn is None) == (step == "trained")
        assert sent == 2 * [drawn if is_sealed else refusals.REFUSED_REPEAT]
        with Ledger.open(tmp_path / step / "ledger.sqlite") as ledger:
            found = ledger.verify()
        assert (found.entries, found.sealed) == (1, int(is_sealed))
    assert list(told) == list(CLIENTS)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    found = Service(tmp_path)
    found.start()
    yield found
    found.stop(signal.SIGKILL)


def test_a_server_killed_before_the_answer_gets_the_stored_one(service: Service) -> None:
    analyzer = service.analyzer()
    batch = batch_of(analyzer.new_key(RUN), 30)
    file, settings = service.folder / "batch", service.folder / "settings"
    file.write_bytes(batch.to_bytes())
    told = {name: str(one) for name, one in vars(analyzer).items() if name != "timeout"}
    settings.write_text(json.dumps({**told, "batch": str(file)}))
    work("server", settings)
    log = service.folder / "log"
    read = log.read_text
    wait_for(lambda: "answered: 30 reports" in read(), "an answer", timeout=60, shown=read)
    with pytest.raises(AnalyzerRefusal, match="for another batch"):
        analyzer.sums(replace(batch, sealed=batch.sealed[1:]))
    assert analyzer.sums(batch).accepted == 30


def test_a_service_killed_at_its_work_answers_no_batch_of_before(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It costs the round: nobody has the key any more, and the next round has its own."""
    monkeypatch.setattr(remote_module, "_PAUSES", (0.2,) * 300)
    analyzer = service.analyzer()
    for moment in (0.05, 0.2):
        batch = batch_of(analyzer.new_key(RUN), 6_000)
        killing = threading.Timer(moment, service.stop, (signal.SIGKILL,))
        killing.start()
        back = threading.Timer(moment + 0.5, service.start)
        back.start()
        with pytest.raises(AnalyzerRefusal, match="it was erased, or never made"):
            analyzer.sums(batch)
        back.join()
    assert analyzer.sums(batch_of(analyzer.new_key(RUN), 30)).accepted == 30
    keys = {service.key, service.token, service.tls_key, service.certificate}
    assert set(service.folder.iterdir()) == {*keys, service.folder / "log"}
