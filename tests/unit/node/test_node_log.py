"""The node's log: no record of Flower's looks like two, steers a terminal, or fills the disk."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator

import pytest
from flwr.supercore.logger import ConsoleHandler

from flower_ldp.node.log import LOGGERS, LONGEST, Allowance, keep_plain, plain


@pytest.fixture
def clock() -> list[float]:
    """What an allowance takes for the time."""
    return [0.0]


@pytest.fixture
def written(clock: list[float]) -> Iterator[io.StringIO]:
    """What Flower's logger writes, of a node that may write 40,000 bytes in an hour."""
    stream = io.StringIO()
    handler = ConsoleHandler(colored=False, stream=stream)
    make, allowance = logging.getLogRecordFactory(), Allowance(40_000, lambda: clock[0])
    keep_plain(allowance)
    logger = logging.getLogger("flwr")
    logger.addHandler(handler)
    yield stream
    logger.removeHandler(handler)
    logging.setLogRecordFactory(make)
    for name in LOGGERS:
        logging.getLogger(name).removeFilter(allowance)


def test_a_name_with_a_new_line_forges_no_record(written: io.StringIO) -> None:
    forged = "1]\nINFO :      Sent successfully\x1b[2J\u202e"
    logging.getLogger("flwr").info("[RUN %s, ROUND %s]", 7, forged)
    first, second = written.getvalue().splitlines()
    assert first == "INFO :      [RUN 7, ROUND 1]"
    assert second == "    INFO :      Sent successfully\\x1b[2J\\u202e]"


def test_an_error_quotes_no_line_of_its_own(written: io.StringIO) -> None:
    try:
        raise ValueError("a\nERROR : forged\r\x07" + "x" * 100_000)
    except ValueError:
        logging.getLogger("flwr").exception("failed")
    lines = written.getvalue().splitlines()
    assert not any(line.startswith("ERROR : forged") for line in lines)
    assert len(written.getvalue()) < 2 * LONGEST
    assert "\r" not in written.getvalue()


def test_what_flower_writes_is_bounded(written: io.StringIO, clock: list[float]) -> None:
    text = "x" * 136  # 200 with what is around it
    for now, most in ((0.0, 200), (1800.0, 300)):
        clock[0] = now
        for _ in range(1000):
            logging.getLogger("flwr").info("%s", text)
        assert written.getvalue().count(text) == most


def test_own_records_are_kept(written: io.StringIO, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(500):
        logging.getLogger("flower_ldp").warning("%s", "x" * 1000)
    assert len(caplog.records) == 500


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("", ""),
        ("a\tb", "a\tb"),
        ("a\nb", "a\n    b"),
        ("\x00\x1b\x7f\x9b", "\\x00\\x1b\\x7f\\x9b"),
        ("\u00fc \u2028", "\u00fc \\u2028"),
    ],
)
def test_plain(text: str, shown: str) -> None:
    assert plain(text) == shown


def test_a_record_whose_words_do_not_fit_is_left_to_logging(written: io.StringIO) -> None:
    record = logging.getLogRecordFactory()("flwr", 20, "", 0, "%d", ("x",), None)
    assert record.args == ("x",)
