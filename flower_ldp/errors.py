"""The package's own exceptions.

Everything here may carry private detail in its text, because it is raised on
the client: :class:`~flower_ldp.clients.LdpMod` logs the text locally and lets
only a constant code leave.
What a text quotes may come from the other side and be of any length: :func:`quoted` shows its
beginning, and every text is cut.

A log line may fail too: a handler that the app or its libraries added to Python's loggers may
raise. What is logged after the app was called depends on private data, so a line that cannot be
written must not become an error: it would leave the gate, and Flower sends its text. So the gate
logs by :func:`say`.
"""

import logging
import reprlib
from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager
from itertools import islice

from flower_ldp.refusals import REFUSED_BUDGET

MOST_TEXT = 4_000
"""Longest text of an error of this package, in characters."""
_MOST_QUOTED = 80


@contextmanager
def needed(what: str, extra: str) -> Iterator[None]:
    """Say which extra of this package brings what an import misses.

    Parameters
    ----------
    what : str
        What is needed for what, as "an audit needs scipy".
    extra : str
        Name of the extra.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "flower_ldp":
            raise
        told = f"{what}: pip install 'flower-ldp[{extra}]'"
        raise ModuleNotFoundError(told, name=error.name) from error


def cut(text: str, most: int = MOST_TEXT) -> str:
    """Return a text, or its beginning and how long it is."""
    if len(text) <= most:
        return text
    return f"{text[:most]}... ({len(text):,} characters)"


def one_line(text: str, most: int) -> str:
    """Return a text that somebody else wrote in one line, or its first characters."""
    text = "".join(c if c.isprintable() else " " for c in text[: most + 1])
    return text if len(text) <= most else f"{text[:most]}..."


def quoted(value: object, most: int = _MOST_QUOTED) -> str:
    """Return a value for an error's text: what ``repr`` says, or its beginning.

    The time it takes is bounded as well, whatever the value's size.

    Parameters
    ----------
    value : object
        Anything.
    most : int
        Characters that are shown of a text, bytes or another long representation.
    """
    return cut(_Quoting(most).repr(value), 4 * most + 60)


class _Quoting(reprlib.Repr):
    """Looks at the beginning of texts and collections, and at few levels of them."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most
        self.maxlevel = 2
        self.maxdict = self.maxlist = self.maxtuple = self.maxset = self.maxfrozenset = 8

    def repr1(self, x: object, level: int) -> str:
        if isinstance(x, (str, bytes, bytearray)):
            shown = repr(x[: self.most])
            unit = "characters" if isinstance(x, str) else "bytes"
            return shown if len(x) <= self.most else f"{shown}... ({len(x):,} {unit})"
        if isinstance(x, int) and x.bit_length() > 256:  # Python refuses to write very long ones
            return f"an integer of {x.bit_length():,} bits"
        if isinstance(x, (Mapping, Set)) and type(x) not in (dict, set, frozenset):
            return f"{type(x).__name__} {self.repr1(list(islice(x, self.maxlist + 1)), level)}"
        # Sets and dictionaries are sorted by reprlib, all of them.
        if isinstance(x, (set, frozenset)) and len(x) > self.maxset:
            x = list(islice(x, self.maxlist + 1))
        if isinstance(x, dict):
            x = dict(islice(x.items(), self.maxdict + 1))
        return super().repr1(x, level)

    def repr_instance(self, x: object, level: int) -> str:
        return cut(repr(x), self.most)


class LdpError(Exception):
    """Base of the errors that this package defines; their texts are cut to :data:`MOST_TEXT`."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*(cut(one) if isinstance(one, str) else one for one in arguments))


class ConfigError(LdpError, ValueError):
    """A configuration file or value is wrong; the text names file, line and field."""


class RefusalError(LdpError):
    """The client declines to answer, for a reason that depends on public state alone.

    Parameters
    ----------
    code : str
        Constant that travels to the server, one of :mod:`flower_ldp.refusals`.
    detail : str
        Explanation for the client's own log; never sent.
    """

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code
        self.detail = cut(detail)


class BudgetExhausted(RefusalError):  # noqa: N818  # a decision, not a fault
    """The release would cost more than a limit of the data owner's leaves.

    Parameters
    ----------
    detail : str
        What was spent, asked and allowed; for the client's own log.
    """

    def __init__(self, detail: str) -> None:
        super().__init__(REFUSED_BUDGET, detail)


class LedgerError(LdpError):
    """The privacy ledger cannot be used; the text names the file and what to do.

    Nothing was released, and nothing may be until it is put right.
    """


class ReleaseError(LdpError):
    """A reply could not be privatized: the app failed, or data are not those paid for."""


class WireError(LdpError, ValueError):
    """Bytes or records from the other side are not a well-formed message.

    Parameters
    ----------
    reason : str
        Short constant slug, such as ``"length"``; rejected replies are counted by it.
    detail : str
        Explanation for the log; empty if the reason says it all.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason
        self.detail = cut(detail)


def error_text(error: Exception) -> str:
    """Return why something failed, without the path that the system's own text repeats."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def say(log: logging.Logger, level: int, text: str, *values: object) -> None:
    """Log a line, or leave it out where a handler fails: writing it decides nothing.

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
