"""The data owner's word as the gate's admission: a policy file and a durable ledger.

The operator of the client names the policy, in the node's configuration or in the
environment (:func:`flower_ldp.policy.find_policy`); a run cannot. Each release is judged
by the policy, then charged to the ledger under the name that the operator gave the data,
all before private data is read. The report is stored before it leaves, so the same message
gets the same report however often it is delivered.

It refuses with ``REFUSED_POLICY``, ``REFUSED_BUDGET``, ``REFUSED_REPEAT`` and ``REFUSED_LEDGER``
(:mod:`flower_ldp.refusals`), all decided by public facts: the proposal, the policy, what was spent.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace

from flwr.app import Context

from flower_ldp.clients.charging import charge_of, charge_release, handling_of, permit_of
from flower_ldp.clients.dpsgd_charging import charge_round, round_of
from flower_ldp.clients.dpsgd_models import LAST
from flower_ldp.clients.extension import prepare
from flower_ldp.clients.node_config import FirstNames, account_of, ledger_of, policy_of
from flower_ldp.clients.permit import Handling, Permit, ReleaseRequest
from flower_ldp.errors import LedgerError, RefusalError
from flower_ldp.own_log import say
from flower_ldp.privacy import PrivacyEvent, PrivacySpent
from flower_ldp.refusals import REFUSED_LEDGER

_log = logging.getLogger("flower_ldp")


@dataclass(frozen=True)
class OwnerAdmission:
    """Admits what the data owner's policy allows and the ledger has budget for.

    The gate's own admission unless it is given another. It has nothing to set: everything
    comes from the files that the operator names, and the name that a node had at its first
    message is the one it keeps. In a deployment a missing ledger is refused, since a lost one
    must not begin again at zero.

    In a policy with ``mode: simulation`` neither the data nor the budget is real, and every
    line that is logged says so: each simulated client has an account of its own, under the
    data's name and the client's partition; the ledger is made if it is missing, and is not
    waited for until it is on disk.

    Examples
    --------
    >>> from flower_ldp.clients import LdpMod, SignDSRelease
    >>> mod = LdpMod(train=SignDSRelease())
    """

    _names: FirstNames = field(default_factory=FirstNames, init=False, repr=False, compare=False)

    def admit(self, request: ReleaseRequest, context: Context) -> Permit:
        """Judge and charge a release.

        Raises
        ------
        RefusalError
            With one of the codes above.
        """
        policy = policy_of(context, self._names)
        try:
            if request.plan is not None:
                return charge_round(policy, request, context)
            request, prepared = prepare(policy, request)
            receipt, account, ledger = charge_release(policy, request, context)
        except RefusalError as refusal:
            if not policy.is_simulation:
                raise
            raise RefusalError(refusal.code, f"simulation: {refusal.detail}") from refusal
        say(
            _log,
            logging.INFO,
            "%s%s %s: %s",
            "simulation: " if policy.is_simulation else "",
            "charged to" if receipt.report is None else "given again, at no charge to",
            account,
            ", ".join(map(_line, request.events)),
        )
        permit = permit_of(policy, receipt, request, context, ledger)
        return replace(permit, prepared=prepared)

    def resume(self, request: ReleaseRequest, context: Context) -> Permit:
        """Return the permit of a request that was charged and whose report was never sealed.

        For the one way out of the machine alone, which knows that none of it has left.

        Raises
        ------
        RefusalError
            With one of the codes above; ``REFUSED_REPEAT`` if there is no such charge.
        """
        policy = policy_of(context, self._names)
        asked = None if request.plan is None else round_of(policy, request, context)
        account = account_of(policy, context)
        charge = charge_of(policy, request, account) if asked is None else asked.charge
        try:
            if asked is not None:
                asked.end.settle()
            with ledger_of(policy) as ledger:
                receipt = ledger.unsealed(charge)
        except LedgerError as error:
            raise RefusalError(REFUSED_LEDGER, str(error)) from error
        permit = permit_of(policy, receipt, request, context, last=b"" if asked is None else LAST)
        return permit if asked is None else asked.permit(permit)

    def acknowledge(self, message_type: str, context: Context) -> Handling:
        """Count a message that is answered without a release, as long as there may be more.

        Raises
        ------
        RefusalError
            With one of the codes above: without a policy and a ledger nothing is answered.
        """
        policy = policy_of(context, self._names)
        account = account_of(policy, context)
        try:
            with ledger_of(policy) as ledger:
                ledger.count(account, "acknowledged", policy.repeats)
        except LedgerError as error:
            raise RefusalError(REFUSED_LEDGER, str(error)) from error
        return handling_of(policy, account, message_type)


def _line(event: PrivacyEvent) -> str:
    times = "" if event.count == 1 else f"{event.count:,} x "
    spent = PrivacySpent(event.unit, event.epsilon, event.delta)
    return f"{event.mechanism} {times}{spent}"
