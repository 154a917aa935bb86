"""What is said of a run before its reports come: the total of a client, and what can be learned.

The summary has it all as far as it is known: the model and the rounds once the run has begun, the
nodes if they are there. The verdict (:mod:`flower_ldp.advice`) is logged in the first round, when
they are: a warning, with what to change, where it is not good.
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


def outlook_lines(preview: Preview, outlook: Outlook, answers: int | None) -> Iterator[str]:
    """Yield what a run does and what it can learn, for the log."""
    weights = outlook.weights
    asked = "every round that it is sampled for" if answers is None else f"{answers:,}"
    yield f"Answers of a client: {asked}"
    yield f"Rounds: {outlook.rounds:,} of {outlook.clients_per_round:,} clients each"
    plan = preview.plan(weights)
    if isinstance(plan, CodewordPlan):
        yield f"Sizes: K = {plan.favoured:,} of {plan.codewords:,} codewords"
    elif isinstance(plan, SelectionPlan):
        yield f"Sizes: K = {plan.top_size:,}, h = {plan.dim_out:,} of {weights:,} weights"
    yield f"Step rule: {preview.step_rule}"
    yield f"Bytes up of an answer: {preview.proposal.report_bytes(weights):,}"
    for name, value in outlook.rows():
        yield f"{name[0].upper()}{name[1:]}: {value}"


class Prospect:
    """What is known of a strategy's run before its first round, and the words for it."""

    def __init__(self) -> None:
        self._rounds: int | None = None
        self._weights: int | None = None
        self._nodes = 0

    def expect(self, rounds: int, arrays: ArrayRecord, nodes: int) -> None:
        """Learn of a run that begins: its rounds, its model, and the nodes that are there."""
        layout = ModelLayout.of({name: array.numpy() for name, array in arrays.items()})
        self._rounds, self._weights, self._nodes = rounds, layout.dimension, nodes

    @property
    def weights(self) -> int | None:
        """d; None if no run has begun."""
        return self._weights

    def total(self, preview: Preview, answers: int | None) -> str:
        """Return the line on what a client spends in all."""
        events = preview.proposal.events()
        return f"\t├──> Total of a client: {total_line(events, answers, self._rounds)}"

    def lines(
        self,
        preview: Preview,
        answers: int | None,
        *,
        fraction: float,
        fewest: int,
        available: int,
    ) -> Iterator[str]:
        """Yield what the run does and can learn, if enough nodes are there to tell.

        Parameters
        ----------
        preview : Preview
            Of the strategy.
        answers : int or None
            How often a client may be asked; None in every round.
        fraction, fewest, available
            Share of the nodes that a round asks, the fewest of them, and those that must be there.
        """
        if self._nodes >= max(available, fewest):
            each = max(int(self._nodes * fraction), fewest)
            outlook = self.outlook(preview, self._nodes, each, answers)
            if outlook is not None:
                yield f"\t├──> Outlook, with the {self._nodes:,} nodes that are there:"
                for line in outlook_lines(preview, outlook, answers):
                    yield f"\t│\t├──{line}"

    def outlook(
        self, preview: Preview, nodes: int, each: int, answers: int | None
    ) -> Outlook | None:
        """Return what the run can learn; None before one with rounds, or if nobody is asked.

        Parameters
        ----------
        preview : Preview
            Of the strategy.
        nodes, each : int
            Clients that there are, and that a round asks.
        answers : int or None
            How often a client may be asked; None in every round.
        """
        if not self._rounds or self._weights is None or each < 1:
            return None
        rounds = self._rounds if answers is None else min(self._rounds, nodes * answers // each)
        return Outlook(preview.plan, self._weights, nodes, max(rounds, 1), each)
