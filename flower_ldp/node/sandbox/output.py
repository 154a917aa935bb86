"""What an app prints, on its way to the node's log.

A log that an app could write to directly it could also read, empty, or fill with lines that look
like the node's. So its output comes through a pipe, each line begins with a mark, and characters
that steer a terminal are written out.
"""

from __future__ import annotations

import re
import threading
from typing import BinaryIO

from flower_ldp.node.log import IN_AN_HOUR, Allowance

#: Begins each line of an app's.
MARK = b"[app] "
#: Longer lines are cut into several.
LONGEST = 4096
#: Bytes that one app may write: no more, so that it cannot fill the disk with the ledger on it.
LARGEST = 16 << 20
_COLOURS = re.compile(rb"\x1b\[[0-9;]*m")
_STEERING = re.compile(rb"[\x00-\x08\x0b-\x1f\x7f]|\xc2[\x80-\x9f]")


def harmless(line: bytes) -> bytes:
    """Return a line as it is written to the log: marked, without colours and control characters."""
    text = _COLOURS.sub(b"", line.rstrip(b"\r\n"))
    return MARK + _STEERING.sub(lambda one: repr(one[0])[2:-1].encode(), text) + b"\n"


def copy_output(
    source: BinaryIO,
    target: BinaryIO,
    largest: int = LARGEST,
    of_all: Allowance | None = None,
) -> threading.Thread:
    """Copy an app's output to a log until it ends, in a thread of its own; return that.

    What is beyond ``largest`` bytes, or what all apps together may write, is read, so that the
    app does not wait, and dropped.
    """
    together = Allowance(IN_AN_HOUR) if of_all is None else of_all

    def copy() -> None:
        left = largest
        with source:
            while line := source.readline(LONGEST):
                if left > 0:
                    left = left - len(line) if together.take(len(line)) else 0
                    more = (
                        b"" if left > 0 else harmless(b"(what it writes from here on is dropped)")
                    )
                    target.write(harmless(line) + more)
                    target.flush()

    thread = threading.Thread(target=copy, name="flower-ldp-app-output", daemon=True)
    thread.start()
    return thread
