"""Stored reports: the node's mark on them, their form, and what others put in their place."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict
from hypothesis import given
from hypothesis import strategies as st

from flower_ldp.accounting.ledger import Ledger
from flower_ldp.clients import RELEASES, OwnerAuthorizer, ReleaseRequest
from flower_ldp.clients.release import open_proposal
from flower_ldp.errors import RefusalError
from flower_ldp.mechanisms import SignDS
from flower_ldp.node.gates import FormatChecked
from flower_ldp.node.report_mac import KEY_SUFFIX, MacAuthorizer, mark_key, marked, unmarked
from flower_ldp.node.startup import named_gate
from flower_ldp.wire.proposal import PAYLOAD_KEY, REPORT_KEY
from tests.fixtures import message, proposal, record

MODEL = {"w": np.zeros((20, 30), dtype=np.float32)}
TRAINED = {"w": np.linspace(-1, 1, 600, dtype=np.float32).reshape(20, 30)}
POLICY = """
data_id: ward-7
ledger: ledger.sqlite
mode: deployment
messages: {train: {signds: {epsilon: 2.0}}}
budgets: {client: {life: {epsilon: 100.0}}}
"""
ONE = ReleaseRequest(3, "m-1", "train", (), '{"a": 1}')


@pytest.fixture
def site(tmp_path: Path) -> Context:
    (tmp_path / "policy.yaml").write_text(POLICY)
    Ledger.open(tmp_path / "ledger.sqlite", create=True).close()
    return Context(3, 7, {"ldp-policy": str(tmp_path / "policy.yaml")}, RecordDict(), {})


def ask() -> Message:
    return message(proposal(MODEL, SignDS(epsilon=2.0, k=0.2)))


def app(one: Message, _: Context) -> Message:
    return Message(RecordDict({"a": record(TRAINED)}), reply_to=one)


def not_called(one: Message, _: Context) -> Message:
    raise AssertionError("the app was called")


def payload(answer: Message) -> bytes:
    report = answer.content.config_records[REPORT_KEY][PAYLOAD_KEY]
    assert isinstance(report, bytes)
    return report


def sealing(report: Callable[[bytes, ReleaseRequest], bytes], site: Context) -> Message:
    """Have a program beside the node seal something for a message; deliver that to the node."""
    one = ask()
    opened = RELEASES["train"].open(one.content)
    metadata = one.metadata
    request = ReleaseRequest(
        metadata.run_id, metadata.message_id, "train", opened.events, opened.parameters
    )
    honest = payload(named_gate("privatize")(_again("other", one), site, app))
    OwnerAuthorizer().authorize(request, site).keep(report(honest, request), False)
    return named_gate("privatize")(one, site, not_called)


def _again(name: str, one: Message) -> Message:
    other = ask()
    other.metadata.__dict__["_message_id"] = name
    return other


def test_a_report_is_given_again_and_the_ledger_holds_it_marked(
    site: Context, tmp_path: Path
) -> None:
    one = ask()
    first = named_gate("privatize")(one, site, app)
    again = named_gate("privatize")(one, site, not_called)
    assert payload(first) == payload(again)
    key = mark_key(tmp_path / "ledger.sqlite")
    assert key not in (tmp_path / "ledger.sqlite").read_bytes()


@pytest.mark.parametrize("made_up", [b"", b"\x01\x01" + bytes(9), bytes(56_018)])
def test_what_another_program_sealed_is_not_sent(made_up: bytes, site: Context) -> None:
    answer = sealing(lambda honest, request: made_up, site)
    assert answer.error.reason == "ldp:refused:ledger"


def test_an_honest_report_without_a_mark_or_with_another_key_is_not_sent(site: Context) -> None:
    answer = sealing(lambda honest, request: honest, site)
    assert answer.error.reason == "ldp:refused:ledger"


def test_a_mark_by_another_key_is_not_taken(site: Context) -> None:
    answer = sealing(lambda honest, request: marked(bytes(32), request, honest), site)
    assert answer.error.reason == "ldp:refused:ledger"


def test_even_with_the_key_only_the_form_of_a_report_leaves(site: Context, tmp_path: Path) -> None:
    key = []

    def forge(honest: bytes, request: ReleaseRequest) -> bytes:
        key.append(mark_key(tmp_path / "ledger.sqlite"))
        return marked(key[0], request, bytes(56_018))

    assert sealing(forge, site).error.reason == "ldp:failed"
    assert len(key) == 1


@given(st.binary(max_size=40), st.integers(0, 7), st.integers(0, 500), st.integers(1, 255))
def test_a_mark_holds_for_its_report_request_and_key_alone(
    report: bytes, place: int, where: int, change: int
) -> None:
    key = bytes(range(32))
    sealed = marked(key, ONE, report)
    assert unmarked(key, ONE, sealed) == report
    others = (
        ReleaseRequest(4, "m-1", "train", (), '{"a": 1}'),
        ReleaseRequest(3, "m-2", "train", (), '{"a": 1}'),
        ReleaseRequest(3, "m-1", "evaluate", (), '{"a": 1}'),
        ReleaseRequest(3, "m-1", "train", (), '{"a": 2}'),
        ReleaseRequest(3, "m-1", "train", (), '{"a": 1}', part="p"),
        ReleaseRequest(3, "m-1", "train", (), '{"a": 1}', memo="kept"),
    )
    broken = bytearray(sealed)
    broken[where % len(sealed)] ^= change
    attempts = [(key, ONE, bytes(broken)), (key, ONE, sealed[:-1]), (key, ONE, sealed + b"x")]
    attempts += [(key, other, sealed) for other in others] + [(bytes(32), ONE, sealed)]
    for attempt in attempts:
        with pytest.raises(RefusalError):
            unmarked(*attempt)


def test_the_key_is_made_once_and_must_be_the_users_alone(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.sqlite"
    file = tmp_path / f"ledger.sqlite{KEY_SUFFIX}"
    key = mark_key(ledger)
    assert (len(key), mark_key(ledger)) == (32, key)
    assert file.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == [file.name]
    file.chmod(0o640)
    with pytest.raises(OSError, match="alone"):
        mark_key(ledger)
    file.chmod(0o600)
    file.write_bytes(key[:-1])
    with pytest.raises(OSError, match="no key"):
        mark_key(ledger)
    file.rename(tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match=r"symbolic|Too many"):
        mark_key(ledger)


def test_without_a_key_nothing_is_charged(site: Context, tmp_path: Path) -> None:
    os.mkdir(tmp_path / f"ledger.sqlite{KEY_SUFFIX}")
    answer = named_gate("privatize")(ask(), site, not_called)
    assert answer.error.reason == "ldp:refused:ledger"
    with Ledger.open(tmp_path / "ledger.sqlite") as ledger:
        assert ledger.verify().entries == 0
    with pytest.raises(RefusalError):
        MacAuthorizer().authorize(ONE, site)


@pytest.mark.parametrize("kind", ["train", "evaluate", "query"])
def test_a_gate_whose_answer_is_no_report_sends_nothing(kind: str, site: Context) -> None:
    def broken(one: Message, *_: object) -> Message:
        record = ConfigRecord({PAYLOAD_KEY: b"secret"})
        return Message(RecordDict({REPORT_KEY: record}), reply_to=one)

    one = message(proposal(MODEL, SignDS(epsilon=2.0, k=0.2)), kind=kind)
    assert FormatChecked(broken)(one, site, not_called).error.reason == "ldp:failed"


def test_a_charge_that_is_gone_on_with_keeps_a_marked_report(site: Context, tmp_path: Path) -> None:
    one = ask()
    asked = open_proposal(RELEASES, one).request(one.metadata)
    with closing(MacAuthorizer().authorize(asked, site)):
        pass  # no report was kept
    with closing(MacAuthorizer().resume(asked, site)) as permit:
        permit.keep(b"report", False)
    with Ledger.open(tmp_path / "ledger.sqlite") as ledger:
        assert ledger.verify().sealed == 1
    with closing(MacAuthorizer().authorize(asked, site)) as permit:
        assert permit.stored == b"report"
    with closing(OwnerAuthorizer().authorize(asked, site)) as permit:
        assert permit.stored == marked(mark_key(tmp_path / "ledger.sqlite"), asked, b"report")
