"""``flower-ldp policy``: a sample to start from, and the check of what somebody made of it."""

import os
from collections.abc import Iterable
from typing import Any

from flower_ldp.accounting.amounts import Amount
from flower_ldp.accounting.dpsgd import check_noise
from flower_ldp.accounting.ledger import Ledger, Limit
from flower_ldp.accounting.ledger.anchor import anchor_of
from flower_ldp.accounting.ledger.charges import NO_RUN, told
from flower_ldp.accounting.zcdp import zcdp_cost
from flower_ldp.cli.output import File, Report, command, group
from flower_ldp.cli.policy_sample import PolicySample
from flower_ldp.errors import RefusalError
from flower_ldp.facts import Fact, keyed
from flower_ldp.mechanisms import Gaussian
from flower_ldp.policy import Policy, load_own_policy
from flower_ldp.policy.sections import Allowance
from flower_ldp.privacy import PrivacyEvent, PrivacySpent, Unit, meaning

#: What an allowance says of a release's cost.
_COST = {"epsilon", "delta", "unit", "post_processing"}
_SAMPLE = "flower-ldp policy sample > client_policy.yaml"
_CHECK = "flower-ldp policy check client_policy.yaml"
app = group(_SAMPLE, _CHECK)


command(app, "sample", _SAMPLE)(PolicySample)


@command(app, "check", _CHECK)
def check(report: Report, file: File) -> None:
    """Say what a policy allows, and whether its ledger can be used.

    Run it as the user that the client runs as: rights on files are part of the check.

    Parameters
    ----------
    file
        The policy.
    """
    policy, doubts = load_own_policy(file)
    report.warn(*doubts)
    report.line(f"{file}: a policy for {policy.data_id}, mode {policy.mode}")
    report.facts.update(data_id=policy.data_id, mode=policy.mode)
    _messages(policy, report)
    _budgets(policy, report)
    limits, anchor = " and ".join(map(str, policy.numbers())), policy.anchor
    rule = policy.analyzer
    told = "" if rule is None else f"{rule.key}, {rule.minimum:,} reports at least"
    moments = {name: float(seconds) for name, seconds in policy.answer_after.items()}
    report.tell(
        Fact("least_epsilon", policy.least_epsilon, "a release costs an epsilon of", " at least"),
        Fact("releases", policy.releases.model_dump(), "releases, at most", text=limits),
        Fact("repeats", policy.repeats, "answers that are none", " at most"),
        Fact("example", policy.example, "an example is a"),
        Fact("examples", policy.examples, "   there are", ", a public number"),
        Fact("answer_after", moments, "seconds until answers leave"),
        Fact("analyzer", rule and rule.model_dump(), "reports leave for", text=told),
        Fact("anchor", anchor and anchor.model_dump(mode="json"), "the ledger's mark is kept by"),
    )
    ledger_of(policy, report)


def _messages(policy: Policy, report: Report) -> None:
    """Say what may leave for each message, with the plans and numbers that are set."""
    allowed: list[dict[str, Any]] = []
    plans: list[dict[str, Any]] = []
    counts: list[dict[str, Any]] = []
    for message, allowances in policy.messages.items():
        total = dict.fromkeys(policy.budgets, 0.0)
        for mechanism, allowance in allowances.items():
            about = {"message": message, "mechanism": mechanism}
            allowed.append({**about, **allowance.model_dump(include=_COST)})
            total[allowance.unit] += allowance.epsilon
            if allowance.plan is not None:
                plan = allowance.plan.model_dump()
                plans.append({**about, **plan, "clip": plan["clip"] or "automatic"})
                _plan(policy, message, report)
            if allowance.examples is not None:
                counts.append({**about, "examples": allowance.examples})
        if not allowances:
            report.line(f"{message}: no mechanism may answer.")
        for unit, epsilon in total.items():
            if 0.0 < epsilon < policy.least_epsilon:
                below = f"{epsilon:g} is below least_epsilon {policy.least_epsilon:g}"
                report.warn(f"no {message} release per {unit} is allowed: its largest cost {below}")
    report.table("allowed", "The most that one release may cost", allowed)
    report.table("plans", "Plans of private training", plans)
    report.table("counts", "Examples of which a release tells", counts)
    for name, entry in policy.extensions.items():
        source = f"{entry.distribution} {entry.version}"
        report.warn(f"{name} is an extension, from {source}: its guarantee is its author's claim")
    report.facts.update(
        not_encrypt=list(policy.not_encrypt), unlisted_messages=policy.unlisted_messages
    )
    say = report.line if policy.is_simulation else report.warn
    for message in policy.not_encrypt:
        say(f"raw {message} replies leave without protection, where an app asks for NOT_ENCRYPT")
    if policy.unlisted_messages != "answer":
        report.line("Messages that are not listed are refused.")
        if not allowed:
            report.warn("nothing is allowed: each message is refused")
        return
    say("messages that are not listed may be answered by any mechanism at any cost")


def _budgets(policy: Policy, report: Report) -> None:
    rows: list[dict[str, Any]] = [
        {
            "unit": limit.unit.value,
            "scope": limit.scope,
            "days": limit.window_seconds and limit.window_seconds / 86_400,
            "epsilon": limit.epsilon,
            "delta": limit.delta,
            "rho": limit.allowed_zcdp and limit.allowed_zcdp.epsilon_text,
            "full_releases": _full_releases(policy, limit, (Amount(), Amount())),
        }
        for limit in policy.limits()
    ]
    report.table("budgets", "The most that all releases may cost together", rows)
    for row in rows:
        limited = f"the budget per {row['unit']} and {row['scope']}"
        for name in (name for name, fits in row["full_releases"].items() if not fits):
            report.warn(f"one {name} release at its largest cost exceeds {limited}")
    for name, budget in policy.budgets.items():
        spent = PrivacySpent(Unit(name), budget.life.epsilon, budget.life.delta)
        report.tell(Fact(f"meaning.{name}", meaning(spent), f"the budget per {name} for life"))


