"""Rounds of private training as the owner admits them: the plan is charged with the first one.

Whether a proposed plan's noise is enough is computed once, and not for who only asks. It takes
seconds of a processor, and a server could propose plans without end. So it comes last, when the
policy and the ledger would take the plan: one that passes is charged, which the budget ends. One
that does not pass costs nothing, so of each run few of those are computed: a plan that was found
wanting is remembered, and who has proposed several of them is refused without a look. All of it is
about public numbers.
"""

from __future__ import annotations

import hashlib
import logging
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from threading import Lock

from flwr.app import Context

from flower_ldp.accounting.dpsgd import check_noise
from flower_ldp.accounting.ledger import Charge, Ledger
from flower_ldp.accounting.ledger.charges import NO_RUN
from flower_ldp.accounting.ledger.plans import rounds_part
from flower_ldp.clients.charging import (
    account_of,
    basis_of,
    charge_of,
    charged,
    ledger_of,
    ledger_refuses,
    permit_of,
)
from flower_ldp.clients.dpsgd_models import LAST, ModelPlace, PlanEnd
from flower_ldp.clients.permit import Basis, GrantedRound, Permit, ReleaseRequest, canonical
from flower_ldp.errors import LedgerError, RefusalError
from flower_ldp.mechanisms.training_plan import TrainingPlan
from flower_ldp.own_log import say
from flower_ldp.policy import Policy
from flower_ldp.policy.judgement import PLANNED
from flower_ldp.refusals import REFUSED_POLICY

_log = logging.getLogger("flower_ldp")

#: How many plans of one run are found wanting before no other is computed.
MOST_WANTING = 8
#: How many runs are remembered.
_MOST_RUNS = 256


@dataclass(frozen=True)
class Proposals:
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
                raise RefusalError(
                    REFUSED_POLICY,
                    f"{len(found)} plans of this run had too little noise: no other is looked at",
                )
            try:
                check_noise(plan)
            except ModuleNotFoundError as error:
                raise RefusalError(REFUSED_POLICY, str(error)) from error
            except ValueError as error:
                self._remember(run, {**found, plan: str(error)})
                raise RefusalError(REFUSED_POLICY, str(error)) from error

    def _remember(self, run: Hashable, found: dict[TrainingPlan, str]) -> None:
        self._wanting[run] = found
        self._wanting.move_to_end(run)
        while len(self._wanting) > _MOST_RUNS:
            self._wanting.popitem(last=False)


#: Of this process.
PROPOSALS = Proposals()


@dataclass(frozen=True)
class AskedRound:
    """A round of private training as the ledger is asked for it, with the charge of its plan."""

    charge: Charge
    plan: Charge
    granted: GrantedRound
    place: ModelPlace
    end: PlanEnd

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
            permit.handling.failed()
            say(_log, logging.ERROR, "the plan of private training ends: its app failed as a whole")
            self.end.come()

        def keep(model: bytes, last: bool) -> None:
            if self.end.is_lost:
                raise LedgerError(
                    "the plan has ended, which could be written nowhere: nothing leaves"
                )
            code = self.place.keep(model, last=last)
            try:
                permit.keep(code, False)  # the code says whether it is the last
            except RefusalError:  # another round of the plan, underway at the same time, was
                self.place.forget()
                raise

        return replace(
            permit,
            handling=replace(permit.handling, failed=failed),
            keep=keep,
            stored=None if permit.stored is None else self.place.kept(permit.stored),
            granted=self.granted,
        )


def round_of(policy: Policy, request: ReleaseRequest, context: Context) -> AskedRound:
    """Return the round that a request is for, judged by the policy; nothing is charged yet.

    Whether the plan's noise is enough takes seconds to compute, and is not asked here
    (:class:`Proposals`). A plan is of one run: another run pays for its own.

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
    kind, example, account = request.message_type, policy.example, account_of(policy, context)
    plan = policy.plan(kind, None if request.plan is None else request.plan.proposed)
    examples = policy.examples_for(kind, PLANNED) or 0  # the policy has refused a plan without
    text = canonical(
        {
            "mechanism": "dpsgd",
            **plan.terms(),
            "example": example,
            "examples": examples,
            "run": str(context.run_id),
            "message-type": kind,
        }
    )
    policy.check(kind, (plan.event,), example=example)
    asked = replace(
        request, part=rounds_part(example, hashlib.sha256(text.encode()).hexdigest()[:32])
    )
    charge = charge_of(policy, asked, account, plan.rounds)
    whole = replace(
        basis_of(charge, account, Basis((plan.event,), text)),
        message_id=f"plan {charge.data_id.partition('#')[2]}",
        example=example,
    )
    place = ModelPlace.beside(policy.ledger, request)
    end = PlanEnd.beside(policy.ledger, charge.data_id, lambda: _end(policy, charge))
    return AskedRound(charge, whole, GrantedRound(plan, examples, example), place, end)


def charge_round(policy: Policy, request: ReleaseRequest, context: Context) -> Permit:
    """Charge a round of private training, and with its first one the plan."""
    asked = round_of(policy, request, context)
    charge, plan = asked.charge, asked.plan

    def before(ledger: Ledger) -> None:
        if ledger.has_report(charge.data_id, LAST):
            _end_in(ledger, charge)
        # One that is in the ledger was enough, and it takes seconds to say so.
        if ledger.is_new_plan(charge, plan, policy.limits(), policy.numbers()):
            PROPOSALS.check((policy.ledger, context.run_id), asked.granted.plan)

    with ledger_refuses():
        asked.end.settle()
    receipt, ledger = charged(policy, charge, plan, before)
    return asked.permit(permit_of(policy, receipt, request, context, ledger, LAST))


def _end(policy: Policy, charge: Charge) -> None:
    """Use up what rounds the plan of one has left."""
    with ledger_of(policy) as ledger:
        _end_in(ledger, charge)


def _end_in(ledger: Ledger, charge: Charge) -> None:
    # In run 0, where no message can take its name.
    name, run = f"end of run {charge.run_id}", charge.run_id
    ledger.end_plan(replace(charge, run_id=NO_RUN, during=run, message_id=name))
