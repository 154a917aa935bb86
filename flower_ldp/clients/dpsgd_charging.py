"""Rounds of private training, and evaluations that their plan pays for.

**A plan** is charged whole with its first round, its evaluations too, asked or not.

**Noise check.** It takes seconds, so it runs last, when policy and ledger would accept the plan.

**End of a plan.** A failure of the whole ends it. If the ledger cannot be written, an empty file
``<ledger>-ended-...`` and this process remember it. It is written before the plan's next round, or
that is refused. If neither can be written, nothing leaves.

**Kept models** are files in ``<ledger>.models``, on disk before the ledger seals an HMAC-SHA256
over model and request. The last model's code begins differently, so the end is sealed in the same
write.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import math
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
from flower_ldp.clients.permit import GrantedRound, Permit, ReleaseRequest
from flower_ldp.errors import LedgerError, RefusalError, say
from flower_ldp.mechanisms.base import Verdict
from flower_ldp.mechanisms.training_outlook import TrainingOutlook
from flower_ldp.mechanisms.training_plan import TrainingPlan
from flower_ldp.policy import Policy
from flower_ldp.policy.policy import PLANNED
from flower_ldp.privacy import Unit, compose
from flower_ldp.refusals import REFUSED_LEDGER, REFUSED_POLICY, REFUSED_REPEAT
from flower_ldp.safe_files import make_whole, sync_folder
from flower_ldp.wire.proposal import canonical

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
#: The type of message that a plan is for, and what follows its digest for its evaluations.
TRAIN, EVALUATIONS = "train", "-evaluations"
#: What the ledger's name ends with in the folder's name and in the key's.
FOLDER_SUFFIX, KEY_SUFFIX = ".models", "-models-key"


@dataclass(frozen=True)
class ProposedPlans:
    """Proposed plans with too little noise, by run."""

    _wanting: OrderedDict[Hashable, dict[TrainingPlan, str]] = field(default_factory=OrderedDict)
    _lock: Lock = field(default_factory=Lock)

    def check(self, run: Hashable, plan: TrainingPlan) -> None:
        """Refuse a plan with too little noise, or any after too many of them."""
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
    """Place of the model that answers a message."""

    file: Path
    key: bytes
    answered: bytes

    @classmethod
    def beside(cls, ledger: Path, request: ReleaseRequest) -> ModelPlace:
        """Return the place, or refuse (REFUSED_LEDGER) before the charge."""
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
        """Return the HMAC code of a model."""
        length = len(self.answered).to_bytes(8, "big")
        return beginning + hmac.digest(self.key, length + self.answered + model, "sha256")

    def kept(self, code: bytes) -> bytes:
        """Return the model with this code, or refuse if it is gone or changed."""
        try:
            model = self.file.read_bytes()
        except OSError as error:
            raise RefusalError(REFUSED_REPEAT, f"the model is gone: {error}") from error
        beginning = LAST if code.startswith(LAST) else _MAGIC
        if not hmac.compare_digest(self.code(model, beginning), code):
            raise RefusalError(REFUSED_LEDGER, f"{self.file} is not the model that was kept")
        return model

    def keep(self, model: bytes, *, last: bool) -> bytes:
        """Write a model to disk and return its code."""
        try:
            # What a process left that was killed before its code was sealed has not left.
            self.file.unlink(missing_ok=True)
            make_whole(self.file, model)
        except OSError as error:
            raise LedgerError(f"the model cannot be kept in {self.file}: {error}") from error
        return self.code(model, LAST if last else _MAGIC)


@dataclass(frozen=True)
class AskedRound:
    """A round of private training, and its plan."""

    policy: Policy
    charge: Charge
    plan: Charge
    granted: GrantedRound
    place: ModelPlace

    @cached_property
    def owed(self) -> Path:
        """File that exists while the plan's end is missing in the ledger."""
        ledger = Path(os.path.realpath(self.policy.ledger))
        name = hashlib.sha256(self.charge.data_id.encode()).hexdigest()[:40]
        return ledger.with_name(f"{ledger.name}{ENDED_SUFFIX}{name}")

    def write_end(self, ledger: Ledger) -> None:
        """Use up the plan's remaining rounds; idempotent."""
        # In run 0, where no message can take its name.
        run, name = self.charge.run_id, f"end of run {self.charge.run_id}"
        ledger.end_plan(replace(self.charge, run_id=NO_RUN, during=run, message_id=name))

    def write_owed_end(self) -> None:
        """Write an owed end, or raise LedgerError."""
        file = self.owed
        if file in _owed or os.path.lexists(file):
            with charging.ledger_of(self.policy) as ledger:
                self.write_end(ledger)
            _owed.discard(file)
            with suppress(OSError):  # then it is written once more
                file.unlink(missing_ok=True)

    def end(self) -> None:
        """End the plan now or before its next round."""
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
        """Return this round's permit; a failure of the app ends the plan."""

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


