"""The policy as an object: its budgets as the ledger's limits, and its decision about a release."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Annotated, Literal

from pydantic import model_validator

from flower_ldp.accounting.ledger.charges import Limit, NumberLimit
from flower_ldp.errors import RefusalError
from flower_ldp.mechanisms.training_plan import TrainingPlan
from flower_ldp.policy import sections
from flower_ldp.policy.sections import Allowance
from flower_ldp.privacy import PrivacyEvent, Unit, as_fraction
from flower_ldp.refusals import REFUSED_POLICY
from flower_ldp.yaml_source import Section, in_one_line, misfit

_SECONDS_PER_DAY = 86_400.0
#: The mechanism that an owner may set a plan for, and all that divide by a number of examples.
PLANNED = "dpsgd"
_DIVIDING = (PLANNED, "example_mean")


class Policy(Section):
    """The data owner's rules.

    Parameters
    ----------
    data_id : str
        The operator's name of the data, for its account: the same for every node, run and app.
    ledger : Path
        The ledger. In a file: relative to the file's folder.
    mode : {"deployment", "simulation"}
        Whether the data and the budget are real.
    messages : mapping
        Per type of message, the mechanisms that may answer it, each with its largest cost.
    budgets : mapping
        Per unit, the totals. A release about a unit without a budget is refused.
    not_encrypt : sequence of {"train", "evaluate"}
        Types of message whose raw replies may leave, without any protection. A guarded node does
        not start with any.
    unlisted_messages : {"refuse", "answer"}
        Whether an unlisted type of message may be answered, by any mechanism at any cost within the
        budgets.
    least_epsilon : float
        Least cost of a release for each of its units: free releases could be asked for without end.
    releases : Releases
        Largest numbers of releases, whatever they cost.
    repeats : int
        Largest number of stored reports sent again and acknowledgements.
    answer_after : mapping
        Per type of message, the seconds until its answer leaves.
    anchor : AnchorPlace, optional
        Place of the ledger's mark, which shows that an older copy was put back.
    example : {"row", "patient"}
        What one example is. For patients, who may have many rows, a release that is private per row
        is refused.
    examples : int, optional
        Their number, which is public; required for private training. An allowance may have its own.
    analyzer : AnalyzerRule, optional
        Reports to train messages leave as ciphertexts for it, or not at all. Without one, in a
        deployment, no report leaves as a ciphertext.
    apps : mapping of str to App
        By the digest of their bundles, the apps that the owner has read: on the guarded node claims
        about single records depend on these alone.
    unlisted_apps : {"answer", "refuse"}
        Whether the guarded node runs other apps.
    extensions : mapping of str to ExtensionEntry
        By the name of the mechanism, the extensions that may be loaded. The guarded node does not
        start with any.
    """

    data_id: sections.DataName
    ledger: sections.OwnPath
    mode: Literal["deployment", "simulation"]
    messages: Mapping[sections.MessageName, Mapping[sections.Name, Allowance]]
    budgets: Mapping[sections.UnitName, sections.Budget]
    not_encrypt: Sequence[Literal["train", "evaluate"]] = ()
    unlisted_messages: Literal["refuse", "answer"] = "refuse"
    least_epsilon: sections.Epsilon = 0.001
    releases: sections.Releases = sections.Releases()
    repeats: sections.Number = 100_000
    answer_after: Mapping[sections.MessageName, sections.Seconds] = {}
    anchor: Annotated[sections.AnchorPlace | None, sections.NotEmpty] = None
    example: sections.ExampleName = "row"
    examples: Annotated[sections.Number | None, sections.NotEmpty] = None
    analyzer: Annotated[sections.AnalyzerRule | None, sections.NotEmpty] = None
    apps: Mapping[sections.Digest, sections.App] = {}
    unlisted_apps: Literal["answer", "refuse"] = "answer"
    extensions: Mapping[sections.ExtensionName, sections.ExtensionEntry] = {}

    @model_validator(mode="after")
    def _allowances_can_be_used(self) -> Policy:
        for message_type, allowances in self.messages.items():
            for mechanism, allowance in allowances.items():
                self._check_allowance(message_type, mechanism, allowance)
        return self

    def _check_allowance(self, message_type: str, mechanism: str, allowance: Allowance) -> None:
        place = ("messages", message_type, mechanism)
        if allowance.unit not in self.budgets:
            raise misfit("must be a unit with a budget", *place, "unit")
        extension = self.extensions.get(mechanism)
        if extension is not None:
            if allowance.unit != "client":
                wanted = "must be client: an extension's claim is about the client"
                raise misfit(wanted, *place, "unit")
            for field in ("epsilon", "delta"):
                if getattr(allowance, field) < getattr(extension, field):
                    wanted = "must be at least what extensions charges for a report"
                    raise misfit(wanted, *place, field)
        about_examples = allowance.unit == "example"
        if allowance.examples is not None and not (mechanism in _DIVIDING and about_examples):
            wanted = "belongs to dpsgd and example_mean with unit: example"
            raise misfit(wanted, *place, "examples")
        if allowance.plan is None:
            return
        if mechanism != PLANNED or not about_examples:
            raise misfit("belongs to dpsgd with unit: example", *place, "plan")
        if allowance.plan.evaluations is not None and message_type != "train":
            raise misfit("belongs to the plan of train", *place, "plan", "evaluations")
        try:
            _own_plan(allowance)
        except ValueError as error:
            raise misfit(str(error), *place) from error
        if self.examples_for(message_type, mechanism) is None:
            raise misfit("must stand beside examples: how many there are", *place, "plan")

    @property
    def is_simulation(self) -> bool:
        """Whether log lines and reports must say "simulation"."""
        return self.mode == "simulation"

    def limits(self) -> tuple[Limit, ...]:
        """Return all budgets, for the ledger to enforce."""
        found = []
        for name, budget in self.budgets.items():
            unit, window = Unit(name), budget.window
            if budget.run is not None:
                found.append(Limit(unit, "run", budget.run.epsilon, budget.run.delta))
            if window is not None:
                seconds = window.days * _SECONDS_PER_DAY
                found.append(Limit(unit, "window", window.epsilon, window.delta, seconds))
            life = budget.life
            found.append(Limit(unit, "life", life.epsilon, life.delta, release_deltas=life.deltas))
        return tuple(found)

    def numbers(self) -> tuple[NumberLimit, ...]:
        """Return the largest numbers of releases, for the ledger to enforce."""
        window = self.releases.window
        found = [NumberLimit(self.releases.life)]
        if window is not None:
            found.append(NumberLimit(window.number, window.days * _SECONDS_PER_DAY))
        return tuple(found)

    def waived(self, message_type: str) -> dict[str, tuple[Unit, ...]]:
        """Return, by mechanism, the units for which it is declared post-processing."""
        return {
            mechanism: tuple(Unit(unit) for unit in allowance.post_processing)
            for mechanism, allowance in self.messages.get(message_type, {}).items()
            if allowance.post_processing
        }

    def plan(self, message_type: str, proposed: TrainingPlan | None) -> TrainingPlan:
        """Return the plan of private training for a type of message.

        Parameters
        ----------
        message_type : str
            As ``"train"``.
        proposed : TrainingPlan or None
            The server's plan, if any; accepted exactly or refused.

        Raises
        ------
        RefusalError
            With ``REFUSED_POLICY``: there is no plan, another is proposed than the owner's, the
            number of examples is not stated, or delta is not below one over it.
        """
        allowance = self._allowance(message_type, PLANNED)
        own = None if allowance is None else _own_plan(allowance)
        plan = own if proposed is None else proposed
        if plan is None:
            raise _refusal(
                "no plan of private training: the policy sets none, the server proposes none"
            )
        if own is not None and replace(plan, name="") != own:
            raise _refusal(f"the plan is {own.terms()}, and {plan.terms()} is proposed")
        if own is None and plan.evaluations:
            raise _refusal("evaluations belong to a plan that the policy sets")
        examples = self.examples_for(message_type, PLANNED)
        if examples is None:
            raise _refusal("private training needs examples in the policy: how many there are")
        if as_fraction(plan.delta) * examples >= 1:
            raise _refusal(f"delta {plan.delta:g} must be below 1/{examples:,}")
        return plan

    def examples_for(self, message_type: str, mechanism: str) -> int | None:
        """Return the number of examples of a mechanism in a type of message, or None.

        An evaluation may use another part of the data than training.
        """
        allowance = self._allowance(message_type, mechanism)
        own = None if allowance is None else allowance.examples
        return self.examples if own is None else own

    def _allowance(self, message_type: str, mechanism: str) -> Allowance | None:
        return self.messages.get(message_type, {}).get(mechanism)

    def check(
        self,
        message_type: str,
        events: Iterable[PrivacyEvent],
        *,
        basis: Iterable[PrivacyEvent] = (),
        whole: bool = True,
        example: sections.ExampleName = "row",
    ) -> None:
        """Return if one release is allowed, as far as it alone decides.

        Parameters
        ----------
        message_type : str
            Flower's type of the message, as ``"train"``.
        events : iterable of PrivacyEvent
            Cost of the whole release.
        basis : iterable of PrivacyEvent
            An earlier charge that it depends on.
        whole : bool
            False for a part of a larger charge, whose price was checked there.
        example : {"row", "patient"}
            What one example of the release is.

        Raises
        ------
        RefusalError
            With ``REFUSED_POLICY``, if the type of message, a mechanism, a unit, an epsilon or a
            delta is not allowed, no cost is stated, or less than the least.
        """
        own = tuple(events)
        if not own:
            raise _refusal("the release states no cost, so nothing allows it")
        events = (*own, *basis)
        listed = self.messages.get(message_type)
        if listed is None and self.unlisted_messages == "refuse":
            raise _refusal(
                f"no mechanism may answer a {message_type!r} message. "
                + _allowing(message_type, events)
            )
        if example != self.example and any(event.unit is Unit.EXAMPLE for event in events):
            raise _refusal(f"it is private per {example}, and an example is a {self.example} here")
        for event in events:
            if event.is_conditional and listed is None and not self.is_simulation:
                raise _refusal(
                    f"{event.mechanism} protects conditionally on a bottom model only: a "
                    "deployment must allow it by name"
                )
            if event.unit.value not in self.budgets:
                raise _refusal(f"there is no budget per {event.unit.value}, for {event.mechanism}")
        if listed is not None:
            for mechanism, costs in _by_mechanism(events).items():
                fault = _fault(message_type, mechanism, listed.get(mechanism), costs)
                if fault is not None:
                    raise _refusal(f"{fault}. {_allowing(message_type, events)}")
        for unit in dict.fromkeys(event.unit for event in own if whole):
            asked_for = _sum((event for event in own if event.unit is unit), "epsilon")
            if asked_for < as_fraction(self.least_epsilon):
                raise _refusal(
                    f"a release must cost an epsilon of at least {self.least_epsilon:g} per "
                    f"{unit.value}, this one costs {float(asked_for):g}"
                )


def _own_plan(allowance: Allowance) -> TrainingPlan | None:
    if allowance.plan is None:
        return None
    terms = dict(allowance.plan)
    asked = terms.pop("evaluations")
    if asked is not None:
        terms |= {"evaluations": asked.number, "evaluation_epsilon": asked.epsilon}
    return TrainingPlan(**terms, epsilon=allowance.epsilon, delta=allowance.delta)


def _by_mechanism(events: Iterable[PrivacyEvent]) -> dict[str, list[PrivacyEvent]]:
    found: dict[str, list[PrivacyEvent]] = {}
    for event in events:
        found.setdefault(event.mechanism, []).append(event)
    return found


def _fault(
    message_type: str, mechanism: str, allowance: Allowance | None, costs: list[PrivacyEvent]
) -> str | None:
    """Return why one mechanism's costs exceed its allowance, or None."""
    if allowance is None:
        return f"{mechanism} may not answer a {message_type!r} message"
    units = {event.unit.value for event in costs}
    if units != {allowance.unit}:
        asked = ", ".join(sorted(units))
        return f"{mechanism} is allowed per {allowance.unit}, asked for per {asked}"
    for name in ("epsilon", "delta"):
        # In the decimals that people write: three times 0.1 is 0.3, not more.
        asked_for, allowed = _sum(costs, name), getattr(allowance, name)
        if asked_for > as_fraction(allowed):
            return (
                f"{mechanism} in a {message_type!r} message: {name} {float(asked_for):g} per "
                f"{allowance.unit} asked for, at most {allowed:g} allowed"
            )
    return None


def _sum(costs: Iterable[PrivacyEvent], name: str) -> Fraction:
    return sum((as_fraction(getattr(one, name)) * one.count for one in costs), Fraction())


def _allowing(message_type: str, events: Iterable[PrivacyEvent]) -> str:
    """Return, for the owner's log, the policy's line that would allow these costs."""
    listed: dict[str, dict[str, object]] = {}
    for mechanism, costs in _by_mechanism(events).items():
        sums = {name: float(_sum(costs, name)) for name in ("epsilon", "delta")}
        listed[mechanism] = {name: value for name, value in sums.items() if value}
        if costs[-1].unit is not Unit.CLIENT:
            listed[mechanism]["unit"] = costs[-1].unit.value
    return f"To allow it: messages: {in_one_line({message_type: listed})}"


def _refusal(detail: str) -> RefusalError:
    return RefusalError(REFUSED_POLICY, detail)
