"""What a run's progress says: rounds, clients, and seconds left, to whom it may concern."""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Sequence
from typing import Any, TextIO

import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid

from flower_ldp.simulation.progress import RunProgress, Watcher, watching
from tests.fixtures import message
from tests.unit.simulation import apps


class Watch:
    """A clock that is set by hand."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def messages(count: int, server_round: int | None = None, kind: str = "train") -> list[Message]:
    config = ConfigRecord({} if server_round is None else {"server-round": server_round})
    return [message(RecordDict({"config": config}), node=node, kind=kind) for node in range(count)]


def answer(pace: RunProgress, watch: Watch, count: int, seconds: float) -> None:
    for _ in range(count):
        watch.now += seconds
        pace.answered(0)


def test_rounds_are_the_strategys_own_where_its_messages_say_them() -> None:
    pace = RunProgress(10)
    pace.sent(messages(4, 3))
    answer(pace, Watch(), 4, 0.0)
    pace.sent(messages(2, 3, "evaluate"))
    assert (pace.text(), pace.clients()) == ("round 3 of 10, evaluate", "0 of 2 clients")
    pace.sent(messages(1, 4))
    assert (pace.round, pace.asked) == (4, 1)


def test_each_push_is_a_round_where_no_message_says_one() -> None:
    pace = RunProgress()
    for number in (1, 2, 3):
        pace.sent(messages(2_000, kind="query"))
        assert pace.text() == f"round {number}, query"
        answer(pace, Watch(), 1_500, 0.0)
        assert pace.clients() == "1,500 of 2,000 clients"
        answer(pace, Watch(), 500, 0.0)


def test_messages_that_are_sent_in_pieces_are_one_round() -> None:
    pace = RunProgress()
    pace.sent(messages(2))
    pace.answered(1)
    pace.sent(messages(3))
    assert (pace.round, pace.clients()) == (1, "1 of 5 clients")


def test_seconds_left_are_those_of_the_round_where_nobody_knows_how_many() -> None:
    watch = Watch()
    pace = RunProgress(clock=watch)
    pace.sent(messages(10))
    assert pace.left() == ""
    answer(pace, watch, 4, 2.0)
    assert pace.left() == "12 s left"


def test_seconds_left_in_the_first_round_are_by_its_replies_and_then_by_whole_rounds() -> None:
    watch = Watch()
    pace = RunProgress(4, clock=watch)
    pace.sent(messages(10, 1))
    answer(pace, watch, 5, 2.0)
    assert pace.seconds_left == pytest.approx(5 * 2.0 + 3 * 10 * 2.0)
    answer(pace, watch, 5, 2.0)
    watch.now += 10.0  # the server's own work
    pace.sent(messages(10, 2))
    assert pace.seconds_left == pytest.approx(3 * 30.0)
    watch.now += 12.0
    assert pace.seconds_left == pytest.approx(3 * 30.0 - 12.0)
    watch.now += 100.0  # it takes longer than the one before
    assert pace.seconds_left == pytest.approx(2 * 30.0)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.4, "0 s left"), (99.4, "99 s left"), (150.0, "2 min left"), (7_300.0, "2 h 2 min left")],
)
def test_long_times_are_said_in_minutes(seconds: float, words: str) -> None:
    watch = Watch()
    pace = RunProgress(clock=watch)
    pace.sent(messages(2))
    answer(pace, watch, 1, seconds)
    assert pace.left() == words


def test_a_display_is_not_drawn_for_each_message_but_at_the_end() -> None:
    watch = Watch()
    shown: list[int] = []
    display = RunProgress(None, lambda pace: shown.append(pace.answered_now), 5.0, watch)
    display.sent(messages(100))
    for _ in range(99):
        watch.now += 0.125
        display.answered(0)
    assert shown == [40, 80]
    display.close()
    assert shown == [40, 80, 99]


def run(**options: Any) -> None:
    """Run two rounds of three clients; the third fails."""

    def work(_: Message, context: Context) -> int:
        if apps.partition(context) == 2:
            raise ZeroDivisionError
        return 0

    def ask(grid: Grid) -> None:
        for _ in range(2):
            apps.ask_all(grid)

    apps.asked(apps.client(work), ask, 3, **options)


def test_a_watcher_of_ones_own_is_told_of_every_message() -> None:
    told: list[tuple[str, int]] = []

    class Mine:
        def sent(self, messages: Sequence[Message]) -> None:
            told.append(("sent", len(messages)))

        def answered(self, waiting: int) -> None:
            told.append(("answered", waiting))

    run(progress=Mine())
    assert told == [("sent", 3), ("answered", 2), ("answered", 1), ("answered", 0)] * 2


def test_without_a_terminal_nothing_is_said_unless_it_is_asked_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    try:
        run()
        run(progress=False)
        assert capsys.readouterr().err == ""
        run(progress=True, run_config={"num-server-rounds": 2})
    finally:
        logging.getLogger("flwr").setLevel(logging.DEBUG)
    assert capsys.readouterr().err == "round 2 of 2, train, 3 of 3 clients, 0 s left\n"


class Terminal(io.StringIO):
    """Says that it is one."""

    def isatty(self) -> bool:
        return True


def test_a_terminal_has_a_bar_and_logs_stand_above_it(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, output = Terminal(), sys.stdout
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    handler: logging.StreamHandler[TextIO] = logging.StreamHandler(terminal)
    logger = logging.getLogger("flwr")
    logger.addHandler(handler)
    try:
        with watching(None, 2) as watcher:
            watcher.sent(messages(3, 2))
            watcher.answered(2)
            logger.warning("said meanwhile")
            assert sys.stdout is output  # a debugger's
    finally:
        logger.removeHandler(handler)
    assert handler.stream is terminal
    drawn = terminal.getvalue()
    assert "said meanwhile\n" in drawn
    below = drawn.split("said meanwhile\n")[1]
    assert "round 2 of 2, train" in below
    assert "1 of 3 clients" in below
    with watching(False, None) as watcher:
        assert type(watcher) is Watcher
