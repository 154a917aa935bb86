"""What a planned run can learn, whichever mechanism it uses, and what would make it good."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cached_property

from flower_ldp.advice.efficiency import MOST_TOTAL, total_for
from flower_ldp.facts import Fact
from flower_ldp.mechanisms.worth import GOOD_COSINE, Verdict, Worth, run_cosine, signal_of

#: Below so many clients a bad outlook is one of the promise, and not of numbers alone.
FEW_CLIENTS = 50
#: A total above this is none that :func:`flower_ldp.privacy.meaning` calls a limit.
LARGEST_LIMIT = 10.0
# So often the weights that are few enough are guessed, each time by the last ones' efficiency.
_GUESSES = 4
# More clients than there are people are no advice.
_MOST_CLIENTS = 10**10
# Reports that would not fill a last round are fewer than a fortieth of all.
_SPARE = 1.03


@dataclass(frozen=True)
class Remedies:
    """What would about make a run good, each of them alone; None if nothing of its kind would.

    Parameters
    ----------
    weights : int or None
        At most so many weights.
    clients : int or None
        At least so many clients.
    total_epsilon : float or None
        At least this total for each client, at most 100, with the better mechanism for it.
    """

    weights: int | None
    clients: int | None
    total_epsilon: float | None

    def __str__(self) -> str:
        ways = []
        if self.weights is not None:
            ways.append(f"at most about {self.weights:,} weights")
        if self.clients is not None:
            ways.append(f"at least about {self.clients:,} clients")
        if self.total_epsilon is None:
            return f"{', or '.join(ways) or 'nothing'} (no total up to {MOST_TOTAL:g} is enough)"
        ways.append(
            f"a total epsilon of about {self.total_epsilon:g} spent as `flower-ldp plan` says"
        )
        if self.total_epsilon > LARGEST_LIMIT:
            ways[-1] += ", which as a promise means nothing"
        return ", or ".join(ways)


@dataclass(frozen=True)
class Outlook:
    """What a planned run can learn.

    Parameters
    ----------
    plan : callable
        From a number of weights to what the mechanism's reports are worth for it.
    weights : int
        Of the model.
    clients : int
        Clients that there are.
    rounds : int
        Rounds that ask for reports.
    clients_per_round : int
        Reports of a round.
    """

    plan: Callable[[int], Worth]
    weights: int
    clients: int
    rounds: int
    clients_per_round: int

    @property
    def reports(self) -> int:
        """Reports of all rounds."""
        return self.rounds * self.clients_per_round

    @cached_property
    def round_cosine(self) -> float:
        """Expected cosine of a round's step with its clients' direction, if they agree."""
        return self.plan(self.weights).cosine_of_sum(self.clients_per_round)

    @cached_property
    def run_cosine(self) -> float:
        """Expected cosine of all steps together with the clients' direction, if they agree."""
        return run_cosine(self.plan(self.weights), self.reports)

    @property
    def verdict(self) -> Verdict:
        """Good, poor or hopeless."""
        return Verdict.of(self.run_cosine)

    @cached_property
    def remedies(self) -> Remedies | None:
        """What would make it good; None if it is."""
        if self.verdict is Verdict.GOOD:
            return None
        enough = signal_of(GOOD_COSINE)
        worth = self.plan(self.weights)
        if worth.efficiency <= 0:  # the sign of one weight is all that is reported, and it is fair
            return Remedies(None, None, None)
        return Remedies(
            weights=self._few_enough(enough),
            clients=self._enough_clients(worth),
            total_epsilon=total_for(self.clients, self.weights, enough),
        )

    def facts(self) -> list[Fact]:
        """Return the cosines and the verdict."""
        one, run, remedies = self.round_cosine, self.run_cosine, self.remedies
        agree, less = (
            f"{one:.3f}, of clients that agree",
            f"{run:.3f}; clients that differ have less",
        )
        return [
            Fact("outlook.cosine_round", one, "cosine of a round's step", text=agree),
            Fact("outlook.cosine_run", run, "cosine of the run's steps", text=less),
            Fact("outlook.verdict", self.verdict.value),
            Fact("outlook.judgement", self.judgement(), "verdict"),
            Fact("outlook.remedies", None if remedies is None else asdict(remedies)),
        ]

    def judgement(self) -> str:
        """Return the verdict in words, with what would make it good."""
        found = self.remedies
        if found is None:
            return f"{self.verdict.value}: most of what can be learned is learned."
        what = {
            Verdict.POOR: "much of what can be learned is lost in the noise",
            Verdict.HOPELESS: "the steps are noise, and next to nothing is learned",
        }[self.verdict]
        return f"{self.verdict.value}: {what}. Good would be {found}.{self._promise()}"

    def _promise(self) -> str:
        if self.clients >= FEW_CLIENTS:
            return ""
        return (
            f" With so few clients ({self.clients}), each private on its own, totals that protect "
            "are enough for few weights alone: where a client is a site with many people's data, "
            "privacy for each of these people is the promise to look at (docs/dpsgd_release.md)."
        )

    def _enough_clients(self, worth: Worth) -> int | None:
        """Return how many clients are enough; None where reports lean away, however many."""
        square = GOOD_COSINE**2
        along = 1.0 - square * (1.0 + worth.lean)
        if along <= 0.0:
            return None
        short = square / along * self.weights / (self.reports * worth.efficiency)
        clients = _up(self.clients * short * _SPARE)
        return clients if clients <= _MOST_CLIENTS else None

    def _few_enough(self, signal: float) -> int | None:
        """Return a number of weights at which the same reports are good, if there is one."""
        weights = self.weights
        try:
            for _ in range(_GUESSES):
                efficiency = self.plan(weights).efficiency
                weights = min(_down(self.reports * efficiency / signal), self.weights)
                if weights < 2:
                    return None
            while weights >= 2:
                if run_cosine(self.plan(weights), self.reports) >= GOOD_COSINE:
                    return weights
                weights = _down(weights * 0.95)
        except ValueError:  # a report with as many indices as its h says needs as many weights
            pass
        return None


def _down(value: float) -> int:
    """Return two digits of a number, rounded down."""
    step = 10.0 ** max(math.floor(math.log10(max(value, 1.0))) - 1, 0)
    return int(math.floor(value / step) * step)


def _up(value: float) -> int:
    """Return two digits of a number, rounded up."""
    step = 10.0 ** max(math.floor(math.log10(max(value, 1.0))) - 1, 0)
    return int(math.ceil(value / step) * step)
