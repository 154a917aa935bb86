"""Trained models kept beside the ledger, for a message that comes again.

A model may be long, and a ledger keeps what is sealed in it for good. So the model lies in a file
of its own, in the folder ``<ledger>.models``, and what the ledger seals is a code (HMAC-SHA256)
over it and over what it answers, under a key beside the ledger that this user alone can read
(``<ledger>-models-key``). The file is on disk before the code is sealed. An owner may delete files
at any time: a message that comes again is then refused.

A model that left in place of an app that failed has a code that begins otherwise. So that the plan
has ended is sealed with what leaves, in one writing of one length whether the app failed or not.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from flower_ldp.clients.admission import GrantedRound, Permit, ReleaseRequest
from flower_ldp.clients.dpsgd.ends import PlanEnd
from flower_ldp.clients.own_key import own_key
from flower_ldp.errors import LedgerError, RefusalError
from flower_ldp.files import make_whole, sync_folder
from flower_ldp.own_log import say
from flower_ldp.refusals import REFUSED_LEDGER, REFUSED_REPEAT

_log = logging.getLogger("flower_ldp")

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

    def code(self, model: bytes, beginning: bytes = _MAGIC) -> bytes:
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

    def keep(self, model: bytes, beginning: bytes = _MAGIC) -> bytes:
        """Bring a model to disk, and return its code.

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
        return self.code(model, beginning)

    def forget(self) -> None:
        """Delete a model that does not leave after all."""
        with suppress(OSError):  # to this site alone it would be a file too many
            self.file.unlink(missing_ok=True)

    def permit(self, permit: Permit, granted: GrantedRound, end: PlanEnd) -> ModelPermit:
        """Return the permit to send this model.

        Parameters
        ----------
        permit : Permit
            Of the round, by the ledger, which keeps the code.
        granted : GrantedRound
            What was charged.
        end : PlanEnd
            Of the plan.

        Raises
        ------
        RefusalError
            As :meth:`kept`, if the round was answered before.
        """
        stored = permit.stored
        return ModelPermit(
            permit, self, granted, end, None if stored is None else self.kept(stored)
        )


@dataclass(frozen=True)
class ModelPermit:
    """Leave to send the model of a round, which is kept in a file; its code is in the ledger."""

    permit: Permit
    place: ModelPlace
    granted: GrantedRound
    end: PlanEnd
    stored: bytes | None

    @property
    def is_simulation(self) -> bool:
        """Whether neither data nor budget is real."""
        return self.permit.is_simulation

    @property
    def answer_after(self) -> float | None:
        """The policy's fixed moment, in seconds."""
        return self.permit.answer_after

    def failed(self) -> None:
        """Count a failure of the app's and end the plan: no epsilon covers how it failed."""
        self.permit.failed()
        say(_log, logging.ERROR, "the plan of private training ends: its app failed as a whole")
        self.end.come()

    def seal(self, report: bytes) -> None:
        """Keep a model before it leaves.

        Raises
        ------
        LedgerError
            If it cannot be kept, or the plan has ended and that cannot be kept.
        BudgetExhausted
            If another round of the plan, underway at the same time, was the last.
        """
        self._seal(report, _MAGIC)

    def seal_last(self, report: bytes) -> None:
        """Keep a model that leaves for an app that failed, and with it that the plan ends.

        Raises
        ------
        LedgerError, BudgetExhausted
            As :meth:`seal`.
        """
        self._seal(report, LAST)

    def _seal(self, report: bytes, beginning: bytes) -> None:
        if self.end.is_lost:
            raise LedgerError("the plan has ended, which could be written nowhere: nothing leaves")
        code = self.place.keep(report, beginning)
        try:
            self.permit.seal(code)
        except RefusalError:
            self.place.forget()
            raise

    def close(self) -> None:
        """Close the ledger."""
        self.permit.close()
