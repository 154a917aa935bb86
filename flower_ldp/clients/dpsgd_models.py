"""Beside the ledger: the models that answered a round, and that a plan is over.

An app that failed as a whole ends its plan, and no epsilon covers what a second such failure
would tell. So a ledger that cannot be written at that moment, being locked or on a full disk, must
not let the plan go on. Its end is then owed: an empty file beside the ledger
(``<ledger>-ended-...``), which takes no space, says so to every process, and the process remembers
it besides. Before the plan's next round the end is written to the ledger, or the round is refused.
Where neither the ledger nor the file can be written, nothing leaves for the message either: to the
server it is a gap, as when the process is killed.

Trained models are kept for a message that comes again. A model may be long, and a ledger keeps what
is sealed in it for good. So the model lies in a file of its own, in the folder ``<ledger>.models``,
and what the ledger seals is a code (HMAC-SHA256) over it and over what it answers, under a key
beside the ledger that this user alone can read (``<ledger>-models-key``). The file is on disk
before the code is sealed. An owner may delete files at any time: a message that comes again is then
refused.

A model that left in place of an app that failed has a code that begins otherwise. So that the plan
has ended is sealed with what leaves, in one writing of one length whether the app failed or not.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from flower_ldp.clients.diagnostics import cause_of
from flower_ldp.clients.keys import own_key
from flower_ldp.clients.permit import ReleaseRequest
from flower_ldp.errors import LedgerError, RefusalError
from flower_ldp.files import make_whole, sync_folder
from flower_ldp.own_log import say
from flower_ldp.refusals import REFUSED_LEDGER, REFUSED_REPEAT

_log = logging.getLogger("flower_ldp")

#: What follows the ledger's name in that of the file.
ENDED_SUFFIX = "-ended-"
#: Files of the ends that this process could not write to their ledgers.
_owed: set[Path] = set()


@dataclass(frozen=True)
class PlanEnd:
    """The end of one plan, before and after it has come.

    Parameters
    ----------
    file : Path
        There while the end is not in the ledger, and should be.
    write : callable
        Writes it to the ledger; any number of times is as good as once.
    """

    file: Path
    write: Callable[[], None]

    @classmethod
    def beside(cls, ledger: Path, rounds: str, write: Callable[[], None]) -> PlanEnd:
        """Return the end of the plan whose rounds are charged to this account."""
        ledger = Path(os.path.realpath(ledger))
        name = hashlib.sha256(rounds.encode()).hexdigest()[:40]
        return cls(ledger.with_name(f"{ledger.name}{ENDED_SUFFIX}{name}"), write)

    def settle(self) -> None:
        """Write an end that is owed, so that the ledger refuses the next round.

        Raises
        ------
        LedgerError
            If it still cannot be written. No round may begin.
        """
        if self.file in _owed or os.path.lexists(self.file):
            self.write()
            _owed.discard(self.file)
            with suppress(OSError):  # then it is written once more
                self.file.unlink(missing_ok=True)

    def come(self) -> None:
        """End the plan, here and now or before its next round. Raises nothing."""
        try:
            self.write()
        except Exception as error:
            _owed.add(self.file)
            say(_log, logging.ERROR, "the plan's end is not in the ledger yet: %s", cause_of(error))
            try:
                make_whole(self.file, b"")
            except OSError as also:
                say(_log, logging.ERROR, "nor in a file beside it: %s", cause_of(also))

    @property
    def is_lost(self) -> bool:
        """Whether it has come and only this process knows."""
        return self.file in _owed and not os.path.lexists(self.file)


_MAGIC = b"ldp-model-1:"
#: Begins the code of a model with which its plan ended; as long.
LAST = b"ldp-last--1:"
#: What the ledger's name ends with in the folder's name and in the key's.
FOLDER_SUFFIX, KEY_SUFFIX = ".models", "-models-key"


@dataclass(frozen=True)
class ModelPlace:
    """Where the model that answers one message is kept.

    Parameters
    ----------
    file : Path
        The model's.
    key : bytes
        Of the codes.
    answered : bytes
        What the model answers.
    """

    file: Path
    key: bytes
    answered: bytes

    @classmethod
    def beside(cls, ledger: Path, request: ReleaseRequest) -> ModelPlace:
        """Return the place for a request, and make folder and key if they are missing.

        Raises
        ------
        RefusalError
            With ``REFUSED_LEDGER``, before anything is charged, if that cannot be.
        """
        ledger = Path(os.path.realpath(ledger))
        folder = ledger.with_name(ledger.name + FOLDER_SUFFIX)
        what = [request.run_id, request.message_id, request.message_type, request.parameters]
        answered = json.dumps(what).encode()
        try:
            key = own_key(ledger.with_name(ledger.name + KEY_SUFFIX))
            if not folder.is_dir():
                folder.mkdir(mode=0o700, exist_ok=True)
                sync_folder(folder.parent)
        except OSError as error:
            raise RefusalError(REFUSED_LEDGER, f"no place for trained models: {error}") from error
        return cls(folder / hashlib.sha256(answered).hexdigest()[:40], key, answered)

    def code(self, model: bytes, beginning: bytes) -> bytes:
        """Return the code of a model."""
        length = len(self.answered).to_bytes(8, "big")
        return beginning + hmac.digest(self.key, length + self.answered + model, "sha256")

    def kept(self, code: bytes) -> bytes:
        """Return the model that has this code.

        Raises
        ------
        RefusalError
            With ``REFUSED_REPEAT`` if its file is gone, with ``REFUSED_LEDGER`` if it is another.
        """
        try:
            model = self.file.read_bytes()
        except OSError as error:
            raise RefusalError(
                REFUSED_REPEAT, f"the model is not kept any more: {error}"
            ) from error
        beginning = LAST if code.startswith(LAST) else _MAGIC
        if not hmac.compare_digest(self.code(model, beginning), code):
            raise RefusalError(REFUSED_LEDGER, f"{self.file} is not the model that was kept")
        return model

    def keep(self, model: bytes, *, last: bool) -> bytes:
        """Bring a model to disk, and return its code, which says whether it is the plan's last.

        Raises
        ------
        LedgerError
            If it cannot be kept, and must not leave.
        """
        try:
            # What a process left that was killed before its code was sealed has not left.
            self.file.unlink(missing_ok=True)
            make_whole(self.file, model)
        except OSError as error:
            raise LedgerError(f"the model cannot be kept in {self.file}: {error}") from error
        return self.code(model, LAST if last else _MAGIC)

    def forget(self) -> None:
        """Delete a model that does not leave after all."""
        with suppress(OSError):  # to this site alone it would be a file too many
            self.file.unlink(missing_ok=True)
