"""The package's own exceptions.

Texts may carry private detail: they are raised on the client, and
:class:`~flower_ldp.clients.LdpMod` logs them locally and sends a constant code alone. Quoted values
may come from the other side and be of any length: :func:`quoted` shows their beginning, and every
text is cut.

A handler of Python's loggers may raise. A log line after the app was called depends on private
data, so its failure must not become an error that leaves the gate. The gate logs by :func:`say`.
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
    """Raise ModuleNotFoundError that names this package's extra for an import that fails."""
    try:
        yield
    except ImportError as error:
        if (error.name or "").partition(".")[0] == "flower_ldp":
            raise
        told = f"{what}: pip install 'flower-ldp[{extra}]'"
        raise ModuleNotFoundError(told, name=error.name) from error


def cut(text: str, most: int = MOST_TEXT) -> str:
    """Return a text, or its beginning and its length."""
    if len(text) <= most:
        return text
    return f"{text[:most]}... ({len(text):,} characters)"


def one_line(text: str, most: int) -> str:
    """Return a foreign text in one line, or its beginning."""
    text = "".join(c if c.isprintable() else " " for c in text[: most + 1])
    return text if len(text) <= most else f"{text[:most]}..."


def quoted(value: object, most: int = _MOST_QUOTED) -> str:
    """Return a value's ``repr`` for an error's text, or its beginning, in bounded time.

    ``most`` is the number of characters of a text, bytes or another long representation.
    """
    return cut(_Quoting(most).repr(value), 4 * most + 60)


class _Quoting(reprlib.Repr):
    """Reads the beginning of texts and collections, and few levels of them."""

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
        Constant that goes to the server, one of :mod:`flower_ldp.refusals`.
    detail : str
        Explanation for the client's own log; never sent.
    """

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code
        self.detail = cut(detail)


class BudgetExhausted(RefusalError):  # noqa: N818  # a decision, not a fault
    """The release would exceed a limit of the data owner.

    Parameters
    ----------
    detail : str
        The spent, requested and allowed amounts; for the client's own log.
    """

    def __init__(self, detail: str) -> None:
        super().__init__(REFUSED_BUDGET, detail)


class LedgerError(LdpError):
    """The privacy ledger cannot be used; the text names the file and what to do.

    Nothing is released until this is repaired.
    """


class ReleaseError(LdpError):
    """A reply could not be privatized: the app failed, or the data are not those paid for."""


class WireError(LdpError, ValueError):
    """Bytes or records from the other side are not a well-formed message.

    Parameters
    ----------
    reason : str
        Short constant slug, such as ``"length"``; rejected replies are counted by it.
    detail : str
        Explanation for the log, or empty.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason
        self.detail = cut(detail)


def error_text(error: Exception) -> str:
    """Return why something failed, without the path that the system's own text repeats."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def say(log: logging.Logger, level: int, text: str, *values: object) -> None:
    """Log a line as :meth:`logging.Logger.log` does, but omit it where a handler fails."""
    try:
        log.log(level, text, *values, stacklevel=2)
    except KeyboardInterrupt:
        raise
    except BaseException:  # there is no other log to say it in
        return
