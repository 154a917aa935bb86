"""The analyzer: what it adds up, what it leaves out, and what it answers twice."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from flower_ldp.accounting.shuffled import ShuffledReports, favoured_part
from flower_ldp.mechanisms import Codeword
from flower_ldp.mechanisms.randomized_response import BinaryResponse
from flower_ldp.shuffle import AnalyzerError, AnalyzerRefusal, ReportAnalyzer, ReportSums
from flower_ldp.shuffle import analyzer as analyzer_module
from flower_ldp.shuffle.batch import Batch, SealedProposal
from flower_ldp.shuffle.sealing import new_key
from tests.unit.shuffle.batches import (
    ENTRIES,
    MECHANISM,
    RUN,
    batch_of,
    reports_of,
    sealed,
    text_of,
)

FEW = 20


@pytest.fixture
def analyzer() -> ReportAnalyzer:
    return ReportAnalyzer(FEW)


def secrets(analyzer: ReportAnalyzer) -> dict[int, bytes]:
    held = {run: one.secret for run, one in analyzer._rounds.items()}
    return {run: secret for run, secret in held.items() if secret is not None}


def refused(analyzer: ReportAnalyzer, batch: Batch) -> tuple[str, str]:
    with pytest.raises(AnalyzerRefusal) as raised:
        analyzer.sums(batch)
    return raised.value.code, str(raised.value)


def test_the_sums_are_those_of_the_reports_and_the_claim_is_of_their_number(
    analyzer: ReportAnalyzer,
) -> None:
    found = analyzer.sums(batch_of(analyzer.new_key(RUN), 30))
    decoded = [MECHANISM.decode(one, ENTRIES) for one in reports_of(30)]
    assert np.array_equal(found.total, MECHANISM.total(decoded, ENTRIES))
    assert (found.accepted, found.rejected, found.ones, found.delta) == (30, {}, None, 1e-6)
    part = (favoured_part(MECHANISM, ENTRIES),)
    assert found.central_epsilon == ShuffledReports(part, 30).epsilon(1e-6)
    assert found.central_epsilon_minimum == ShuffledReports(part, FEW).epsilon(1e-6)
    assert found.central_epsilon < found.central_epsilon_minimum <= 4.0


def test_health_bits_are_added_up_and_are_part_of_the_claim(analyzer: ReportAnalyzer) -> None:
    found = analyzer.sums(batch_of(analyzer.new_key(RUN), 30, health=0.5))
    assert (found.accepted, found.ones) == (30, 15)
    parts = favoured_part(MECHANISM, ENTRIES), favoured_part(BinaryResponse(0.5))
    assert found.central_epsilon == ShuffledReports(parts, 30).epsilon(1e-6)


def test_the_same_batch_in_any_order_gets_the_stored_answer_and_another_none(
    analyzer: ReportAnalyzer,
) -> None:
    key = analyzer.new_key(RUN)
    batch = batch_of(key, 30)
    first = analyzer.sums(batch)
    again = analyzer.sums(replace(batch, sealed=batch.sealed[::-1]))
    assert again.to_bytes() == first.to_bytes()
    # One client less would tell this client's report.
    code, told = refused(analyzer, replace(batch, sealed=batch.sealed[1:]))
    assert code == "round"
    assert told == f"this key of run {RUN} was used for another batch"
    assert refused(analyzer, batch_of(key, 30))[0] == "round"
    assert analyzer.sums(batch_of(analyzer.new_key(RUN), 25)).accepted == 25


def test_copies_count_once_also_under_another_name_of_the_same_point(
    analyzer: ReportAnalyzer,
) -> None:
    """The last bit of X25519's half is none of the point."""
    key = analyzer.new_key(RUN)
    batch = batch_of(key, FEW)
    assert refused(analyzer, replace(batch, sealed=batch.sealed[1:] * 3))[0] == "minimum"
    high = bytearray(batch.sealed[0])
    high[1_119] ^= 0x80
    found = analyzer.sums(replace(batch, sealed=(*batch.sealed[:3], bytes(high), *batch.sealed)))
    assert (found.accepted, found.rejected) == (FEW, {"duplicate": 3, "sealed": 1})


@pytest.mark.parametrize(
    "other",
    [
        Codeword(8.0, favoured=MECHANISM.favoured, rotations=4),
        replace(MECHANISM, favoured=MECHANISM.favoured + 1),
        replace(MECHANISM, rotations=8),
        replace(MECHANISM, blocks=2),
        replace(MECHANISM, seed=1),
    ],
    ids=["epsilon", "K", "G", "blocks", "seed"],
)
def test_reports_of_another_proposal_hide_nobody(analyzer: ReportAnalyzer, other: Codeword) -> None:
    """A target at 4 among clients at 8 has no cover: they do not count."""
    key = analyzer.new_key(RUN)
    target, others = batch_of(key, 1), batch_of(key, 40, mechanism=other)
    code, told = refused(analyzer, replace(target, sealed=(*target.sealed, *others.sealed)))
    assert code == "minimum"
    assert told.startswith("1 reports of this proposal are left of 41, and 20 are the fewest")


