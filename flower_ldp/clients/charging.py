"""Charges requests to the owner's ledger, and makes the permits.

**Blocks.** A record's total is the cost of releases about all of the data plus, per layout, the
largest cost of a block (account ``data#layout/block``).

**Kept reports** are charged and sealed under their question in run 0, which limits per run count
too. After a crash between charge and seal the report is charged and drawn again.
"""

import hashlib
import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from flwr.app import Context

from flower_ldp.accounting.amounts import Place
from flower_ldp.accounting.ledger import Charge, Ledger, Receipt
from flower_ldp.accounting.ledger.anchor import anchor_of
from flower_ldp.accounting.ledger.charges import NO_RUN
from flower_ldp.clients.diagnostics import cause_of
from flower_ldp.clients.permit import Permit, ReleaseRequest, ReplyTiming
from flower_ldp.errors import BudgetExhausted, ConfigError, LedgerError, RefusalError, say
from flower_ldp.policy import Policy, find_policy
from flower_ldp.privacy import PrivacyEvent
from flower_ldp.refusals import REFUSED_LEDGER, REFUSED_POLICY, REFUSED_REPEAT

_log = logging.getLogger("flower_ldp")

#: Looks at a ledger, and may refuse.
Look = Callable[[Ledger], None]

#: Draws of one report before it is refused for good: each crash wastes one, and costs one.
MOST_DRAWS = 8
#: What is kept under a name is for training, so the policy's section for train messages governs.
NAMED_TYPE = "train"
_MOST_NAME = 100


def policy_of(context: Context) -> Policy:
    """Return the operator's policy, or refuse (REFUSED_POLICY)."""
    try:
        policy = find_policy(context.node_config)
    except ConfigError as error:
        raise RefusalError(REFUSED_POLICY, str(error)) from error
    if policy is None:
        raise RefusalError(
            REFUSED_POLICY,
            "no policy is named: by 'flower-ldp simulate --policy FILE', a node's --node-config "
            "'ldp-policy=\"FILE\"', or FLOWER_LDP_POLICY=FILE before the process (docs/policy.md)",
        )
    return policy


def account_of(policy: Policy, context: Context) -> str:
    """Return the ledger account of this client."""
    if not policy.is_simulation:
        return policy.data_id
    # What has no partition, as a server with labels of its own, must not meet one's number.
    return f"{policy.data_id}/{context.node_config.get('partition-id', f'node-{context.node_id}')}"


def ledger_of(policy: Policy) -> Ledger:
    """Open the policy's ledger, durable except in a simulation."""
    simulation, place = policy.is_simulation, policy.anchor
    anchor = None if place is None else anchor_of(place.file, place.command)
    return Ledger.open(policy.ledger, create=simulation, durable=not simulation, anchor=anchor)


@contextmanager
def ledger_refuses() -> Iterator[None]:
    """Turn LedgerError into ``REFUSED_LEDGER``."""
    try:
        yield
    except LedgerError as error:
        raise RefusalError(REFUSED_LEDGER, str(error)) from error


def charge_under(
    policy: Policy,
    account: str,
    message: tuple[int, str, str],
    events: tuple[PrivacyEvent, ...],
    text: str,
    **more: Any,
) -> Charge:
    """Return a charge, identified by the digest of its parameters."""
    digest, waived = hashlib.sha256(text.encode()).digest(), policy.waived(message[2])
    return Charge(account, *message, digest, events, text, waived, **more)


def charge_of(
    policy: Policy, request: ReleaseRequest, account: str, rounds: int | None = None
) -> Charge:
    """Return a message's charge; refuse run 0, which is the owner's."""
    if request.run_id == NO_RUN:
        raise RefusalError(REFUSED_POLICY, f"run {NO_RUN} is the owner's own: no message is of it")
    whole = f"{account}#{request.part}" if request.part else account
    message = request.run_id, request.message_id, request.message_type
    more = {"rounds": rounds, "example": policy.example if request.per_example else "row"}
    return charge_under(policy, whole, message, request.events, request.parameters, **more)


def check_name(name: str) -> None:
    """Raise ValueError unless a kept release can have it."""
    if not (isinstance(name, str) and 1 <= len(name) <= _MOST_NAME and name.isprintable()):
        raise ValueError(f"name must have 1 to {_MOST_NAME} printable characters, got {name!r}")


