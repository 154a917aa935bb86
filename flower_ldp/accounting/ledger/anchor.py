"""Rollback anchors: the end of a ledger's chain, kept where restoring the ledger does not reach.

A charge is committed, then the anchor moves to it, then a report may leave (docs/ledger.md). So

- a ledger **ahead** of its anchor was killed in between: nothing left, it is accepted;
- an anchor **ahead** of its ledger, or with an entry that the ledger lacks, shows that the ledger
  was set back or is another: refused.

A missing, empty or unreadable anchor refuses every release. Only ``flower-ldp ledger anchor`` makes
one. It moves while the ledger is locked for writing, always to the newest entry, so concurrent
charges cannot move it back.
"""

import contextlib
import os
import re
import selectors
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from flower_ldp.accounting.ledger.charges import Mark
from flower_ldp.accounting.ledger.file import check_folder, check_owned, check_way
from flower_ldp.errors import LdpError, LedgerError, error_text, quoted
from flower_ldp.parameter_bounds import check_in
from flower_ldp.safe_files import faults, replacing

_MARK = re.compile(r"([0-9a-f]{32}) (0|[1-9][0-9]{0,18}) ([0-9a-f]{64})")

_WORD = "flower-ldp-anchor "
_MOST = 1_024


class Anchor:
    """Storage of a ledger's mark; subclasses read and write it."""

    def read(self) -> Mark | None:
        """Return the stored mark, or None if certainly there never was one."""
        raise NotImplementedError

    def write(self, mark: Mark) -> None:
        """Store a mark durably; LedgerError if that is not certain."""
        raise NotImplementedError

    def compare(self, head: Mark, chain_at: Callable[[int], bytes]) -> Mark:
        """Return the stored mark if it is in the history of ``head``, or raise LedgerError.

        The ledger is locked against charges; ``chain_at`` returns an entry's chain value.
        """
        with self._asked():
            mark = self.read()
        if mark is None:
            raise LedgerError(
                f"{self} holds no mark. Is its disk there? If it never held one, and this ledger "
                "is the newest of its data, the owner makes it: flower-ldp ledger anchor "
                "(docs/ledger.md)"
            )
        if mark.ledger != head.ledger:
            raise LedgerError(f"{self} is that of ledger {mark.ledger}, and this is {head.ledger}")
        if mark.entries > head.entries:
            raise LedgerError(
                f"the ledger was set back: {self} has entry {mark.entries}, and it ends with "
                f"{head.entries}. Put the newest copy back; if there is none, docs/ledger.md says "
                "how a restored backup is made good. Nothing was released"
            )
        if chain_at(mark.entries).hex() != mark.chain:
            raise LedgerError(
                f"the ledger was set back and used again: {self} has another entry {mark.entries}. "
                "Put the newest copy back (docs/ledger.md). Nothing was released"
            )
        return mark

    def move(self, mark: Mark) -> None:
        """Store a mark of a ledger that is locked for writing, or raise LedgerError."""
        with self._asked():
            self.write(mark)

    @contextlib.contextmanager
    def _asked(self) -> Iterator[None]:
        """Turn any exception of an anchor into LedgerError."""
        try:
            yield
        except LdpError:
            raise
        except Exception as error:
            raise LedgerError(f"{self} cannot be used: {error_text(error)}") from error


@dataclass(frozen=True)
class FileAnchor(Anchor):
    """A mark in a file, which must be on another disk than the ledger to be of use.

    It is replaced whole. It belongs to the user who charges, with mode 0600, in a folder that
    nobody else may write to. ``path`` is absolute.
    """

    path: Path

    def __post_init__(self) -> None:
        if not self.path.is_absolute():
            raise ValueError(f"the anchor's file must be an absolute path, got {self.path}")

    def __str__(self) -> str:
        return f"anchor {self.path}"

    def read(self) -> Mark | None:
        """Return the file's mark; None without a file."""
        with self._asked():
            check_folder(self.path.parent, str(self))
            # What is no regular file must not be waited for.
            flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
            try:
                handle = os.open(self.path, flags)
            except FileNotFoundError:
                return None
            with open(handle, "rb") as stream:
                check_owned(os.fstat(handle), str(self))
                content = stream.read(_MOST)
        text = content.decode("ascii", "replace")
        if not text.startswith(_WORD):
            raise LedgerError(f"{self} holds no mark: it is damaged, or another file")
        return parse(text.removeprefix(_WORD), str(self))

    def write(self, mark: Mark) -> None:
        """Replace the file; when this returns it is on disk."""
        with self._asked():
            check_folder(self.path.parent, str(self))
            with replacing(self.path, mode=0o600) as stream:
                stream.write(f"{_WORD}{mark}\n".encode("ascii"))


