"""The default authorizer: the owner's policy file and a durable ledger.

The operator names the policy (:func:`flower_ldp.policy.find_policy`); a run cannot. Each release is
judged and charged by public facts before private data is read, and its report stored before it
leaves. An extension's neutral report is drawn before the charge.
"""

import logging
import os
from dataclasses import dataclass, field, replace

from flwr.app import Context

from flower_ldp import inner_gate
from flower_ldp.accounting.ledger import Ledger
from flower_ldp.clients import charging
from flower_ldp.clients.dpsgd_charging import LAST, charge_for, charge_round, round_of
from flower_ldp.clients.permit import Permit, ReleaseRequest, ReplyTiming
from flower_ldp.errors import ConfigError, RefusalError, say
from flower_ldp.extensions.contract import ExtensionReport
from flower_ldp.extensions.loading import Allowed, load_extension
from flower_ldp.mechanisms.random import RandomSource
from flower_ldp.policy import Policy, policy_path
from flower_ldp.privacy import PrivacyEvent, PrivacySpent, as_fraction
from flower_ldp.refusals import REFUSED_POLICY

_log = logging.getLogger("flower_ldp")
#: The type of message whose reports an analyzer adds up.
SHUFFLED = "train"


@dataclass(frozen=True)
class OwnerAuthorizer:
    """Admits releases that the owner's policy allows and the ledger has budget for.

    A node keeps the policy path of its first message; another is refused. In a deployment a missing
    ledger is refused, because spending must not restart at zero. With ``mode: simulation`` each
    simulated client has its own account, each log line says so, and the ledger is made if missing
    and not synced to disk.

    Examples
    --------
    >>> from flower_ldp.clients import LdpMod, SignDSRelease
    >>> mod = LdpMod(train=SignDSRelease())
    """

    #: Where the policy of each node was when it was first asked for.
    _paths: dict[int, str] = field(default_factory=dict, init=False, repr=False, compare=False)

    def authorize(self, request: ReleaseRequest, context: Context) -> Permit:
        """Judge and charge a release.

        Raises
        ------
        RefusalError
            ``REFUSED_POLICY``, ``REFUSED_BUDGET``, ``REFUSED_REPEAT`` or ``REFUSED_LEDGER``.
        """
        policy = self._policy(context)
        try:
            _check_sealing(policy, request)
            if request.is_round:
                return charge_round(policy, request, context)
            request, prepared = _prepare(policy, request)
            return replace(_charge_release(policy, request, context), prepared=prepared)
        except RefusalError as refusal:
            if not policy.is_simulation:
                raise
            raise RefusalError(refusal.code, f"simulation: {refusal.detail}") from refusal

    def resume(self, request: ReleaseRequest, context: Context) -> Permit:
        """Return the permit of a charged request whose report was never sealed.

        Call it only where no report can have left. ``REFUSED_REPEAT`` if there is no such charge.
        """
        policy = self._policy(context)
        asked = round_of(policy, request, context) if request.is_round else None
        charge = charge_for(policy, request, context)[0] if asked is None else asked.charge
        with charging.ledger_refuses():
            if asked is not None:
                asked.write_owed_end()
            with charging.ledger_of(policy) as ledger:
                receipt = ledger.unsealed(charge)
        last = b"" if asked is None else LAST
        permit = charging.permit_of(policy, receipt, request, context, ledger, last)
        return permit if asked is None else asked.permit(permit)

    def acknowledge(self, message_type: str, context: Context) -> ReplyTiming:
        """Count a message answered without a release, up to the policy's limit of repeats.

        RefusalError without policy and ledger.
        """
        policy = self._policy(context)
        account = charging.account_of(policy, context)
        with charging.ledger_refuses(), charging.ledger_of(policy) as ledger:
            ledger.count(account, "acknowledged", policy.repeats)
        return charging.timing_of(policy, account, message_type)

    def allow_unprotected(self, message_type: str, context: Context) -> None:
        """Count a raw reply to a message, where the policy's ``not_encrypt`` lists its type.

        Raises
        ------
        RefusalError
            ``REFUSED_POLICY`` or ``REFUSED_LEDGER``.
        """
        policy = self._policy(context)
        if inner_gate.guarded_node or message_type not in policy.not_encrypt:
            allow = f"To allow it: not_encrypt: [{message_type}]"
            raise _refusal(f"no raw reply to a {message_type!r} message may leave. {allow}")
        account = charging.account_of(policy, context)
        with charging.ledger_refuses(), charging.ledger_of(policy) as ledger:
            ledger.count(account, "unprotected")

    def _policy(self, context: Context) -> Policy:
        try:
            path = policy_path(context.node_config)
        except ConfigError as error:
            raise _refusal(str(error)) from error
        if path is not None:
            name = os.path.abspath(path)
            first = self._paths.setdefault(context.node_id, name)
            if first != name:
                told = f"the node was started with the policy {first}, and now {name} is named"
                raise _refusal(f"{told}: only its operator changes that, by starting it anew")
        return charging.policy_of(context)


