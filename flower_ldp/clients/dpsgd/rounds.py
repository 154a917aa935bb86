"""A round of private training as the ledger is asked for it: the plan once, the round each time."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace

from flower_ldp.accounting.ledger.plans import rounds_part
from flower_ldp.clients.admission import Basis, GrantedRound, ReleaseRequest
from flower_ldp.policy import Policy
from flower_ldp.policy.judgement import PLANNED


def asked_round(
    policy: Policy, request: ReleaseRequest, run: int
) -> tuple[GrantedRound, ReleaseRequest]:
    """Return the round that a policy grants, and the request with its plan filled in.

    Whether the plan's noise is enough takes seconds to compute, and is not asked here
    (:mod:`~flower_ldp.clients.dpsgd.proposals`).

    Parameters
    ----------
    policy : Policy
        The owner's.
    request : ReleaseRequest
        With a plan that is wanted.
    run : int
        Flower's identity of the run. A plan is of one run: another run pays for its own.

    Raises
    ------
    RefusalError
        With ``REFUSED_POLICY`` if there is no plan, or it is another than the owner's.
    """
    proposed = None if request.plan is None else request.plan.proposed
    plan = policy.plan(request.message_type, proposed)
    # The policy has refused a plan without.
    examples = policy.examples_for(request.message_type, PLANNED) or 0
    terms = {
        "mechanism": "dpsgd",
        **plan.terms(),
        "example": policy.example,
        "examples": examples,
        "run": str(run),
        "message-type": request.message_type,
    }
    text = json.dumps(terms, sort_keys=True, separators=(",", ":"))
    digest = hashlib.sha256(text.encode()).hexdigest()[:32]
    asked = replace(
        request,
        part=rounds_part(policy.example, digest),
        basis=Basis((plan.event,), text),
    )
    return GrantedRound(plan, examples, policy.example), asked
