"""Rounds of private training as the owner admits them: charged, and the plan with the first one."""

from __future__ import annotations

import hashlib
from contextlib import ExitStack
from dataclasses import dataclass, replace

from flwr.app import Context

from flower_ldp.accounting.ledger import Charge, Ledger
from flower_ldp.accounting.ledger.charges import NO_RUN
from flower_ldp.clients.admission import Basis, GrantedRound, ReleaseRequest
from flower_ldp.clients.charging import charge_of, permit_of
from flower_ldp.clients.dpsgd.ends import PlanEnd
from flower_ldp.clients.dpsgd.models import LAST, ModelPlace
from flower_ldp.clients.dpsgd.proposals import PROPOSALS
from flower_ldp.clients.dpsgd.rounds import asked_round
from flower_ldp.clients.node_policy import account_of, ledger_of
from flower_ldp.clients.parts import charge_kept
from flower_ldp.clients.permit import Permit
from flower_ldp.errors import LedgerError, RefusalError
from flower_ldp.policy import Policy
from flower_ldp.refusals import REFUSED_LEDGER


@dataclass(frozen=True)
class AskedRound:
    """A round of private training as the ledger is asked for it, with the charge of its plan."""

    charge: Charge
    plan: Charge
    granted: GrantedRound
    place: ModelPlace
    end: PlanEnd

    def permit(self, permit: Permit) -> Permit:
        """Return the permit to send this round's model."""
        return self.place.permit(permit, self.granted, self.end)


def round_of(policy: Policy, request: ReleaseRequest, context: Context) -> AskedRound:
    """Return the round that a request is for, judged by the policy; nothing is charged yet."""
    granted, asked = asked_round(policy, request, context.run_id)
    account = account_of(policy, context)
    basis = asked.basis or Basis((), "")
    policy.check(request.message_type, basis.events, example=policy.example)
    charge = charge_of(policy, asked, account, granted.plan.rounds)
    plan = replace(
        charge,
        data_id=account,
        message_id=f"plan {charge.data_id.partition('#')[2]}",
        fingerprint=hashlib.sha256(basis.parameters.encode()).digest(),
        events=basis.events,
        parameters=basis.parameters,
        releases=0,
        rounds=None,
        example=policy.example,
    )
    place = ModelPlace.beside(policy.ledger, request)
    end = PlanEnd.beside(policy.ledger, charge.data_id, lambda: _end(policy, charge))
    return AskedRound(charge, plan, granted, place, end)


def charge_round(policy: Policy, request: ReleaseRequest, context: Context) -> Permit:
    """Charge a round of private training, and with its first one the plan."""
    asked = round_of(policy, request, context)
    charge, plan, limits, numbers = asked.charge, asked.plan, policy.limits(), policy.numbers()
    try:
        asked.end.settle()
        with ExitStack() as stack:
            ledger = stack.enter_context(ledger_of(policy))
            if ledger.has_report(charge.data_id, LAST):
                _end_in(ledger, charge)
            # One that is in the ledger was enough, and it takes seconds to say so.
            if ledger.is_new_plan(charge, plan, limits, numbers):
                PROPOSALS.check((policy.ledger, context.run_id), asked.granted.plan)
            receipt = charge_kept(
                ledger, charge, limits, "", plan, numbers=numbers, repeats=policy.repeats
            )
            if receipt.report is None:
                stack.pop_all()
    except LedgerError as error:
        raise RefusalError(REFUSED_LEDGER, str(error)) from error
    return asked.permit(permit_of(policy, receipt, request, context, ledger, LAST))


def _end(policy: Policy, charge: Charge) -> None:
    """Use up what rounds the plan of one has left."""
    with ledger_of(policy) as ledger:
        _end_in(ledger, charge)


def _end_in(ledger: Ledger, charge: Charge) -> None:
    # In run 0, where no message can take its name.
    name, run = f"end of run {charge.run_id}", charge.run_id
    ledger.end_plan(replace(charge, run_id=NO_RUN, during=run, message_id=name))
