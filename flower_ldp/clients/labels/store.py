"""Stored randomized labels: their place in the ledger, their bytes, and the labels' key.

What the ledger stores beside the charge is an npz archive of the reports, the prior if there
was one, and a **keyed** digest (HMAC-SHA256) of the true labels, to notice that a label set has
changed. Without a key the digest would be private data: who has the ledger and knows all
labels but one could try every value of the last. So the key lies in another file, beside
the ledger (``<ledger>.labels-key``, mode 0600, with its lock in ``<ledger>.labels-key.lock``),
and a ledger that is copied, exported or sent to an auditor says nothing about labels beyond the
reports.
"""

from __future__ import annotations

import hashlib
import hmac
import io
import os
import stat
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

from flower_ldp.accounting.ledger import Charge, Ledger, Receipt
from flower_ldp.accounting.ledger.charges import NO_RUN
from flower_ldp.errors import LedgerError, RefusalError, ReleaseError
from flower_ldp.files import sync_folder
from flower_ldp.labels.stages import canonical
from flower_ldp.mechanisms import RandomSource
from flower_ldp.policy import Policy
from flower_ldp.privacy import PrivacyEvent
from flower_ldp.refusals import REFUSED_REPEAT

#: Labels are randomized for training, so the policy's section for train messages governs.
MESSAGE_TYPE = "train"
_KEY_BYTES = 32
_OPEN = os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_OPEN |= getattr(os, "O_NOFOLLOW", 0)


@dataclass(frozen=True)
class Shelf:
    """Where the ledger keeps the randomized labels of one name."""

    ledger: Ledger
    policy: Policy
    name: str
    digest: bytes
    run: int

    @property
    def message(self) -> str:
        """The ledger's name for the message that they stand for."""
        return f"labels:{self.name}"

    def home(self, whole: str, reserved: str, *, staged: bool) -> str:
        """Return the account of the first charge under the name, or where it is to be."""
        places = (reserved, whole) if staged else (whole, reserved)
        used = (p for p in places if self.ledger.has_charge(p, NO_RUN, self.message))
        return next(used, places[0])

    def about(
        self, account: str, events: tuple[PrivacyEvent, ...], terms: dict[str, Any]
    ) -> Charge:
        """Return the charge of this label set; raise ValueError if no ledger would take it."""
        text, fingerprint = canonical(terms)
        waived = self.policy.waived(MESSAGE_TYPE)
        return Charge(
            account, NO_RUN, self.message, MESSAGE_TYPE, fingerprint, events, text, waived, self.run
        )

    def charge(self, charge: Charge) -> Receipt:
        """Charge, or find what was charged; raise RefusalError where neither can be."""
        try:
            return self.ledger.charge(charge, self.policy.limits(), numbers=self.policy.numbers())
        except RefusalError as error:
            if error.code != REFUSED_REPEAT:
                raise
            raise RefusalError(
                error.code,
                f"{error.detail}. Labels are randomized once under a name: another number of "
                "labels or other parameters need another name, which costs anew",
            ) from error

    def store(
        self, receipt: Receipt, reports: NDArray[np.int64], prior: NDArray[np.float32] | None
    ) -> None:
        """Keep reports beside their charge."""
        self.ledger.seal(receipt, pack(reports, prior, self.digest))

    def stored(self, receipt: Receipt) -> tuple[NDArray[np.int64], NDArray[np.float32] | None]:
        """Return kept reports and their prior; raise ReleaseError if the true labels changed."""
        reports, prior, digest = unpack(receipt.report or b"")
        if not hmac.compare_digest(digest, self.digest):
            raise ReleaseError(
                f"the labels are not those that were randomized as {self.name!r}, or the ledger's "
                "key file is another: give another set another name, which costs anew"
            )
        return reports, prior


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


def most_bytes(n: int, report_end: int, prior: NDArray[np.float32] | None) -> int:
    """Return what :func:`pack` never exceeds, for n reports below an end: public, unlike them.

    What does not compress grows by less than a thousandth; heads of arrays and of the archive
    have less than 4096 bytes.
    """
    raw = n * np.min_scalar_type(report_end - 1).itemsize + (0 if prior is None else prior.nbytes)
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
    path = Path(os.path.realpath(ledger) + ".labels-key")
    # Of its own for each call: threads exclude each other too.
    lock = FileLock(f"{path}.lock", mode=0o600, is_singleton=False)
    try:
        lock.acquire()
        key = _key(path)
    except (OSError, NotImplementedError) as error:
        lock.release()
        told = getattr(error, "strerror", None) or "its folder's file system has no locks"
        raise LedgerError(f"key file {path} cannot be used: {told}") from error
    except BaseException:
        lock.release()
        raise
    try:
        yield key
    finally:
        lock.release()


def _key(path: Path) -> bytes:
    file = os.open(path, _OPEN, 0o600)
    try:
        return _read_or_make(file, path)
    finally:
        os.close(file)


def _read_or_make(file: int, path: Path) -> bytes:
    found = os.fstat(file)
    if sys.platform != "win32" and (
        found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077
    ):
        raise LedgerError(f"key file {path} must belong to this user alone: chmod 600")
    key = os.read(file, _KEY_BYTES + 1)
    if len(key) > _KEY_BYTES:
        raise LedgerError(f"key file {path} is damaged: restore it from a backup")
    if len(key) < _KEY_BYTES:
        # New, or a crash came while it was written: no digest was made with it yet.
        key = RandomSource.from_os().random_bytes(_KEY_BYTES)
        os.lseek(file, 0, os.SEEK_SET)
        os.write(file, key)
        os.fsync(file)
        sync_folder(path.parent)
    return key
