"""Once the app was called, the answer has one form: whatever it does, for every release."""

from __future__ import annotations

import logging
import os
import resource
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import fixedclipping_mod

from flower_ldp.accounting.ledger import Ledger
from flower_ldp.clients import RELEASES, LdpMod
from flower_ldp.clients.diagnostics import MOST_CAUSE
from flower_ldp.wire.proposal import PAYLOAD_KEY, PROPOSAL_KEY, REPORT_KEY
from tests.fixtures import record, wait_for_counts
from tests.unit.node.test_node_reports import KINDS, POLICY, Kind, asked, payload, raw_app

App = Callable[[Message, Context], Message]
EVERY_KIND = pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))
#: Long enough for an app that does nothing, on a busy machine; and a long time after it.
AFTER, LONG = 0.8, 15.0


class Own(BaseException):
    """Neither an Exception nor one of Python's own ways to end."""


class Unspeakable(Exception):  # noqa: N818  # what it is called does not matter
    """Fails when it is asked what it says."""

    def __str__(self) -> str:
        raise SystemExit("no")


class Posing(Message):
    """Fails when it is asked what it is."""

    def has_error(self) -> bool:
        raise Own


def raising(error: BaseException) -> App:
    def app(one: Message, _: Context) -> Message:
        raise error

    return app


def spoiled(change: Callable[[np.ndarray], np.ndarray], kind: Kind) -> App:
    arrays = {name: change(array.copy()) for name, array in kind.raw.items()}

    def app(one: Message, _: Context) -> Message:
        metrics = MetricRecord({"loss": float("nan")})
        return Message(RecordDict({"a": record(arrays), "m": metrics}), reply_to=one)

    return app


def elsewhere(kind: Kind) -> App:
    """Answer rightly, and write into all that an app is given."""

    def app(one: Message, context: Context) -> Message:
        reply = raw_app(kind)(one, context)
        for metadata in (one.metadata, reply.metadata):
            metadata.group_id, metadata.dst_node_id, metadata.ttl = "secret", 4711, 1.5
            metadata.__dict__.update(_message_id="secret", _run_id=4711, _src_node_id=4711)
        for name in list(one.content):
            del one.content[name]
        one.content["secret"] = ConfigRecord({"secret": 1})
        return reply

    return app


def posing(one: Message, _: Context) -> Message:
    return Posing(RecordDict(), reply_to=one)


FAILURES: dict[str, Callable[[Kind], App]] = {
    "raises": lambda _: raising(ValueError("secret")),
    "exits": lambda _: raising(SystemExit("secret")),
    "closes": lambda _: raising(GeneratorExit("secret")),
    "own": lambda _: raising(Own("secret")),
    "memory": lambda _: raising(MemoryError("secret")),
    "unspeakable": lambda _: raising(Unspeakable()),
    "none": lambda _: cast(App, lambda one, context: None),
    "text": lambda _: cast(App, lambda one, context: "secret"),
    "posing": lambda _: posing,
    "error": lambda _: lambda one, context: Message(Error(7, "secret"), reply_to=one),
    "empty": lambda _: lambda one, context: Message(RecordDict(), reply_to=one),
    "nan": lambda kind: spoiled(lambda array: array * np.nan, kind),
    "shape": lambda kind: spoiled(lambda array: array.T[:2], kind),
}


@pytest.fixture
def site(tmp_path: Path) -> Context:
    """Return the context of a client with a deployment's policy and an empty ledger."""
    (tmp_path / "policy.yaml").write_text(POLICY)
    Ledger.open(tmp_path / "ledger.sqlite", create=True).close()
    return Context(3, 7, {"ldp-policy": str(tmp_path / "policy.yaml")}, RecordDict(), {})


def gate() -> LdpMod:
    return LdpMod(actions=RELEASES)


def never(one: Message, _: Context) -> Message:
    raise AssertionError("the app was asked")


def where(reply: Message) -> dict[str, Any]:
    """What a server sees of a reply beside the report, but for when it was made."""
    fields = dict(vars(reply.metadata))
    assert fields.pop("_created_at") - time.time() + 60 >= 0
    assert 3_500 < fields.pop("_ttl") <= 3_600
    return fields


