"""Shuffled rounds whose parts are killed: one report of a client, and one answer of a round."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from flower_ldp import refusals
from flower_ldp.accounting.ledger import Ledger
from flower_ldp.accounting.ledger.anchor import FileAnchor
from flower_ldp.shuffle import AnalyzerRefusal, ReportAnalyzer
from flower_ldp.shuffle import remote as remote_module
from flower_ldp.shuffle.batch import Batch
from flower_ldp.shuffle.sealing import new_key, signer_of
from tests.faults.shuffle_worker import ANALYZERS, CLIENTS
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


def begun(folder: Path) -> ReportAnalyzer:
    return ReportAnalyzer(FEW, state=folder / "state", anchor=FileAnchor(folder / "mark"))


def test_an_analyzer_killed_at_any_step_has_one_key_and_one_answer(tmp_path: Path) -> None:
    batches: dict[str, Batch] = {}
    for what, step in product(("key", "sums"), ANALYZERS):
        folder = tmp_path / f"{what}-{step}"
        folder.mkdir(mode=0o700)
        with begun(folder) as analyzer:
            if what != "key":
                batches[folder.name] = batch_of(analyzer.new_key(RUN), 30)
                (folder / "batch").write_bytes(batches[folder.name].to_bytes())
    work("analyzer", tmp_path)
    for what, step in product(("key", "sums"), ANALYZERS):
        folder, is_done = tmp_path / f"{what}-{step}", step in ("committed", "anchored")
        with begun(folder) as analyzer:
            ((events, keys, answers),) = analyzer._db.execute(
                "SELECT (SELECT count(*) FROM event), count(secret), count(answer) FROM round"
            )
            assert events == is_done + (what != "key"), folder.name
            assert keys == (is_done if what == "key" else not is_done)
            if what == "sums":
                batch = batches[folder.name]
                other = replace(batch, sealed=batch.sealed[1:])
                assert answers == is_done
                right, wrong = (batch, other) if is_done else (other, batch)
                first = analyzer.sums(right)
                with pytest.raises(AnalyzerRefusal, match="for another batch"):
                    analyzer.sums(wrong)
                assert analyzer.sums(right).to_bytes() == first.to_bytes()


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


def answers(service: Service) -> int:
    with closing(sqlite3.connect(service.folder / "state.sqlite")) as db:
        found: int = db.execute("SELECT count(answer) FROM round").fetchone()[0]
    return found


def test_a_server_killed_before_the_answer_gets_the_stored_one(service: Service) -> None:
    analyzer = service.analyzer()
    batch = batch_of(analyzer.new_key(RUN), 30)
    file, settings = service.folder / "batch", service.folder / "settings"
    file.write_bytes(batch.to_bytes())
    told = {name: str(one) for name, one in vars(analyzer).items() if name != "timeout"}
    settings.write_text(json.dumps({**told, "batch": str(file)}))
    work("server", settings)
    log = service.folder / "log"
    wait_for(lambda: answers(service) == 1, "an answer", timeout=60, shown=log.read_text)
    with pytest.raises(AnalyzerRefusal, match="for another batch"):
        analyzer.sums(replace(batch, sealed=batch.sealed[1:]))
    assert analyzer.sums(batch).accepted == 30


def test_a_service_killed_at_its_work_answers_the_batch_when_it_is_back(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_module, "_PAUSES", (0.2,) * 300)
    analyzer = service.analyzer()
    for moment in (0.1, 0.5):
        batch = batch_of(analyzer.new_key(RUN), 1_500)
        killing = threading.Timer(moment, service.stop, (signal.SIGKILL,))
        killing.start()
        back = threading.Timer(moment + 0.5, service.start)
        back.start()
        found = analyzer.sums(batch)
        back.join()
        assert found.accepted == 1_500
        assert analyzer.sums(batch).to_bytes() == found.to_bytes()
        with pytest.raises(AnalyzerRefusal, match="for another batch"):
            analyzer.sums(replace(batch, sealed=batch.sealed[1:]))
    assert answers(service) == 1  # of the run's last key
