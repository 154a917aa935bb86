"""Secret keys of this machine, in files beside a ledger."""

import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock

from flower_ldp.errors import LedgerError
from flower_ldp.safe_files import make_whole

_BYTES = 32


def own_key(path: Path) -> bytes:
    """Return the key in a file, made if missing; OSError unless it is this user's alone."""
    if not os.path.lexists(path):
        make_whole(path, os.urandom(_BYTES))  # or another process does, which is as good
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    descriptor = os.open(path, flags)
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        key = file.read(_BYTES + 1)
    if not stat.S_ISREG(found.st_mode) or len(key) != _BYTES:
        raise OSError(f"{path} is no key, or damaged: restore it from a backup")
    if sys.platform != "win32" and (found.st_uid != os.geteuid() or found.st_mode & 0o077):
        raise OSError(f"{path} must be readable by this node's user alone: chmod 600")
    return key


@contextmanager
def locked_key(ledger: Path) -> Iterator[bytes]:
    """Yield a ledger's key, made if missing, under a lock against processes and threads."""
    path = Path(os.path.realpath(ledger) + ".labels-key")
    # Of its own for each call: threads exclude each other too.
    lock = FileLock(f"{path}.lock", mode=0o600, is_singleton=False)
    try:
        try:
            lock.acquire()
            key = own_key(path)
        except (OSError, NotImplementedError) as error:
            said = error.strerror or str(error) if isinstance(error, OSError) else "no locks here"
            raise LedgerError(f"key file {path} cannot be used: {said}") from error
        yield key
    finally:
        lock.release()