def counts(tmp_path: Path) -> dict[str, int]:
    with Ledger.open(tmp_path / "ledger.sqlite") as ledger:
        ledger.verify()
        return {kind: number for kind, number in ledger.counts("ward-7").items() if number}


def met(failure: str) -> list[str]:
    """Return the kinds: all where their own code reads the answer, else two, by turns."""
    names, place = list(KINDS), list(FAILURES).index(failure)
    if failure in ("raises", "none", "empty"):
        return names
    if failure in ("nan", "shape"):  # of a query's rows each is read alone: these are no failure
        return [name for name in names if KINDS[name].type != "query"]
    return [names[(place + turn) % len(names)] for turn in (0, 2)]


@pytest.mark.parametrize(
    ("kind", "failure"),
    [
        pytest.param(KINDS[kind], failure, id=f"{failure}-{kind}")
        for failure in FAILURES
        for kind in met(failure)
    ],
)
def test_a_failing_app_leaves_a_report_as_any(
    kind: Kind, failure: str, site: Context, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    honest = gate()(asked(kind), site, raw_app(kind))
    one = asked(kind)
    one.metadata.__dict__["_message_id"] = "m-2"
    with caplog.at_level(logging.WARNING, logger="flower_ldp"):
        found = gate()(one, site, FAILURES[failure](kind))
    assert len(payload(found)) == kind.length == len(payload(honest))
    RELEASES[kind.type].open(one.content).check_form(payload(found))
    assert {**where(found), "_reply_to_message_id": ""} == {
        **where(honest),
        "_reply_to_message_id": "",
    }
    assert "secret" not in repr(vars(found.metadata)) + repr(dict(found.content))
    with Ledger.open(tmp_path / "ledger.sqlite") as ledger:
        verified = ledger.verify()
    assert (verified.entries, verified.sealed) == (2, 2)
    assert counts(tmp_path) == {"failed": 1}
    assert caplog.text  # the cause is in the client's log
    assert payload(gate()(one, site, never)) == payload(found)
    assert counts(tmp_path) == {"failed": 1, "again": 1}


class Refusing(logging.Handler):
    """What an app may add to the loggers of its process."""

    def emit(self, _: logging.LogRecord) -> None:
        raise Own("secret")


@pytest.fixture
def handler() -> Iterator[Callable[[], None]]:
    """Return what adds a handler that fails; afterwards it is taken away."""
    log, added = logging.getLogger("flower_ldp"), Refusing()
    yield lambda: log.addHandler(added)
    log.removeHandler(added)


@pytest.mark.parametrize(
    ("failure", "more"),
    [
        *((failure, "") for failure in ("raises", "own", "none", "nan", "shape")),
        # At a fixed moment, which takes its time: an app that raises, and one that replies.
        *((failure, f"answer_after: {{train: {AFTER}}}\n") for failure in ("own", "shape")),
    ],
)
def test_a_log_that_cannot_be_written_changes_nothing_that_leaves(
    failure: str, more: str, site: Context, handler: Callable[[], None], tmp_path: Path
) -> None:
    kind = KINDS["signds"]
    _add(site, more)

    def app(one: Message, context: Context) -> Message:
        handler()
        return FAILURES[failure](kind)(one, context)

    assert len(payload(gate()(asked(kind), site, app))) == kind.length
    assert payload(LdpMod(acknowledged=["train"])(asked(kind), site, app)) == b""
    wait_for_counts()
    assert counts(tmp_path)["failed"] == (2 if failure in {"raises", "own", "none"} else 1)


@EVERY_KIND
@pytest.mark.parametrize("fails", [False, True])
def test_an_app_that_uses_up_all_open_files_leaves_a_report_as_any(
    kind: Kind, fails: bool, site: Context, tmp_path: Path
) -> None:
    """As data loaders do where a client has many examples: "too many open files"."""
    held: list[int] = []
    before = resource.getrlimit(resource.RLIMIT_NOFILE)

    def app(one: Message, context: Context) -> Message:
        resource.setrlimit(
            resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 9, before[1])
        )
        with suppress(OSError):
            while True:
                held.append(os.open(os.devnull, os.O_RDONLY))
        if fails:
            raise OSError(24, "Too many open files")
        return raw_app(kind)(one, context)

    try:
        found = gate()(asked(kind), site, app)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        for one in held:
            os.close(one)
    assert len(held) >= 8
    assert len(payload(found)) == kind.length
    assert counts(tmp_path) == ({"failed": 1} if fails else {})