def test_reports_of_another_run_or_round_hide_nobody(analyzer: ReportAnalyzer) -> None:
    others = [batch_of(analyzer.new_key(one), 30).sealed for one in (RUN, 8)]
    batch = batch_of(analyzer.new_key(RUN), 1)
    more = (*batch.sealed, *others[0], *others[1])
    assert refused(analyzer, replace(batch, sealed=more))[0] == "minimum"


def test_a_key_of_another_run_or_analyzer_or_a_lower_minimum_is_refused(
    analyzer: ReportAnalyzer,
) -> None:
    key = analyzer.new_key(RUN)
    changed = replace(key, minimum=1), replace(key, signature=bytes(64))
    for other in (*changed, new_key(bytes(32), RUN, FEW)[0]):
        told = f"this key of run {RUN} is not here: it was erased, or never made"
        assert refused(analyzer, batch_of(other, 30)) == ("key", told)
    assert refused(analyzer, batch_of(replace(key, run_id=9), 30))[0] == "key"


def test_what_is_no_report_is_left_out_and_takes_nobodys_place(analyzer: ReportAnalyzer) -> None:
    key = analyzer.new_key(RUN)
    batch = batch_of(key, 30)
    plan = MECHANISM.plan(ENTRIES)
    past = b"\1" + (plan.codewords * plan.rotations).to_bytes(plan.report_bytes - 1, "big")
    bad = sealed([past, b"\2" + past[1:]], key, batch.proposal)
    junk = batch.sealed[0][:1_120] + os.urandom(len(batch.sealed[0]) - 1_120)
    found = analyzer.sums(replace(batch, sealed=(b"", junk, *bad, *batch.sealed)))
    left_out = {"length": 1, "sealed": 1, "range": 1, "version": 1}
    assert (found.accepted, found.rejected) == (30, left_out)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        "null",
        '{"analyzer-key": "zz"}',
        "9" * 70_000,
        "[" * 60_000,
        '{"analyzer-key": "' + "00" * 1_296 + '"}',
    ],
)
def test_a_malformed_proposal_is_refused(analyzer: ReportAnalyzer, text: str) -> None:
    assert refused(analyzer, Batch(text, ()))[0] == "proposal"


@pytest.mark.parametrize(
    "change",
    [
        {"mechanism": "signds"},
        {"epsilon": 101.0},
        {"favoured": 0},
        {"dimension": 0},
        {"dimension": "50"},
        {"subspace-dimension": 2},
        {"unknown": 1},
    ],
)
def test_a_proposal_of_no_codewords_is_refused(
    analyzer: ReportAnalyzer, change: dict[str, Any]
) -> None:
    text = text_of(analyzer.new_key(RUN), changed=change)
    assert refused(analyzer, Batch(text, ()))[0] == "proposal"


def test_a_key_is_erased_with_its_answer(analyzer: ReportAnalyzer) -> None:
    key, other = analyzer.new_key(RUN), analyzer.new_key(8)
    refused(analyzer, batch_of(key, FEW - 1))
    assert secrets(analyzer).keys() == {RUN, 8}
    batch = batch_of(key, 30)
    answer = analyzer.sums(batch)
    assert secrets(analyzer).keys() == {8}
    assert analyzer.sums(batch).to_bytes() == answer.to_bytes()
    assert analyzer.sums(batch_of(other, 30)).accepted == 30
    assert not secrets(analyzer)


def test_a_run_has_one_key_at_a_time_and_one_answer(analyzer: ReportAnalyzer) -> None:
    """Also of a round that was refused, and of one whose server asks for many keys."""
    unanswered = batch_of(analyzer.new_key(RUN), 30)
    answered = batch_of(analyzer.new_key(RUN), 30)
    assert refused(analyzer, unanswered)[0] == "key"
    analyzer.sums(answered)
    analyzer.new_key(RUN)
    for old in (unanswered, answered):
        assert refused(analyzer, old)[0] == "key"
    assert len(analyzer._rounds) == 1


