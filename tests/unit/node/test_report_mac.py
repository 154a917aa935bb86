"""Stored reports: the node's mark on them, their form, and what others put in their place."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict
from hypothesis import given
from hypothesis import strategies as st

from flower_ldp.clients import RELEASES, OwnerAuthorizer, ReleaseRequest
from flower_ldp.clients.release import open_proposal
from flower_ldp.errors import RefusalError
from flower_ldp.node.gates import FormatChecked
from flower_ldp.node.report_mac import KEY_SUFFIX, MacAuthorizer, mark_key, marked, unmarked
from flower_ldp.node.startup import named_gate
from flower_ldp.wire.proposal import PAYLOAD_KEY, REPORT_KEY
from tests.fixtures import accounts, make_site, not_called, payload, policy_text
from tests.unit.clients.world import App, training
from tests.unit.node.test_guard import TRAINED, ask

ONE = ReleaseRequest(3, "m-1", "train", (), '{"a": 1}')


@pytest.fixture
def site(tmp_path: Path) -> Context:
    return make_site(tmp_path, policy_text("{train: {signds: {epsilon: 2.0}}}"))


app = training(TRAINED)


def privatize(one: Message, site: Context, called: App) -> Message:
    return named_gate("privatize")(one, site, called)


def sealing(report: Callable[[bytes, ReleaseRequest], bytes], site: Context) -> str:
    """Have a program beside the node seal something for a message; return the node's refusal."""
    one = ask()
    request = open_proposal(RELEASES, one).request(one.metadata)
    honest = payload(privatize(ask(message_id="other"), site, app))
    OwnerAuthorizer().authorize(request, site).keep(report(honest, request), False)
    return str(privatize(one, site, not_called).error.reason)


def test_a_report_is_given_again_and_is_marked(site: Context, tmp_path: Path) -> None:
    one = ask()
    assert payload(privatize(one, site, app)) == payload(privatize(one, site, not_called))
    key = mark_key(tmp_path / "ledger.sqlite")
    assert key not in (tmp_path / "ledger.sqlite").read_bytes()


@pytest.mark.parametrize(
    "report",
    [
        lambda honest, request: b"",
        lambda honest, request: b"\x01\x01" + bytes(9),
        lambda honest, request: bytes(56_018),
        lambda honest, request: honest,
        lambda honest, request: marked(bytes(32), request, honest),
    ],
    ids=["empty", "short", "long", "an honest one without a mark", "another key"],
)
def test_what_another_program_sealed_is_not_sent(
    report: Callable[[bytes, ReleaseRequest], bytes], site: Context
) -> None:
    assert sealing(report, site) == "ldp:refused:ledger"


def test_even_with_the_key_only_the_form_of_a_report_leaves(site: Context, tmp_path: Path) -> None:
    def forge(honest: bytes, request: ReleaseRequest) -> bytes:
        return marked(mark_key(tmp_path / "ledger.sqlite"), request, bytes(56_018))

    assert sealing(forge, site) == "ldp:failed"


@given(st.binary(max_size=40), st.integers(0, 7), st.integers(0, 500), st.integers(1, 255))
def test_a_mark_holds_for_its_own_alone(report: bytes, place: int, where: int, change: int) -> None:
    key = bytes(range(32))
    sealed = marked(key, ONE, report)
    assert unmarked(key, ONE, sealed) == report
    changes = ({"run_id": 4}, {"message_id": "m-2"}, {"message_type": "evaluate"})
    changes += ({"parameters": '{"a": 2}'}, {"part": "p"}, {"memo": "kept"})
    others = [replace(ONE, **change) for change in changes]
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
    assert privatize(ask(), site, not_called).error.reason == "ldp:refused:ledger"
    assert accounts(tmp_path) == (0, 0)
    with pytest.raises(RefusalError):
        MacAuthorizer().authorize(ONE, site)


@pytest.mark.parametrize("kind", ["train", "evaluate", "query"])
def test_a_gate_whose_answer_is_no_report_sends_nothing(kind: str, site: Context) -> None:
    def broken(one: Message, *_: object) -> Message:
        record = ConfigRecord({PAYLOAD_KEY: b"secret"})
        return Message(RecordDict({REPORT_KEY: record}), reply_to=one)

    assert FormatChecked(broken)(ask(kind=kind), site, not_called).error.reason == "ldp:failed"


def test_a_charge_that_is_gone_on_with_keeps_a_marked_report(site: Context, tmp_path: Path) -> None:
    one = ask()
    asked = open_proposal(RELEASES, one).request(one.metadata)
    with closing(MacAuthorizer().authorize(asked, site)):
        pass  # no report was kept
    with closing(MacAuthorizer().resume(asked, site)) as permit:
        permit.keep(b"report", False)
    assert accounts(tmp_path) == (1, 1)
    with closing(MacAuthorizer().authorize(asked, site)) as permit:
        assert permit.stored == b"report"
    with closing(OwnerAuthorizer().authorize(asked, site)) as permit:
        assert permit.stored == marked(mark_key(tmp_path / "ledger.sqlite"), asked, b"report")
