"""Rounds of private training as the owner admits them: the plan is charged with the first one.

Whether a proposed plan's noise is enough is computed once, and not for who only asks. It takes
seconds of a processor, and a server could propose plans without end. So it comes last, when the
policy and the ledger would take the plan: one that passes is charged, which the budget ends. One
that does not pass costs nothing, so of each run few of those are computed: a plan that was found
wanting is remembered, and who has proposed several of them is refused without a look. All of it is
about public numbers.

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
from collections import OrderedDict
from collections.abc import Hashable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from threading import Lock

from flwr.app import Context

from flower_ldp.accounting.dpsgd import check_noise
from flower_ldp.accounting.ledger import Charge, Ledger
from flower_ldp.accounting.ledger.charges import NO_RUN
from flower_ldp.accounting.ledger.limits import rounds_part
from flower_ldp.clients import charging
from flower_ldp.clients.diagnostics import cause_of
from flower_ldp.clients.keys import own_key
from flower_ldp.clients.permit import GrantedRound, Permit, ReleaseRequest, canonical
from flower_ldp.errors import LedgerError, RefusalError, say
from flower_ldp.mechanisms.training_plan import TrainingPlan
from flower_ldp.policy import Policy
from flower_ldp.policy.policy import PLANNED
from flower_ldp.refusals import REFUSED_LEDGER, REFUSED_POLICY, REFUSED_REPEAT
from flower_ldp.safe_files import make_whole, sync_folder

_log = logging.getLogger("flower_ldp")

#: How many plans of one run are found wanting before no other is computed.
MOST_WANTING = 8
#: How many runs are remembered.
_MOST_RUNS = 256
#: What follows the ledger's name in that of the file.
ENDED_SUFFIX = "-ended-"
#: Files of the ends that this process could not write to their ledgers.
_owed: set[Path] = set()
_MAGIC = b"ldp-model-1:"
#: Begins the code of a model with which its plan ended; as long.
LAST = b"ldp-last--1:"
#: What the ledger's name ends with in the folder's name and in the key's.
FOLDER_SUFFIX, KEY_SUFFIX = ".models", "-models-key"


@dataclass(frozen=True)
class ProposedPlans:
    """What was found of the plans that servers proposed, by run."""

    _wanting: OrderedDict[Hashable, dict[TrainingPlan, str]] = field(default_factory=OrderedDict)
    _lock: Lock = field(default_factory=Lock)

    def check(self, run: Hashable, plan: TrainingPlan) -> None:
        """Return if a plan's noise is enough.

        One at a time: however many messages come at once, they take one processor.

        Parameters
        ----------
        run : hashable
            Whose proposals are counted together.
        plan : TrainingPlan
            What is proposed.

        Raises
        ------
        RefusalError
            With ``REFUSED_POLICY`` if it is not, or so many plans of the run had too little that
            no other is computed.
        """
        with self._lock:
            found = self._wanting.get(run, {})
            if plan in found:
                raise RefusalError(REFUSED_POLICY, found[plan])
            if len(found) >= MOST_WANTING:
                told = f"{len(found)} plans of this run had too little noise: no other is looked at"
                raise RefusalError(REFUSED_POLICY, told)
            try:
                check_noise(plan)
            except (ModuleNotFoundError, ValueError) as error:
                if isinstance(error, ValueError):
                    self._wanting[run] = {**found, plan: str(error)}
                    self._wanting.move_to_end(run)
                if len(self._wanting) > _MOST_RUNS:
                    self._wanting.popitem(last=False)
                raise RefusalError(REFUSED_POLICY, str(error)) from error


#: Of this process.
PROPOSED_PLANS = ProposedPlans()


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
            raise RefusalError(REFUSED_REPEAT, f"the model is gone: {error}") from error
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


@dataclass(frozen=True)
class AskedRound:
    """A round of private training as the ledger is asked for it, and the end of its plan.

    Parameters
    ----------
    policy : Policy
        The owner's, with the ledger.
    charge, plan : Charge
        Of the round and of its plan.
    granted : GrantedRound
        What the training gets.
    place : ModelPlace
        Where its model is kept.
    """

    policy: Policy
    charge: Charge
    plan: Charge
    granted: GrantedRound
    place: ModelPlace

    @cached_property
    def owed(self) -> Path:
        """A file that is there while the plan's end is not in the ledger, and should be.

        :meth:`write_owed_end` reads this first, before the app is called: no app can change it.
        """
        ledger = Path(os.path.realpath(self.policy.ledger))
        name = hashlib.sha256(self.charge.data_id.encode()).hexdigest()[:40]
        return ledger.with_name(f"{ledger.name}{ENDED_SUFFIX}{name}")

    def write_end(self, ledger: Ledger) -> None:
        """Use up what rounds the plan has left; any number of times is as good as once."""
        # In run 0, where no message can take its name.
        run, name = self.charge.run_id, f"end of run {self.charge.run_id}"
        ledger.end_plan(replace(self.charge, run_id=NO_RUN, during=run, message_id=name))

    def write_owed_end(self) -> None:
        """Write an end that is owed, so that the ledger refuses the next round.

        Raises
        ------
        LedgerError
            If it still cannot be written. No round may begin.
        """
        file = self.owed
        if file in _owed or os.path.lexists(file):
            with charging.ledger_of(self.policy) as ledger:
                self.write_end(ledger)
            _owed.discard(file)
            with suppress(OSError):  # then it is written once more
                file.unlink(missing_ok=True)

    def end(self) -> None:
        """End the plan, here and now or before its next round. Raises nothing."""
        try:
            with charging.ledger_of(self.policy) as ledger:
                self.write_end(ledger)
        except Exception as error:
            _owed.add(self.owed)
            say(_log, logging.ERROR, "the plan's end is not in the ledger yet: %s", cause_of(error))
            try:
                make_whole(self.owed, b"")
            except OSError as also:
                say(_log, logging.ERROR, "nor in a file beside it: %s", cause_of(also))

    def permit(self, permit: Permit) -> Permit:
        """Return the permit to send this round's model, kept beside the ledger.

        A failure of the app's ends the plan: no epsilon covers how it failed. Nothing is kept where
        the plan has ended and that could be written nowhere.

        Parameters
        ----------
        permit : Permit
            Of the round, by the ledger.

        Raises
        ------
        RefusalError
            As :meth:`ModelPlace.kept`, if the round was answered before.
        """

        def failed() -> None:
            permit.timing.failed()
            say(_log, logging.ERROR, "the plan of private training ends: its app failed as a whole")
            self.end()

        def keep(model: bytes, last: bool) -> None:
            if self.owed in _owed and not os.path.lexists(self.owed):  # only this process knows
                raise LedgerError("the plan's end could be written nowhere: nothing leaves")
            code = self.place.keep(model, last=last)
            try:
                permit.keep(code, False)  # the code says whether it is the last
            except RefusalError:  # another round of the plan, underway at the same time, was
                with suppress(OSError):  # to this site alone it would be a file too many
                    self.place.file.unlink(missing_ok=True)
                raise

        timing = replace(permit.timing, failed=failed)
        stored = None if permit.stored is None else self.place.kept(permit.stored)
        return replace(permit, timing=timing, keep=keep, stored=stored, granted=self.granted)


def round_of(policy: Policy, request: ReleaseRequest, context: Context) -> AskedRound:
    """Return the round that a request is for, judged by the policy; nothing is charged yet.

    Whether the plan's noise is enough takes seconds to compute, and is not asked here
    (:class:`ProposedPlans`). A plan is of one run: another run pays for its own.

    Parameters
    ----------
    policy : Policy
        The owner's.
    request : ReleaseRequest
        With a plan that is wanted.
    context : Context
        Flower's.

    Raises
    ------
    RefusalError
        With ``REFUSED_POLICY`` if there is no plan, or it is another than the owner's.
    """
    kind, example = request.message_type, policy.example
    account = charging.account_of(policy, context)
    plan = policy.plan(kind, request.proposed)
    examples = policy.examples_for(kind, PLANNED) or 0  # the policy has refused a plan without
    what = {"mechanism": "dpsgd", "example": example, "examples": examples, "message-type": kind}
    text = canonical({**what, **plan.terms(), "run": str(context.run_id)})
    policy.check(kind, (plan.event,), example=example)
    part = rounds_part(example, hashlib.sha256(text.encode()).hexdigest()[:32])
    charge = charging.charge_of(policy, replace(request, part=part), account, plan.rounds)
    message = request.run_id, f"plan {charge.data_id.partition('#')[2]}", kind
    more = {"releases": 0, "example": example}
    whole = charging.charge_under(policy, account, message, (plan.event,), text, **more)
    place = ModelPlace.beside(policy.ledger, request)
    return AskedRound(policy, charge, whole, GrantedRound(plan, examples, example), place)


def charge_round(policy: Policy, request: ReleaseRequest, context: Context) -> Permit:
    """Charge a round of private training, and with its first one the plan."""
    asked = round_of(policy, request, context)
    charge, plan = asked.charge, asked.plan

    def before(ledger: Ledger) -> None:
        if ledger.has_report(charge.data_id, LAST):
            asked.write_end(ledger)
        # One that is in the ledger was enough, and it takes seconds to say so.
        if ledger.is_new_basis(charge, plan, policy.limits(), policy.numbers()):
            PROPOSED_PLANS.check((policy.ledger, context.run_id), asked.granted.plan)

    with charging.ledger_refuses():
        asked.write_owed_end()
    receipt, ledger = charging.charged(policy, charge, plan, before)
    return asked.permit(charging.permit_of(policy, receipt, request, context, ledger, LAST))