def of_the_ledger(tmp_path: Path) -> list[int]:
    """Return the descriptors under which this process has the ledger open."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # the folder's own
            if os.path.samestat(os.fstat(int(name)), (tmp_path / "ledger.sqlite").stat()):
                found.append(int(name))
    return found


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="no list of descriptors")
@pytest.mark.parametrize("then", ["nothing", "another file"])
@EVERY_KIND
def test_an_app_that_closes_all_files_leaves_a_report_as_any(
    kind: Kind, then: str, site: Context, tmp_path: Path
) -> None:
    """As what becomes a daemon does: the ledger's descriptor too, and its number is used again."""
    taken: list[int] = []

    def app(one: Message, context: Context) -> Message:
        found = of_the_ledger(tmp_path)
        assert found  # it stays open for the report
        for number in found:
            os.close(number)
            if then == "another file":
                other = os.open(tmp_path / f"own-{number}", os.O_RDWR | os.O_CREAT)
                if other != number:
                    os.dup2(other, number)
                    os.close(other)
                taken.append(number)
        return raw_app(kind)(one, context)

    found = gate()(asked(kind), site, app)
    assert len(payload(found)) == kind.length
    assert payload(gate()(asked(kind), site, never)) == payload(found)  # it is in the ledger
    assert counts(tmp_path) == {"again": 1}
    for number in taken:
        assert (tmp_path / f"own-{number}").read_bytes() == b""
        with suppress(OSError):
            os.close(number)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_an_app_that_comes_back_in_another_process_leaves_a_report(
    site: Context, tmp_path: Path
) -> None:
    kind, parent = KINDS["signds"], os.getpid()

    def app(one: Message, context: Context) -> Message:
        child = os.fork()
        if child:
            assert os.waitpid(child, 0)[1] == 0
            os._exit(0)
        return raw_app(kind)(one, context)

    outer = os.fork()
    if not outer:
        code = 1
        try:
            found = gate()(asked(kind), site, app)
            code = 0 if len(payload(found)) == kind.length else 2
        finally:
            os._exit(code)
    assert os.waitpid(outer, 0)[1] == 0
    assert os.getpid() == parent
    assert len(payload(gate()(asked(kind), site, never))) == kind.length
    assert counts(tmp_path) == {"again": 1}


@EVERY_KIND
def test_what_an_app_writes_into_its_message_changes_nothing_that_leaves(
    kind: Kind, site: Context
) -> None:
    honest = gate()(asked(kind), site, raw_app(kind))
    one = asked(kind)
    one.metadata.__dict__["_message_id"] = "m-2"
    found = gate()(one, site, elsewhere(kind))
    assert len(payload(found)) == kind.length
    seen, expected = where(found), where(honest)
    assert seen.pop("_reply_to_message_id") == "m-2"
    assert expected.pop("_reply_to_message_id") == "m-1"
    assert seen == expected


@EVERY_KIND
def test_the_gates_own_records_are_not_in_the_message_that_the_app_sees(
    kind: Kind, site: Context
) -> None:
    seen: list[str] = []

    def app(one: Message, context: Context) -> Message:
        seen.extend(one.content)
        assert len(one.content.config_records) == 1  # mods of Flower's take exactly one
        return raw_app(kind)(one, context)

    one = asked(kind)
    one.content["config"] = ConfigRecord({"lr": 0.1})
    payload(gate()(one, site, app))
    assert seen == ["arrays", "config"]
    assert PROPOSAL_KEY in one.content


def test_flowers_own_mod_for_clipping_works_behind_the_gate(site: Context, tmp_path: Path) -> None:
    kind = KINDS["gaussian"]
    one = asked(kind)
    one.content["config"] = ConfigRecord({"clipping_norm": 1.0})
    app = ClientApp(mods=[gate(), fixedclipping_mod])
    app.train()(raw_app(kind))
    assert len(payload(app(one, site))) == kind.length
    assert counts(tmp_path) == {}


