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

import hashlib
import logging
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

from flwr.app import Context

from flower_ldp.accounting.ledger import Charge, Ledger, Receipt
from flower_ldp.accounting.ledger.anchor import anchor_of
from flower_ldp.accounting.ledger.types import NO_RUN, Kind
from flower_ldp.clients.admission import Basis, GrantedRound, Handling, Permit, ReleaseRequest
from flower_ldp.clients.calling import cause_of
from flower_ldp.clients.dpsgd.ends import PlanEnd
from flower_ldp.clients.dpsgd.models import LAST, ModelPlace
from flower_ldp.clients.dpsgd.proposals import PROPOSALS
from flower_ldp.clients.dpsgd.rounds import asked_round
from flower_ldp.clients.extension_use import PreparedPermit, prepare
from flower_ldp.clients.node_config import FirstNames
from flower_ldp.clients.parts import account_name, charge_kept, kept
from flower_ldp.errors import ConfigError, LedgerError, RefusalError
from flower_ldp.own_log import say
from flower_ldp.policy import Policy, find_policy
from flower_ldp.privacy import PrivacyEvent, PrivacySpent
from flower_ldp.refusals import REFUSED_LEDGER, REFUSED_POLICY

_log = logging.getLogger("flower_ldp")

#: Ends the SuperLink that ``flwr run`` starts by itself and leaves running.
END_SUPERLINK = "pkill -f 'flower-superlink.*3909[13]'"


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
                return _round(policy, request, context)
            request, prepared = prepare(policy, request)
            receipt, account, ledger = _charged(policy, request, context)
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
        permit = _permit(policy, receipt, request, context, ledger)
        return permit if prepared is None else PreparedPermit(permit, prepared)

    def resume(self, request: ReleaseRequest, context: Context) -> Permit:
        """Return the permit of a request that was charged and whose report was never sealed.

        For the one way out of the machine alone, which knows that none of it has left.

        Raises
        ------
        RefusalError
            With one of the codes above; ``REFUSED_REPEAT`` if there is no such charge.
        """
        policy = policy_of(context, self._names)
        if request.plan is not None:
            asked = _asked(policy, request, context)
            charge = asked.charge
        else:
            asked, charge = None, _charge(policy, request, account_of(policy, context))
        try:
            if asked is not None:
                asked.end.settle()
            with ledger_of(policy) as ledger:
                receipt = ledger.unsealed(charge)
        except LedgerError as error:
            raise RefusalError(REFUSED_LEDGER, str(error)) from error
        permit = _permit(policy, receipt, request, context, last=b"" if asked is None else LAST)
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
                _count(ledger, account, "acknowledged", policy)
        except LedgerError as error:
            raise RefusalError(REFUSED_LEDGER, str(error)) from error
        return OwnerHandling(policy, account, message_type)


@dataclass(frozen=True)
class _Round:
    """A round of private training as the ledger is asked for it, with the charge of its plan."""

    charge: Charge
    plan: Charge
    granted: GrantedRound
    place: ModelPlace
    end: PlanEnd

    def permit(self, permit: Permit) -> Permit:
        """Return the permit to send this round's model."""
        return self.place.permit(permit, self.granted, self.end)


def _asked(policy: Policy, request: ReleaseRequest, context: Context) -> _Round:
    granted, asked = asked_round(policy, request, context.run_id)
    account = account_of(policy, context)
    basis = asked.basis or Basis((), "")
    policy.check(request.message_type, basis.events, example=policy.example)
    charge = _charge(policy, asked, account, granted.plan.rounds)
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
    return _Round(charge, plan, granted, place, end)


def _round(policy: Policy, request: ReleaseRequest, context: Context) -> Permit:
    """Charge a round of private training, and with its first one the plan."""
    asked = _asked(policy, request, context)
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
    return asked.permit(_permit(policy, receipt, request, context, ledger, LAST))


def _end(policy: Policy, charge: Charge) -> None:
    """Use up what rounds the plan of one has left."""
    with ledger_of(policy) as ledger:
        _end_in(ledger, charge)


def _end_in(ledger: Ledger, charge: Charge) -> None:
    # In run 0, where no message can take its name.
    name, run = f"end of run {charge.run_id}", charge.run_id
    ledger.end_plan(replace(charge, run_id=NO_RUN, during=run, message_id=name))