def test_threads_with_other_batches_get_one_answer(analyzer: ReportAnalyzer) -> None:
    batch, found = batch_of(analyzer.new_key(RUN), 40), []

    def ask(place: int) -> None:
        with suppress(AnalyzerRefusal):
            found.append(analyzer.sums(replace(batch, sealed=batch.sealed[place % 4 :])).accepted)

    threads = [threading.Thread(target=ask, args=(place,)) for place in range(12)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert len(found) == 3
    assert len(set(found)) == 1


def test_keys_do_not_wait_for_a_batch_and_it_is_answered_once(
    analyzer: ReportAnalyzer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two requests for a key of which one waited, that would replace what the other got."""
    begun, go_on, found = threading.Event(), threading.Event(), []
    add_up = analyzer_module.add_up

    def slow(*words: Any) -> ReportSums:
        begun.set()
        assert go_on.wait(60)
        return add_up(*words)

    monkeypatch.setattr(analyzer_module, "add_up", slow)
    batch = batch_of(analyzer.new_key(RUN), 30)
    adding = threading.Thread(target=lambda: found.append(analyzer.sums(batch)))
    adding.start()
    assert begun.wait(60)
    assert analyzer.new_key(8).run_id == 8
    analyzer.new_key(RUN)
    go_on.set()
    adding.join()
    assert found[0].accepted == 30
    assert refused(analyzer, batch)[0] == "key"


def test_a_batch_of_no_report_is_refused_and_one_alone_has_the_local_epsilon() -> None:
    analyzer = ReportAnalyzer(1)
    key = analyzer.new_key(RUN)
    assert refused(analyzer, batch_of(key, 0))[0] == "minimum"
    found = analyzer.sums(batch_of(key, 1))
    assert (found.central_epsilon, found.central_epsilon_minimum) == (4.0, 4.0)


def test_a_forgotten_key_is_erased_after_its_days() -> None:
    now = [1_000_000.0]
    analyzer = ReportAnalyzer(FEW, days=2.0, clock=lambda: now[0])
    forgotten, answered = (batch_of(analyzer.new_key(run), 30) for run in (RUN, 8))
    analyzer.sums(answered)
    now[0] += 2 * 86_400.0
    assert analyzer.sums(answered).accepted == 30
    now[0] += 1.0
    for old in (forgotten, answered):
        assert refused(analyzer, old)[0] == "key"
    assert not analyzer._rounds


def test_the_claim_is_never_above_that_at_the_minimum() -> None:
    """Also where the bound for one more report is looser than the gain by it."""
    loose = Codeword(15.0, favoured=43).sized(ENTRIES)
    analyzer = ReportAnalyzer(1, delta=0.5)
    batch = batch_of(analyzer.new_key(RUN), 2, mechanism=loose)
    asked = SealedProposal.parse(batch.proposal)
    assert asked.central_epsilon(2, 0.5) > asked.central_epsilon(1, 0.5)
    found = analyzer.sums(batch)
    assert found.central_epsilon == found.central_epsilon_minimum


def test_a_batch_of_ciphertexts_of_one_byte_is_not_cut_up() -> None:
    """It would take many times its size in memory."""
    text = text_of(ReportAnalyzer(1).new_key(RUN)).encode()
    head = len(text).to_bytes(4, "big") + (1).to_bytes(4, "big")
    with pytest.raises(AnalyzerRefusal, match="bytes are no batch") as raised:
        Batch.from_bytes(head + text + bytes(1_000))
    assert raised.value.code == "proposal"


def test_a_batch_and_an_answer_are_read_as_they_are_written(analyzer: ReportAnalyzer) -> None:
    batch = batch_of(analyzer.new_key(RUN), 30)
    assert Batch.from_bytes(batch.to_bytes()) == batch
    empty = replace(batch, sealed=())
    assert Batch.from_bytes(empty.to_bytes()) == empty
    found = analyzer.sums(batch)
    again = ReportSums.from_bytes(found.to_bytes(), ENTRIES)
    assert np.array_equal(again.total, found.total)
    assert again.central_epsilon == found.central_epsilon


def _bytes_cut(data: bytes) -> bytes:
    return data[:-3]


def _text_not_utf8(data: bytes) -> bytes:
    return data[:8] + b"\xff" + data[9:]


@pytest.mark.parametrize(
    "change", [_bytes_cut, _text_not_utf8, lambda _: b"", lambda _: b"\xff" * 9]
)
def test_a_malformed_batch_is_refused(
    analyzer: ReportAnalyzer, change: Callable[[bytes], bytes]
) -> None:
    with pytest.raises(AnalyzerRefusal):
        Batch.from_bytes(change(batch_of(analyzer.new_key(RUN), 2).to_bytes()))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}\n",
        b'{"accepted": 1}\n' + bytes(8 * ENTRIES),
        b"[" * 10_000,
    ],
)
def test_a_malformed_answer_is_an_error(data: bytes) -> None:
    with pytest.raises(AnalyzerError):
        ReportSums.from_bytes(data, ENTRIES)


@pytest.mark.parametrize("name", ["central_epsilon", "central_epsilon_minimum", "delta"])
@pytest.mark.parametrize("claimed", [math.nan, math.inf, -1.0])
def test_an_answer_that_claims_no_number_is_an_error(
    analyzer: ReportAnalyzer, name: str, claimed: float
) -> None:
    found = analyzer.sums(batch_of(analyzer.new_key(RUN), 30))
    with pytest.raises(AnalyzerError):
        ReportSums.from_bytes(replace(found, **{name: claimed}).to_bytes(), ENTRIES)
