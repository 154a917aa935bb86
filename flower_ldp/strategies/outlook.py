"""What is said of a run before its reports come: the total of a client, and what can be learned.

The summary has it all as far as it is known: the model and the rounds once the run has begun, the
nodes from the first round on. The verdict (:mod:`flower_ldp.advice`) is logged in that round: a
warning, with what to change, where it is not good. Nobody asks for nodes before: a strategy's wait
for them is its own.
"""

from __future__ import annotations

import logging
import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from flower_ldp.advice.outlook import Outlook
from flower_ldp.mechanisms.codeword_plan import CodewordPlan
from flower_ldp.mechanisms.signds_plan import SelectionPlan
from flower_ldp.mechanisms.worth import Worth
from flower_ldp.privacy import PrivacyEvent, Unit, compose, meaning
from flower_ldp.wire.proposal import UpdateProposal

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

    proposal: UpdateProposal[Any]
    plan: Callable[[int], Worth]
    step_rule: str


def total_line(
    events: tuple[PrivacyEvent, ...], answers: int | None, rounds: int | None, before: int = 0
) -> str:
    """Return what a client spends in all, and what that is worth, as far as it is known.

    Parameters
    ----------
    events : tuple of PrivacyEvent
        Of an answer.
    answers : int or None
        How often a client is asked at most; None in every round.
    rounds : int or None
        Of the run; None if it is not known.
    before : int
        How often a client was asked before the run, at most.
    """
    one = compose(events)[Unit.CLIENT]
    times = answers if rounds is None else before + rounds
    if times is None:
        return f"at most {one} for each round in which it is asked"
    times = times if answers is None else min(answers, times)
    if times == 0:
        return "nothing, in no round"
    total = compose(replace(event, count=event.count * times) for event in events)[Unit.CLIENT]
    asked = "once" if times == 1 else f"{times:,} times"
    if before:
        asked += ", in earlier runs included"
    return f"at most {total}, asked {asked}. {meaning(total)}"


def rounds_left(left: Sequence[int], each: int, rounds: int) -> int:
    """Return how many rounds of so many clients can be asked for, no client twice in one.

    Parameters
    ----------
    left : sequence of int
        How often each client may be asked still.
    each : int
        Clients of a round; at least 1.
    rounds : int
        The most.
    """
    most = range(1, min(rounds, sum(left) // each) + 1)
    # What is there for r rounds grows ever slower with r: once too little, always too little.
    return bisect_left(most, True, key=lambda r: r * each > sum(min(one, r) for one in left))


class Prospect:
    """What is known of a strategy's run, and the words for it."""

    def __init__(self) -> None:
        self._rounds: int | None = None
        self._entries: int | None = None
        self._before = 0
        self._planned = 0
        self._outlook: Outlook | None = None

    def expect(self, rounds: int, entries: int, before: int) -> None:
        """Learn of a run that begins.

        Parameters
        ----------
        rounds : int
            Of the run.
        entries : int
            That reports are about: the trained arrays' weights, or the subspace's dimensions.
        before : int
            How often a client was asked before, at most.
        """
        self._rounds, self._entries, self._before = rounds, entries, before
        self._planned, self._outlook = 0, None

    @property
    def entries(self) -> int | None:
        """Entries that reports are about; None if no run has begun."""
        return self._entries

    def ask(
        self, preview: Preview, nodes: int, each: int, left: Sequence[int] | None
    ) -> Outlook | None:
        """Learn who is asked, and return in a run's first round what it can learn.

        Parameters
        ----------
        preview : Preview
            Of the strategy.
        nodes, each : int
            Clients that there are, and that a round asks.
        left : sequence of int or None
            How often each client that may be asked may be; None if all are in every round.
        """
        if not self._rounds or self._entries is None or self._outlook is not None or each < 1:
            return None
        rounds, clients = self._rounds, nodes
        if left is not None:
            rounds, clients = max(rounds_left(left, each, rounds), 1), len(left)
        self._outlook = Outlook(preview.plan, self._entries, clients, rounds, each)
        return self._outlook

    def rounds_by_now(self, server_round: int, each: int, left: Sequence[int] | None) -> int | None:
        """Return how many rounds the run may have by now, if these are more than ever.

        Parameters
        ----------
        server_round : int
            That is next, from 1.
        each : int
            Clients that it asks.
        left : sequence of int or None
            How often each client that may be asked may be; None if all are in every round.

        Returns
        -------
        int or None
            None where nothing is new, or no plan depends on who is there.
        """
        over, rounds = server_round - 1, self._rounds or 0
        if left is None or each < 1 or self._planned >= rounds:
            return None
        if over + sum(left) // each <= self._planned:  # who is left has no more rounds
            return None
        self._planned = over + rounds_left(left, each, max(rounds - over, 0))
        return self._planned

    def spread(self, nodes: int, left: Sequence[int]) -> str | None:
        """Return how answers and rounds do not go together; None where they do, or are not known.

        Parameters
        ----------
        nodes : int
            Clients that there are.
        left : sequence of int
            How often each client that may be asked may be.
        """
        outlook, answers = self._outlook, sum(left)
        if outlook is None or self._rounds is None:
            return None
        each, rounds = outlook.clients_per_round, self._rounds
        enough = math.ceil(100 * answers / (rounds * nodes) - 1e-9) / 100
        if outlook.reports + each <= answers and outlook.rounds == rounds:
            ways = f"{-(-answers // each):,} rounds"
            ways += f", or fraction_train={enough:g}," if enough <= 1.0 else ""
            return (
                f"{rounds:,} rounds of {each:,} clients ask for {outlook.reports:,} of "
                f"{answers:,} answers: {ways} would ask for all"
            )
        if outlook.rounds + 1 < rounds and each > 1:
            return (
                f"all answers are asked for in {outlook.rounds:,} of {rounds:,} rounds: "
                f"fraction_train={enough:g} would spread them, so that clients answer for a model "
                "that is further on"
            )
        return None

    def total(self, preview: Preview, answers: int | None) -> str:
        """Return the line on what a client spends in all."""
        return total_line(preview.proposal.events(), answers, self._rounds, self._before)

    def lines(self, preview: Preview, answers: int | None) -> Iterator[str]:
        """Yield what the run does and what it can learn, as far as it is known."""
        often = "1 in every round that it is sampled for" if answers is None else f"{answers:,}"
        yield f"Answers of a client: {often}"
        yield f"Step rule: {preview.step_rule}"
        if self._entries is not None:
            yield f"Entries of an update that answers are about: {self._entries:,}"
            yield from _sizes(preview.plan(self._entries))
            yield f"Bytes up of an answer: {preview.proposal.report_bytes(self._entries):,}"
        outlook = self._outlook
        if outlook is None:
            rounds = "" if self._rounds is None else f"{self._rounds:,}; "
            yield f"Rounds: {rounds}the first says how many clients each has, and the verdict"
            return
        yield f"Rounds: {outlook.rounds:,} of {outlook.clients_per_round:,} clients each"
        for fact in outlook.facts():
            if fact.label:
                yield f"{fact.label[0].upper()}{fact.label[1:]}: {fact}"


def _sizes(plan: Worth) -> Iterator[str]:
    if isinstance(plan, CodewordPlan):
        yield f"Sizes: K = {plan.favoured:,} of {plan.codewords:,} codewords"
    elif isinstance(plan, SelectionPlan):
        yield f"Sizes: K = {plan.top_size:,}, h = {plan.dim_out:,} of {plan.dimension:,} weights"