def kept(charge: Charge, question: str, draw: int = 0) -> Charge:
    """Return a charge under a question."""
    name = hashlib.sha256(question.encode()).hexdigest()
    return replace(charge, run_id=NO_RUN, message_id=f"kept {name} {draw}", during=charge.run_id)


def examples_of(policy: Policy, request: ReleaseRequest) -> int | None:
    """Return the policy's number of examples."""
    mechanism = request.events[0].mechanism if request.events else ""
    return policy.examples_for(request.message_type, mechanism)


def charged(
    policy: Policy, charge: Charge, basis: Charge | None, before: Look, question: str = ""
) -> tuple[Receipt, Ledger]:
    """Charge a release under its message, or under its question if the report is kept.

    The returned ledger is open if a report is still to be made.
    """
    with ledger_refuses(), ExitStack() as stack:
        ledger = stack.enter_context(ledger_of(policy))
        before(ledger)
        limits, numbers, repeats = policy.limits(), policy.numbers(), policy.repeats
        paid = partial(ledger.charge, limits=limits, basis=basis, numbers=numbers, repeats=repeats)
        receipt = _charged_kept(paid, charge, question) if question else paid(charge)
        if receipt.report is None:
            stack.pop_all()
        return receipt, ledger


def _charged_kept(paid: Callable[[Charge], Receipt], charge: Charge, question: str) -> Receipt:
    for draw in range(MOST_DRAWS):
        try:
            return paid(kept(charge, question, draw))
        except RefusalError as refusal:
            if refusal.code != REFUSED_REPEAT:
                raise
    raise RefusalError(REFUSED_REPEAT, f"{MOST_DRAWS} charges were made and no report was sealed")


def timing_of(policy: Policy, account: str, message_type: str) -> ReplyTiming:
    """Return the policy's timing for a message type."""

    def failed() -> None:
        try:
            with ledger_of(policy) as ledger:
                ledger.count(account, "failed")
        except Exception as error:
            say(_log, logging.ERROR, "a failure of the app was not counted: %s", cause_of(error))

    return ReplyTiming(policy.is_simulation, policy.answer_after.get(message_type), failed)


def permit_of(
    policy: Policy,
    receipt: Receipt,
    request: ReleaseRequest,
    context: Context,
    ledger: Ledger,
    last: bytes = b"",
) -> Permit:
    """Return the permit of a charged request.

    After a report that begins with ``last`` none is sealed for the same part of the data; of
    releases about examples, for none of the account's parts in this run.
    """
    per_example = request.per_example
    marks = run_marks(request.run_id) if per_example else (b"", last)
    stored = receipt.report
    if stored is not None and stored.startswith(marks):  # older versions sealed without marks
        stored = stored[len(marks[0]) :]

    def keep(report: bytes, failed: bool) -> None:
        report = marks[failed] + report
        if not ledger.closed:  # opening it is a third of a message's cost
            try:
                # Closed before it is opened again, which may get the same descriptor.
                with ledger:
                    ledger.look_again()  # the app took its time
                    ledger.seal(receipt, report, last=marks[1], parts=per_example)
                return
            except (LedgerError, ValueError) as error:
                # The app may have closed all files, or have come back in another process, and
                # that must not be seen. What is wrong with the file itself is wrong again below.
                say(_log, logging.DEBUG, "the ledger is opened again for the report: %s", error)
        with ledger_of(policy) as again:
            again.seal(receipt, report, last=marks[1], parts=per_example)

    timing = timing_of(policy, account_of(policy, context), request.message_type)
    examples = examples_of(policy, request)
    return Permit(timing, keep, stored, ledger.close, examples, policy.example)


def run_marks(run_id: int) -> tuple[bytes, bytes]:
    """Return the first bytes of a run's sealed reports about examples, and of its last one.

    The last one ends the run's evaluations and scaling in the same write, or nothing leaves.
    """
    return f"ldp-report {run_id:020d}:".encode(), f"ldp-ended- {run_id:020d}:".encode()


def check_going_on(ledger: Ledger, charge: Charge, run_id: int) -> None:
    """Refuse a new release about examples after a failure of the whole, whatever pays for it."""
    if ledger.has_charge(charge.data_id, charge.run_id, charge.message_id):
        return
    account = Place.of(charge.data_id).account
    if ledger.has_report(account, run_marks(run_id)[1], parts=True):
        raise BudgetExhausted(f"run {run_id}: an app failed as a whole, and its evaluations ended")