def _plan(policy: Policy, message: str, report: Report) -> None:
    try:
        check_noise(policy.plan(message, None))
    except (RefusalError, ValueError) as error:
        why = error.detail if isinstance(error, RefusalError) else error
        report.problem(f"{message}: no round would be granted: {why}")
    except ModuleNotFoundError as error:
        report.warn(f"{message}: the plan's noise cannot be checked: {error}")


def _full_releases(policy: Policy, limit: Limit, spent: tuple[Amount, Amount]) -> dict[str, int]:
    """Return how many releases at the largest cost fit what is left, of those that touch it."""
    found: dict[str, int] = {}
    for message, allowances in policy.messages.items():
        events = [
            _largest_event(mechanism, allowance)
            for mechanism, allowance in allowances.items()
            if limit.unit in Unit(allowance.unit).within
            if not any(limit.unit in Unit(unit).within for unit in allowance.post_processing)
        ]
        if events:
            sums = [Amount.cost(event.epsilon, event.delta) for event in events]
            found[message] = _fitting(limit.allowed, spent[0], sums)
            if limit.allowed_zcdp is not None:
                by_zcdp = _fitting(limit.allowed_zcdp, spent[1], map(zcdp_cost, events))
                found[message] = max(found[message], by_zcdp)
    return found


def _largest_event(mechanism: str, allowance: Allowance) -> PrivacyEvent:
    """Return the event of a release at its largest cost."""
    try:
        if mechanism == Gaussian.name:
            return Gaussian(allowance.epsilon, allowance.delta).events()[0]
    except ValueError:  # no setting of the mechanism costs that much
        pass
    return PrivacyEvent(mechanism, allowance.epsilon, allowance.delta)


def _fitting(allowed: Amount, spent: Amount, costs: Iterable[Amount]) -> int:
    """Return how often costs together fit what is left of a limit."""
    left, cost = left_of(allowed, spent), sum(costs, Amount())
    fits = left.epsilon // cost.epsilon
    return min(fits, left.delta // cost.delta) if cost.delta else fits


def ledger_of(policy: Policy, report: Report) -> None:
    """Check the ledger that a policy names, opened as a client opens it."""
    path = policy.ledger
    report.facts["ledger"] = {"file": str(path), "entries": None}
    if not path.exists() and policy.is_simulation:
        if os.access(path.absolute().parent, os.W_OK):
            report.line(f"Ledger {path}: not there yet; a simulation makes it.")
        else:
            report.problem(f"ledger {path} cannot be made: its folder cannot be written")
        return
    # As a client opens it: owner, rights, version and content are checked.
    place = policy.anchor
    anchor = None if place is None else anchor_of(place.file, place.command)
    with Ledger.open(path, durable=not policy.is_simulation, anchor=anchor) as ledger:
        entries = ledger.mark().entries
        _limits(ledger, policy, report)
    report.tell(*keyed("ledger", entries=entries))
    report.line(f"Ledger {path}: usable, {entries:,} entries.")


def _limits(ledger: Ledger, policy: Policy, report: Report) -> None:
    """Warn of each limit that is exceeded or reached: a lowered one, or after units were nested."""
    for data_id in accounts_of(ledger, policy):
        try:
            ledger.check_rule(data_id, policy.limits())
        except RefusalError as error:
            report.problem(f"each charge is refused: {error.detail}")
        for limit in policy.limits():
            # A limit for a run binds the run that is to come: what belongs to no run counts.
            spent = ledger.spent(data_id, NO_RUN, limit), ledger.spent_zcdp(data_id, limit.unit)
            found = over(data_id, limit, spent)
            if found is not None:
                report.warn(found)
            elif not policy.is_simulation:
                _reached(policy, limit, spent, report)
        for number in policy.numbers():
            if not policy.is_simulation and 0 < number.most <= ledger.number(data_id, number):
                report.warn(f"{data_id}: {number} are there: a further one is refused")


def _reached(policy: Policy, limit: Limit, spent: tuple[Amount, Amount], report: Report) -> None:
    """Warn of each message whose release may fit the limit, but not what is left of it."""
    still = _full_releases(policy, limit, spent)
    for message, number in _full_releases(policy, limit, (Amount(), Amount())).items():
        if number and not still[message]:
            further = f"a further {message} release at its largest cost is refused"
            left = f"{policy.data_id}: {told(limit, spent)} of {limit} was spent"
            report.warn(f"{left}: {further}, unless it was paid for")


def over(data_id: str, limit: Limit, spent: tuple[Amount, Amount]) -> str | None:
    """Say that more was spent than a limit allows, or return None."""
    if limit.fits(*spent):
        return None
    refused = "what counts towards it is refused"
    was = f"{told(limit, spent)} was spent in all"
    return f"{data_id}: {was}, over the limit of {limit}: {refused}"


def left_of(allowed: Amount, spent: Amount) -> Amount:
    """Return what is left of a limit, nothing where more was spent."""
    # A budget that was lowered since may be below what was spent: then nothing is left.
    return Amount(max(allowed.epsilon - spent.epsilon, 0), max(allowed.delta - spent.delta, 0))


def accounts_of(ledger: Ledger, policy: Policy) -> list[str]:
    """Return the names under which a policy's data is charged."""
    if not policy.is_simulation:
        return [policy.data_id]
    return [name for name in ledger.accounts() if name.startswith(f"{policy.data_id}/")]