def test_a_keyboard_interrupt_of_the_app_is_a_killed_process(site: Context) -> None:
    for text in ("", f"answer_after: {{train: {AFTER}}}\n"):
        _add(site, text)
        one = asked(KINDS["signds"])
        one.metadata.__dict__["_message_id"] = f"m{text[:3]}"
        with pytest.raises(KeyboardInterrupt):
            gate()(one, site, raising(KeyboardInterrupt()))


def test_a_long_cause_is_cut(site: Context, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="flower_ldp"):
        gate()(asked(KINDS["signds"]), site, raising(ValueError("x" * 10_000_000)))
    assert len(caplog.text) < 3 * MOST_CAUSE
    assert "characters are left out" in caplog.text


def test_a_count_that_fails_changes_no_answer(
    site: Context, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> int:
        raise OSError("disk full")

    monkeypatch.setattr(Ledger, "count", full)
    reply = gate()(asked(KINDS["signds"]), site, raising(ValueError("secret")))
    assert len(payload(reply)) == KINDS["signds"].length
    assert "was not counted" in caplog.text


def test_a_report_that_cannot_be_kept_does_not_leave_and_all_are_alike(
    site: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(Ledger, "seal", full)
    kind = KINDS["signds"]
    for number, app in enumerate((raw_app(kind), raising(ValueError("secret")))):
        one = asked(kind)
        one.metadata.__dict__["_message_id"] = f"m-{number}"
        assert gate()(one, site, app).error.reason == "ldp:failed"


def _add(site: Context, text: str) -> None:
    path = Path(str(site.node_config["ldp-policy"]))
    path.write_text(path.read_text() + text)


@pytest.fixture
def ended() -> Iterator[threading.Event]:
    """Return what late apps wait for; afterwards they are waited for."""
    event = threading.Event()
    yield event
    event.set()
    wait_for_counts()
    for thread in threading.enumerate():
        if thread.name == "flower-ldp-app":
            thread.join(LONG)


@pytest.mark.parametrize("name", ["signds", "laplace"])
def test_at_a_fixed_moment_everything_leaves(
    name: str, site: Context, tmp_path: Path, ended: threading.Event
) -> None:
    kind = KINDS[name]
    _add(site, f"answer_after: {{train: {AFTER}, evaluate: {AFTER}}}\n")

    def slow(one: Message, context: Context) -> Message:
        context.state["late"] = ConfigRecord({"late": 1})
        ended.wait(2 * LONG)
        return raw_app(kind)(one, context)

    def quick(one: Message, context: Context) -> Message:
        context.state["quick"] = ConfigRecord({"quick": 1})
        return raw_app(kind)(one, context)

    for number, app in enumerate((quick, raising(Own("secret")), slow)):
        one = asked(kind)
        one.metadata.__dict__["_message_id"] = f"m-{number}"
        began = time.monotonic()
        found = gate()(one, site, app)
        took = time.monotonic() - began
        assert AFTER <= took < LONG
        assert len(payload(found)) == kind.length
        assert payload(gate()(one, site, never)) == payload(found)
    wait_for_counts()
    assert counts(tmp_path)["failed"] == 2
    assert list(site.state) == ["quick"]  # what a late app does to it is lost


def test_an_acknowledgement_is_empty_and_counted_whatever_the_app_does(
    site: Context, tmp_path: Path, ended: threading.Event
) -> None:
    kind, taking = KINDS["signds"], LdpMod(acknowledged=["train"])
    honest = taking(asked(kind), site, raw_app(kind))
    for failure in ("raises", "exits", "own", "none", "error", "posing"):
        found = taking(asked(kind), site, FAILURES[failure](kind))
        assert where(found) == where(honest)
        assert dict(found.content) == {REPORT_KEY: ConfigRecord({PAYLOAD_KEY: b""})}
    assert counts(tmp_path) == {"acknowledged": 7, "failed": 6}
    _add(site, f"answer_after: {{train: {AFTER}}}\nrepeats: 9\n")
    for app in (raw_app(kind), lambda one, context: ended.wait(2 * LONG)):
        began = time.monotonic()
        assert payload(taking(asked(kind), site, cast(App, app))) == b""
        assert AFTER <= time.monotonic() - began < LONG
    assert taking(asked(kind), site, never).error.reason == "ldp:refused:budget"