def _check_sealing(policy: Policy, request: ReleaseRequest) -> None:
    """Refuse unless a report leaves for the policy's analyzer, if and only if it names one."""
    rule, key = policy.analyzer, request.analyzer_key
    if key is None:
        if rule is not None and request.message_type == SHUFFLED:
            raise _refusal("the policy names an analyzer, and the report would leave in the open")
        return
    if request.message_type != SHUFFLED:  # one type: a client is in a batch once
        raise _refusal(f"an analyzer adds up reports to {SHUFFLED!r} messages alone")
    if rule is None:
        if policy.is_simulation:
            return
        allow = "To allow it: analyzer: {key: 'ed25519:...', minimum: ...}"
        raise _refusal(f"the policy names no analyzer, whose key could be judged. {allow}")
    try:
        key.verify(rule.key)
    except ValueError as error:
        raise _refusal(str(error)) from error
    if key.run_id != request.run_id:
        raise _refusal(f"the analyzer's key is of run {key.run_id}, not of {request.run_id}")
    if key.minimum < rule.minimum:
        least = f"{rule.minimum:,} reports at least are asked for"
        raise _refusal(f"the analyzer answers for {key.minimum:,} reports, and {least}")


def _charge_release(policy: Policy, request: ReleaseRequest, context: Context) -> Permit:
    basis = request.basis
    rested = basis.events if basis else ()
    example = policy.example if request.per_example else "row"
    policy.check(request.message_type, request.events, basis=rested, example=example)
    if request.per_example:
        examples = charging.examples_of(policy, request)
        if examples is None:
            raise _refusal("the policy does not say how many examples there are")
        for event in request.events:
            if as_fraction(event.delta) * examples >= 1:  # one of them could be told in full
                raise _refusal(f"delta {event.delta:g} must be below 1/{examples:,}")
    account = charging.account_of(policy, context)
    charge, rests = charge_for(policy, request, context)
    if basis is not None:  # all of the data pays for it, and no report is of it alone
        message, text = (charge.run_id, charge.message_id, charge.message_type), basis.parameters
        more = {"releases": 0, "example": example}
        whole = charging.charge_under(policy, account, message, basis.events, text, **more)
        rests = charging.kept(whole, f"basis {text}")

    def before(ledger: Ledger) -> None:
        if request.per_example:
            charging.check_going_on(ledger, charge, request.run_id)

    receipt, ledger = charging.charged(policy, charge, rests, before, request.memo)
    where = "simulation: " if policy.is_simulation else ""
    done = where + ("charged to" if receipt.report is None else "given again, at no charge to")
    price = ", ".join(map(_line, request.events))
    say(_log, logging.INFO, "%s %s: %s", done, charge.data_id, price)
    return charging.permit_of(policy, receipt, request, context, ledger)


def _line(event: PrivacyEvent) -> str:
    times = "" if event.count == 1 else f"{event.count:,} x "
    return f"{event.mechanism} {times}{PrivacySpent(event.unit, event.epsilon, event.delta)}"


def _prepare(
    policy: Policy, request: ReleaseRequest
) -> tuple[ReleaseRequest, ExtensionReport | None]:
    asked = request.extension
    if asked is None:
        for event in request.events:
            if event.mechanism in policy.extensions:
                raise _refusal(f"{event.mechanism} is an extension's name here, and no other's")
        return request, None
    entry = policy.extensions.get(asked.name)
    if entry is None:
        raise _refusal(f"the policy allows no extension {asked.name}")
    # The owner's least price, where the proposal states less.
    events = tuple(
        replace(one, epsilon=max(one.epsilon, entry.epsilon), delta=max(one.delta, entry.delta))
        if one.mechanism == asked.name
        else one
        for one in request.events
    )
    try:
        allowed = Allowed(asked.name, entry.distribution, entry.version, entry.digest)
        extension = load_extension(allowed)
        # Exactly the options that there are: the server's account is of the same mechanism.
        if asked.options.keys() != extension.options.keys():
            raise ConfigError(f"the proposal has not all options of {asked.name}, or others")
        loaded = extension.chosen(asked.epsilon, asked.delta, asked.options).sized(request.entries)
        length = loaded.length
        if length != asked.length:
            raise ConfigError(f"a report of {asked.name} has {length} bytes, not {asked.length}")
        loaded = replace(loaded, neutral=loaded.randomize(None, RandomSource.from_os()))
        return replace(request, events=events), loaded
    except KeyboardInterrupt:
        raise
    except ConfigError as error:
        raise _refusal(str(error)) from error
    except BaseException as error:  # the extension's own code
        name = type(error).__name__
        raise _refusal(f"the extension {asked.name} does not take the proposal: {name}") from error


def _refusal(detail: str) -> RefusalError:
    return RefusalError(REFUSED_POLICY, detail)