def _line(event: PrivacyEvent) -> str:
    times = "" if event.count == 1 else f"{event.count:,} x "
    spent = PrivacySpent(event.unit, event.epsilon, event.delta)
    return f"{event.mechanism} {times}{spent}"


@dataclass(frozen=True)
class OwnerHandling:
    """What the owner's policy says about answers to one type of message.

    Parameters
    ----------
    policy : Policy
        It names the ledger.
    account : str
        Where failures are counted.
    message_type : str
        As ``"train"``.
    """

    policy: Policy
    account: str
    message_type: str

    @property
    def is_simulation(self) -> bool:
        """Whether neither data nor budget is real."""
        return self.policy.is_simulation

    @property
    def answer_after(self) -> float | None:
        """The policy's fixed moment for this type of message, in seconds."""
        return self.policy.answer_after.get(self.message_type)

    def failed(self) -> None:
        """Count a failure of the app in the ledger; where that cannot be, the log says so."""
        try:
            with ledger_of(self.policy) as ledger:
                _count(ledger, self.account, "failed")
        except Exception as error:
            say(
                _log,
                logging.ERROR,
                "a failure of the app could not be counted\n%s",
                cause_of(error),
            )


@dataclass(frozen=True)
class LedgerPermit:
    """A release that the ledger has charged.

    Parameters
    ----------
    handling : OwnerHandling
        What the policy says about the answer.
    receipt : Receipt
        Proof of the charge, with the report of an earlier delivery if there was one.
    ledger : Ledger, optional
        Open, for the report; without it the policy's is opened.
    examples : int, optional
        How many examples the release is about, by the policy.
    last : bytes
        What a report begins with after which none is sealed to the same part of the data.
    """

    handling: OwnerHandling
    receipt: Receipt
    ledger: Ledger | None = None
    examples: int | None = None
    last: bytes = b""

    @property
    def stored(self) -> bytes | None:
        """The report that this message got before."""
        return self.receipt.report

    @property
    def is_simulation(self) -> bool:
        """Whether neither data nor budget is real."""
        return self.handling.is_simulation

    @property
    def answer_after(self) -> float | None:
        """The policy's fixed moment for this type of message, in seconds."""
        return self.handling.answer_after

    @property
    def example(self) -> str:
        """What one example is, by the policy."""
        return self.handling.policy.example

    def failed(self) -> None:
        """Count a failure of the app."""
        self.handling.failed()

    def seal(self, report: bytes) -> None:
        """Store the report; when this returns it is on disk.

        Raises
        ------
        LedgerError
            If it cannot be stored. The report must not leave.
        BudgetExhausted
            If the last report was sealed meanwhile. The report must not leave.
        """
        kept = self.ledger  # opening it is a third of what a message costs
        if kept is not None and not kept.closed:
            try:
                # Closed before it is opened again, which may get the same descriptor.
                with kept as ledger:
                    ledger.look_again()  # the app took its time
                    ledger.seal(self.receipt, report, last=self.last)
                return
            except (LedgerError, ValueError) as error:
                # The app may have closed all files, or have come back in another process, and
                # that must not be seen. What is wrong with the file itself is wrong again below.
                say(_log, logging.DEBUG, "the ledger is opened again for the report: %s", error)
        with ledger_of(self.handling.policy) as ledger:
            ledger.seal(self.receipt, report, last=self.last)

    def close(self) -> None:
        """Close the ledger."""
        if self.ledger is not None:
            self.ledger.close()


def _count(ledger: Ledger, account: str, kind: Kind, policy: Policy | None = None) -> None:
    """Add one to a counter; with a policy, refuse where it would exceed the policy's number."""
    ledger.count(account, kind, None if policy is None else policy.repeats)


def _charged(
    policy: Policy, request: ReleaseRequest, context: Context
) -> tuple[Receipt, str, Ledger]:
    """Judge and charge a request; return the receipt, the account that paid, and the ledger."""
    basis = request.basis
    rested = basis.events if basis else ()
    example = policy.example if request.per_example else "row"
    policy.check(request.message_type, request.events, basis=rested, example=example)
    if request.per_example and _examples(policy, request) is None:
        raise RefusalError(REFUSED_POLICY, "the policy does not say how many examples there are")
    account = account_of(policy, context)
    charge = _charge(policy, request, account)
    limits = policy.limits()
    rests = None if basis is None else _rests(replace(charge, data_id=account), basis)
    try:
        with ExitStack() as stack:
            ledger = stack.enter_context(ledger_of(policy))
            receipt = charge_kept(
                ledger,
                charge,
                limits,
                request.memo,
                rests,
                numbers=policy.numbers(),
                repeats=policy.repeats,
            )
            if receipt.report is None:
                stack.pop_all()  # it stays open for the report
            return receipt, charge.data_id, ledger
    except LedgerError as error:
        raise RefusalError(REFUSED_LEDGER, str(error)) from error