@dataclass(frozen=True)
class CommandAnchor(Anchor):
    """A mark behind a command of the owner's, called without a shell.

    With the further argument ``read`` it prints its mark, or an empty line. With ``write`` it reads
    a mark from its input, stores it and prints the stored one. A mark is one line: the ledger's
    name, the number of entries and the chain value, separated by blanks. Any other output, another
    exit status than 0 and more than ``timeout`` seconds are errors.

    Parameters
    ----------
    argv : tuple of str
        The program, an absolute path that only its owner, this user or root, can write; and its
        arguments.
    timeout : float
        Seconds for one call.
    """

    argv: tuple[str, ...]
    timeout: float = 10.0

    def __post_init__(self) -> None:
        if not self.argv or not all(isinstance(word, str) for word in self.argv):
            raise ValueError("the anchor's command must be a list of strings, with a program")
        if not os.path.isabs(self.argv[0]):
            program = quoted(self.argv[0])
            raise ValueError(f"the anchor's program must be an absolute path, got {program}")
        check_in("(0, 3600]", "timeout", self.timeout)

    def __str__(self) -> str:
        return f"anchor command {self.argv[0]}"

    def read(self) -> Mark | None:
        """Return the command's mark; None for an empty line."""
        text = self._ask("read", "")
        return parse(text, str(self)) if text.strip() else None

    def write(self, mark: Mark) -> None:
        """Have the command store a mark, and compare its answer."""
        text = self._ask("write", f"{mark}\n")
        if parse(text, str(self)) != mark:
            raise LedgerError(f"{self} stores another mark than it was given")

    def _ask(self, word: str, given: str) -> str:
        """Return the command's output, or raise LedgerError."""
        with self._asked():
            self._check_program()
            process = subprocess.Popen(
                (*self.argv, word),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                cwd=os.path.abspath(os.sep),
                start_new_session=True,
            )
        end = time.monotonic() + self.timeout
        try:
            content = _spoken(process, given, end)
            status = process.wait(max(0.0, end - time.monotonic()))
        except subprocess.TimeoutExpired as error:
            within = f"within {self.timeout:g} seconds"
            raise LedgerError(f"{self} did not end and close its output {within}") from error
        finally:
            _end(process)
        if len(content) > _MOST or not content.isascii():
            raise LedgerError(f"{self} prints what is no mark: {quoted(content)}")
        if status != 0:
            raise LedgerError(f"{self} ended with status {status}")
        return content.decode("ascii")

    def _check_program(self) -> None:
        status = os.stat(self.argv[0])
        if not stat.S_ISREG(status.st_mode):
            raise LedgerError(f"{self} is no file")
        for _, fault in faults(str(self), status):
            raise LedgerError(fault)
        check_way(Path(self.argv[0]), str(self))


def anchor_of(
    file: str | os.PathLike[str] | None = None, command: Sequence[str] | None = None
) -> Anchor | None:
    """Return the policy's anchor, or None; ValueError for two of them or a relative path."""
    if file is not None and command is not None:
        raise ValueError("an anchor is a file or a command, not both")
    if file is not None:
        return FileAnchor(Path(file))
    return None if command is None else CommandAnchor(tuple(command))


def parse(text: str, source: str) -> Mark:
    """Return the mark of a line; LedgerError for anything else."""
    found = _MARK.fullmatch(text.removesuffix("\n"))
    if found is None:
        raise LedgerError(f"{source} holds no mark: it says {quoted(text)}")
    return Mark(found[1], int(found[2]), found[3])


def _spoken(process: subprocess.Popen[bytes], given: str, end: float) -> bytes:
    """Return the command's first output; TimeoutExpired if it is not closed by ``end``."""
    if sys.platform == "win32":  # no waiting for pipes there; the process ends at the same moment
        return process.communicate(given.encode("ascii"), max(0.0, end - time.monotonic()))[0]
    if process.stdin is not None:
        with contextlib.suppress(BrokenPipeError), process.stdin as stream:
            stream.write(given.encode("ascii"))
    found = b""
    if process.stdout is None:
        return found
    with process.stdout as output, selectors.DefaultSelector() as waiting:
        waiting.register(output, selectors.EVENT_READ)
        while len(found) <= _MOST:
            left = end - time.monotonic()
            if left <= 0 or not waiting.select(left):
                raise subprocess.TimeoutExpired(process.args, left)
            piece = os.read(output.fileno(), _MOST + 1 - len(found))
            if not piece:
                break
            found += piece
    return found


def _end(process: subprocess.Popen[bytes]) -> None:
    if sys.platform != "win32":
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.wait()
