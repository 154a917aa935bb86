"""Makes the node's log safe against texts of an app or the server: names, types, errors.

No record can look like two, steer a terminal or be longer than a page. Flower's records are
bounded, so that an app cannot fill the disk with the ledger on it. This package's are never
dropped.
"""

import logging
import re
import threading
import time
from collections.abc import Callable

#: Characters of one record; of a longer one the beginning is kept.
LONGEST = 8192
#: Bytes that are written at once, and in an hour.
IN_AN_HOUR = 64 << 20
#: What Flower, and the server of its runtime API, write by.
LOGGERS = ("flwr", "uvicorn", "uvicorn.error", "uvicorn.access")
# Control characters but tab and line feed, and those that set the direction of text.
_STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
_HOUR = 3600.0


class Allowance(logging.Filter):
    """Up to ``largest`` bytes that may be written, which come back within an hour."""

    def __init__(self, largest: int, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._largest = largest
        self._clock = clock
        self._left = float(largest)
        self._since = clock()
        self._lock = threading.Lock()

    def take(self, size: int) -> bool:
        """Take some bytes; return whether there are as many."""
        with self._lock:
            now = self._clock()
            grown = (now - self._since) * self._largest / _HOUR
            self._left, self._since = min(self._largest, self._left + grown), now
            if size > self._left:
                return False
            self._left -= size
            return True

    def filter(self, record: logging.LogRecord) -> bool:
        """Take a record's length; return whether it may be written."""
        return self.take(64 + len(str(record.msg)) + len(record.exc_text or ""))


def plain(text: str) -> str:
    """Escape and shorten a text for the log; further lines are indented."""
    if len(text) > LONGEST:
        text = f"{text[:LONGEST]}... ({len(text)} characters)"
    written = _STEERING.sub(lambda one: one[0].encode("unicode_escape").decode(), text)
    return written.replace("\n", "\n    ")


def keep_plain(allowance: Allowance) -> None:
    """Make every record of this process plain, and bound Flower's."""
    make = logging.getLogRecordFactory()

    def make_plain(*args: object, **more: object) -> logging.LogRecord:
        record = make(*args, **more)
        try:
            record.msg, record.args = plain(record.getMessage()), None
        except Exception:  # words that do not fit their arguments: logging says so itself
            return record
        if record.exc_info:
            record.exc_text = plain(logging.Formatter().formatException(record.exc_info))
        return record

    logging.setLogRecordFactory(make_plain)
    for name in LOGGERS:
        logging.getLogger(name).addFilter(allowance)