def plan_of(
    policy: Policy, request: ReleaseRequest, context: Context, kind: str
) -> tuple[GrantedRound, Charge, str]:
    """Return the run's plan for a type of message, its charge, and its digest."""
    example = policy.example
    account = charging.account_of(policy, context)
    plan = policy.plan(kind, request.proposed)
    examples = policy.examples_for(kind, PLANNED) or 0  # the policy has refused a plan without
    what = {"mechanism": "dpsgd", "example": example, "examples": examples, "message-type": kind}
    text = canonical({**what, **plan.terms(), "run": str(context.run_id)})
    policy.check(kind, (plan.event,), example=example)
    digest = hashlib.sha256(text.encode()).hexdigest()[:32]
    message = request.run_id, f"plan {rounds_part(example, digest)}", kind
    more = {"releases": 0, "example": example}
    whole = charging.charge_under(policy, account, message, (plan.event,), text, **more)
    return GrantedRound(plan, examples, example), whole, digest


def log_outlook(granted: GrantedRound, classes: int) -> None:
    """Log the outlook of a plan that is about to be charged, for this site alone."""
    outlook = TrainingOutlook(granted.plan, granted.examples, classes=classes)
    level = logging.INFO if outlook.verdict is Verdict.GOOD else logging.WARNING
    text = "outlook of the plan, by this site alone and %d outputs: %s"
    say(_log, level, text, classes, outlook.judgement())


def round_of(policy: Policy, request: ReleaseRequest, context: Context) -> AskedRound:
    """Return the round, judged before charge and noise check."""
    granted, whole, digest = plan_of(policy, request, context, request.message_type)
    part = rounds_part(granted.example, digest)
    account = charging.account_of(policy, context)
    rounds = granted.plan.rounds
    charge = charging.charge_of(policy, replace(request, part=part), account, rounds)
    place = ModelPlace.beside(policy.ledger, request)
    return AskedRound(policy, charge, whole, granted, place)


def charge_for(
    policy: Policy, request: ReleaseRequest, context: Context
) -> tuple[Charge, Charge | None]:
    """Return the charge of a request that is no round, and the plan that pays for it, if one does.

    A plan pays for evaluations after its first round, if the owner set it with evaluations, the
    server gave it no name, and this one costs each example no more than the plan's.
    """
    account = charging.account_of(policy, context)
    own = charging.charge_of(policy, request, account)
    if not _is_covered(policy, request):
        return own, None
    try:
        granted, whole, digest = plan_of(policy, request, context, TRAIN)
    except RefusalError:  # a plan of which no round is granted pays for nothing
        return own, None
    part = rounds_part(granted.example, f"{digest}{EVALUATIONS}")
    number = granted.plan.evaluations
    paid = charging.charge_of(policy, replace(request, part=part, events=()), account, number)
    with charging.ledger_refuses(), charging.ledger_of(policy) as ledger:
        # What was charged before the plan stays as it is.
        before = ledger.has_charge(own.data_id, own.run_id, own.message_id)
        known = ledger.has_charge(whole.data_id, whole.run_id, whole.message_id)
    return (paid, whole) if known and not before else (own, None)


def _is_covered(policy: Policy, request: ReleaseRequest) -> bool:
    allowance = policy.messages.get(TRAIN, {}).get(PLANNED)
    plan = None if allowance is None else allowance.plan
    kept = request.memo or request.basis or request.extension or request.part
    if plan is None or plan.evaluations is None or not request.per_example or kept:
        return False
    pure = all(
        event.unit is Unit.EXAMPLE and not event.delta and not event.is_conditional
        for event in request.events
    )
    epsilon = compose(request.events)[Unit.EXAMPLE].epsilon if pure else math.inf
    return request.message_type.startswith("evaluate") and epsilon <= plan.evaluations.epsilon


def charge_round(policy: Policy, request: ReleaseRequest, context: Context) -> Permit:
    """Charge a round, and the plan with its first round."""
    asked = round_of(policy, request, context)
    charge, plan = asked.charge, asked.plan

    def before(ledger: Ledger) -> None:
        if ledger.has_report(charge.data_id, LAST):
            asked.write_end(ledger)
        # One that is in the ledger was enough, and it takes seconds to say so.
        if ledger.is_new_basis(charge, plan, policy.limits(), policy.numbers()):
            PROPOSED_PLANS.check((policy.ledger, context.run_id), asked.granted.plan)
            log_outlook(asked.granted, request.classes)

    with charging.ledger_refuses():
        asked.write_owed_end()
    receipt, ledger = charging.charged(policy, charge, plan, before)
    return asked.permit(charging.permit_of(policy, receipt, request, context, ledger, LAST))
