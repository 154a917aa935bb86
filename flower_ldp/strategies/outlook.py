"""What is said of a run before its reports come: the total of a client, and what can be learned.

The summary has it all as far as it is known: the model and the rounds once the run has begun, the
nodes from the first round on. The verdict (:mod:`flower_ldp.advice`) is logged in that round: a
warning, with what to change, where it is not good. Nobody asks for nodes before: a strategy's wait
for them is its own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from flwr.app import ArrayRecord

from flower_ldp.advice.outlook import Outlook
from flower_ldp.mechanisms.codeword_plan import CodewordPlan
from flower_ldp.mechanisms.signds import SelectionPlan
from flower_ldp.mechanisms.worth import Worth
from flower_ldp.privacy import PrivacyEvent, Unit, compose, meaning
from flower_ldp.wire.layout import ModelLayout
from flower_ldp.wire.update import UpdateProposal

_log = logging.getLogger("flwr")


@dataclass(frozen=True)
class Preview:
    """What a strategy can say of its rounds before it asks.

    Parameters
    ----------
    proposal : UpdateProposal
        Of a round.
    plan : callable
        From a number of weights to what the mechanism's reports are worth.
    step_rule : str
        How the model is moved.
    """

    proposal: UpdateProposal
    plan: Callable[[int], Worth]
    step_rule: str


def total_line(events: tuple[PrivacyEvent, ...], answers: int | None, rounds: int | None) -> str:
    """Return what a client spends in all, and what that is worth, as far as it is known.

    Parameters
    ----------
    events : tuple of PrivacyEvent
        Of an answer.
    answers : int or None
        How often a client is asked at most; None in every round.
    rounds : int or None
        Of the run; None if it is not known.
    """
    times = rounds if answers is None else min(answers, rounds or answers)
    one = compose(events)[Unit.CLIENT]
    if times is None:
        return f"at most {one} for each round in which it is asked"
    if times == 0:
        return "nothing, in no round"
    total = compose(replace(event, count=event.count * times) for event in events)[Unit.CLIENT]
    asked = "once" if times == 1 else f"{times:,} times"
    return f"at most {total}, asked {asked}. {meaning(total)}"


class Prospect:
    """What is known of a strategy's run, and the words for it."""

    def __init__(self) -> None:
        self._rounds: int | None = None
        self._weights: int | None = None
        self._outlook: Outlook | None = None

    def expect(self, rounds: int, arrays: ArrayRecord) -> None:
        """Learn of a run that begins: its rounds and its model."""
        layout = ModelLayout.of({name: array.numpy() for name, array in arrays.items()})
        self._rounds, self._weights, self._outlook = rounds, layout.dimension, None

    @property
    def weights(self) -> int | None:
        """d; None if no run has begun."""
        return self._weights

    def ask(self, preview: Preview, nodes: int, each: int, answers: int | None) -> Outlook | None:
        """Learn who is asked, and return in a run's first round what it can learn.

        Parameters
        ----------
        preview : Preview
            Of the strategy.
        nodes, each : int
            Clients that there are, and that a round asks.
        answers : int or None
            How often a client may be asked; None in every round.
        """
        if not self._rounds or self._weights is None or self._outlook is not None or each < 1:
            return None
        rounds = self._rounds if answers is None else min(self._rounds, nodes * answers // each)
        self._outlook = Outlook(preview.plan, self._weights, nodes, max(rounds, 1), each)
        return self._outlook

    def total(self, preview: Preview, answers: int | None) -> str:
        """Return the line on what a client spends in all."""
        return total_line(preview.proposal.events(), answers, self._rounds)

    def lines(self, preview: Preview, answers: int | None) -> Iterator[str]:
        """Yield what the run does and what it can learn, as far as it is known."""
        often = "1 in every round that it is sampled for" if answers is None else f"{answers:,}"
        yield f"Answers of a client: {often}"
        yield f"Step rule: {preview.step_rule}"
        if self._weights is not None:
            yield from _sizes(preview.plan(self._weights))
            yield f"Bytes up of an answer: {preview.proposal.report_bytes(self._weights):,}"
        outlook = self._outlook
        if outlook is None:
            rounds = "" if self._rounds is None else f"{self._rounds:,}; "
            yield f"Rounds: {rounds}the first says how many clients each has, and the verdict"
            return
        yield f"Rounds: {outlook.rounds:,} of {outlook.clients_per_round:,} clients each"
        for name, value in outlook.rows():
            yield f"{name[0].upper()}{name[1:]}: {value}"


def _sizes(plan: Worth) -> Iterator[str]:
    if isinstance(plan, CodewordPlan):
        yield f"Sizes: K = {plan.favoured:,} of {plan.codewords:,} codewords"
    elif isinstance(plan, SelectionPlan):
        yield f"Sizes: K = {plan.top_size:,}, h = {plan.dim_out:,} of {plan.dimension:,} weights"