def _charge(
    policy: Policy, request: ReleaseRequest, account: str, rounds: int | None = None
) -> Charge:
    """Return a message's charge; refuse one of the run in which the owner's own charges are.

    Those have names of their own there (labels, kept reports), and a server chooses its messages'
    names. So no message's charge can stand where one of them is to be.
    """
    if request.run_id == NO_RUN:
        raise RefusalError(REFUSED_POLICY, f"run {NO_RUN} is the owner's own: no message is of it")
    return Charge(
        data_id=account_name(account, request.part),
        run_id=request.run_id,
        message_id=request.message_id,
        message_type=request.message_type,
        fingerprint=hashlib.sha256(request.parameters.encode()).digest(),
        events=request.events,
        parameters=request.parameters,
        waived=policy.waived(request.message_type),
        rounds=rounds,
        example=policy.example if request.per_example else "row",
    )


def _permit(
    policy: Policy,
    receipt: Receipt,
    request: ReleaseRequest,
    context: Context,
    ledger: Ledger | None = None,
    last: bytes = b"",
) -> LedgerPermit:
    handling = OwnerHandling(policy, account_of(policy, context), request.message_type)
    return LedgerPermit(handling, receipt, ledger, _examples(policy, request), last)


def _examples(policy: Policy, request: ReleaseRequest) -> int | None:
    """Return how many examples a release is about: of its first mechanism, as it has but one."""
    mechanism = request.events[0].mechanism if request.events else ""
    return policy.examples_for(request.message_type, mechanism)


def _rests(charge: Charge, basis: Basis) -> Charge:
    """Return the charge to all of the data for what a release rests on."""
    charge = replace(
        charge,
        fingerprint=hashlib.sha256(basis.parameters.encode()).digest(),
        events=basis.events,
        parameters=basis.parameters,
        releases=0,  # it has no report
    )
    return kept(charge, f"basis {basis.parameters}")


def ledger_of(policy: Policy) -> Ledger:
    """Open the policy's ledger: on disk at every step, unless nothing of it is real.

    Raises
    ------
    LedgerError
        If it cannot be used, or the policy's anchor says that it was set back.
    """
    simulation, place = policy.is_simulation, policy.anchor
    anchor = None if place is None else anchor_of(place.file, place.command)
    return Ledger.open(policy.ledger, create=simulation, durable=not simulation, anchor=anchor)


def policy_of(context: Context, names: FirstNames | None = None) -> Policy:
    """Return the policy that the node's operator names.

    Parameters
    ----------
    context : Context
        Flower's; its node configuration may name it.
    names : FirstNames, optional
        What was named before.

    Raises
    ------
    RefusalError
        With ``REFUSED_POLICY`` if none is named, it is wrong, or it was another before.
    """
    try:
        if names is not None:
            names.check(context)
        policy = find_policy(context.node_config)
    except ConfigError as error:
        raise RefusalError(REFUSED_POLICY, str(error)) from error
    if policy is None:
        raise RefusalError(
            REFUSED_POLICY,
            "no policy is named: start the node with --node-config 'ldp-policy=\"FILE\"' or set "
            "FLOWER_LDP_POLICY=FILE. A process keeps the environment that it was started with: the "
            "SuperLink that 'flwr run' starts for simulations stays up, and one that is older than "
            f"the variable does not know it. End that one ({END_SUPERLINK}), and run again",
        )
    return policy


def account_of(policy: Policy, context: Context) -> str:
    """Return the name under which this client's spending is recorded."""
    if not policy.is_simulation:
        return policy.data_id
    # What has no partition, as a server with labels of its own, must not meet one's number.
    return f"{policy.data_id}/{context.node_config.get('partition-id', f'node-{context.node_id}')}"
