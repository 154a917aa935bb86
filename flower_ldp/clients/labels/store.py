"""Stored randomized labels: their bytes, and the key that ties them to the labels.

What the ledger stores beside the charge is an npz archive of the reports, the prior if there
was one, and a **keyed** digest (HMAC-SHA256) of the true labels, to notice that a label set has
changed. Without a key the digest would be private data: who has the ledger and knows all
labels but one could try every value of the last. So the key lies in another file, beside
the ledger (``<ledger>.labels-key``, mode 0600), and a ledger that is copied, exported or sent
to an auditor says nothing about labels beyond the reports.
"""

from __future__ import annotations

import hashlib
import hmac
import io
import os
import stat
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from flower_ldp.errors import LedgerError
from flower_ldp.files import sync_folder
from flower_ldp.mechanisms import RandomSource

_KEY_BYTES = 32


def pack(reports: NDArray[np.int64], prior: NDArray[np.float32] | None, digest: bytes) -> bytes:
    """Return what the ledger stores."""
    small = reports.astype(np.min_scalar_type(int(reports.max(initial=0))))
    mark = np.frombuffer(digest, dtype=np.uint8)
    archive = io.BytesIO()
    if prior is None:
        np.savez_compressed(archive, reports=small, digest=mark)
    else:
        np.savez_compressed(archive, reports=small, digest=mark, prior=prior)
    return archive.getvalue()


def most_bytes(n: int, categories: int, prior: NDArray[np.float32] | None) -> int:
    """Return what :func:`pack` never exceeds, for n reports: public, unlike their bytes.

    What does not compress grows by less than a thousandth; heads of arrays and of the archive
    have less than 4096 bytes.
    """
    raw = n * np.min_scalar_type(categories - 1).itemsize + (0 if prior is None else prior.nbytes)
    return raw + raw // 1_000 + 4_096


def unpack(stored: bytes) -> tuple[NDArray[np.int64], NDArray[np.float32] | None, bytes]:
    """Return reports, prior and digest from what the ledger stored.

    Raises
    ------
    LedgerError
        If it is no such archive.
    """
    try:
        with np.load(io.BytesIO(stored), allow_pickle=False) as arrays:
            prior = arrays.get("prior")
            return arrays["reports"].astype(np.int64), prior, arrays["digest"].tobytes()
    except (ValueError, KeyError, OSError, zipfile.BadZipFile) as error:
        raise LedgerError(f"stored labels cannot be read: {error}") from error


def keyed_digest(key: bytes, labels: NDArray[np.int64]) -> bytes:
    """Return the digest of true labels under the owner's key."""
    return hmac.new(key, labels.astype("<i8").tobytes(), hashlib.sha256).digest()


@contextmanager
def locked_key(ledger: Path) -> Iterator[bytes]:
    """Hold the key file of a ledger, alone among processes and threads; made if missing.

    Raises
    ------
    LedgerError
        If the file cannot be used, or others may read it.
    """
    import fcntl  # here, since only POSIX has it

    path = Path(os.path.realpath(ledger) + ".labels-key")
    file = -1
    try:
        try:
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            fcntl.flock(file, fcntl.LOCK_EX)
            key = _read_or_make(file, path)
        except OSError as error:
            raise LedgerError(f"key file {path} cannot be used: {error.strerror}") from error
        yield key
    finally:
        if file >= 0:
            os.close(file)


def _read_or_make(file: int, path: Path) -> bytes:
    found = os.fstat(file)
    if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise LedgerError(f"key file {path} must belong to this user alone: chmod 600")
    key = os.pread(file, _KEY_BYTES + 1, 0)
    if len(key) > _KEY_BYTES:
        raise LedgerError(f"key file {path} is damaged: restore it from a backup")
    if len(key) < _KEY_BYTES:
        # New, or a crash came while it was written: no digest was made with it yet.
        key = RandomSource.from_os().random_bytes(_KEY_BYTES)
        os.pwrite(file, key, 0)
        os.fsync(file)
        sync_folder(path.parent)
    return key
