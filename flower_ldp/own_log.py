"""The client's own log, written so that writing it decides nothing.

A handler that the app or its libraries added to Python's loggers may fail. What is logged after the
app was called depends on private data, so a line that cannot be written must not become an error:
it would leave the gate, and Flower sends its text.
"""

from __future__ import annotations

import logging


def say(log: logging.Logger, level: int, text: str, *values: object) -> None:
    """Log a line, or leave it out where a handler fails.

    Parameters
    ----------
    log : Logger
        Where to.
    level : int
        As ``logging.ERROR``.
    text, *values
        As :meth:`logging.Logger.log` has them.
    """
    try:
        log.log(level, text, *values, stacklevel=2)
    except KeyboardInterrupt:
        raise
    except BaseException:  # there is no other log to say it in
        return
