"""Advice before a training: what a total epsilon per client can teach, and what would help."""

import math
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache, partial
from typing import TypeAlias

from flower_ldp.accounting.amounts import EPSILON_UNITS, Amount
from flower_ldp.facts import Fact, beneath, note
from flower_ldp.mechanisms.base import (
    GOOD_COSINE,
    POOR_COSINE,
    UpdatePlan,
    Verdict,
    run_cosine,
    signal_of,
)
from flower_ldp.mechanisms.codeword import Codeword, CodewordPlan
from flower_ldp.mechanisms.hadamard import MAX_ORDER
from flower_ldp.mechanisms.signds import SelectionPlan, SignDS
from flower_ldp.mechanisms.signds_round import SignDSRound
from flower_ldp.mechanisms.signds_size import MAX_DIMENSION
from flower_ldp.mechanisms.training_outlook import two_digits
from flower_ldp.parameter_bounds import check_in
from flower_ldp.privacy import PrivacySpent, Unit, meaning

__all__ = [
    "GOOD_COSINE",
    "POOR_COSINE",
    "Advice",
    "Remedies",
    "UtilityForecast",
    "Verdict",
    "advise",
]

Kind: TypeAlias = type[SignDS] | type[Codeword]

LARGEST_EPSILON = 100.0
MOST_TOTAL = 100.0
# Answers of less than this are never worth more together than fewer of more: efficiency grows
# with the square of a small epsilon.
_LEAST_EPSILON = 4.0
# Below this epsilon SignDS's reports are worth a hundredth more than codewords at most.
_SIGNDS_FROM = 8.0
# What is better by less than this is not worth another answer of every client, or more bytes.
_TIE = 0.05
_RATIO = 1.25
#: Rounds that a training gets if it has reports for them: the measured runs had 40. All reports
#: together are worth the same in any number of rounds; more rounds let clients answer for a model
#: that is further on, fewer leave less to one client of a round.
ROUNDS = 40
#: Fewest reports of a round, where clients are there for them: one that is broken, or gone, must
#: not decide a step.
LEAST_REPORTS = 5
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


def counts(units: int, least: int, most: int | None) -> list[int]:
    """Return how often a client may be asked so that its answers have sensible epsilons.

    ``units`` is the total in units of 1e-12.
    """
    last = max(least, int(units / EPSILON_UNITS / _LEAST_EPSILON))
    last = last if most is None else min(last, most)
    found = [least]
    while (more := max(found[-1] + 1, int(found[-1] * _RATIO))) <= last:
        found.append(more)
    return found


def best(units: int, weights: int, kinds: tuple[Kind, ...], answers: list[int]) -> tuple[Kind, int]:
    """Return the best mechanism and the fewest answers with nearly the best efficiency.

    ``kinds`` has the preferred mechanism first, and ``answers`` ascends.
    """
    found = {
        (kind, times): _worth(kind, units, times, weights)
        for times in answers
        for kind in kinds
        if kind is not SignDS or len(kinds) == 1 or units // times > _SIGNDS_FROM * EPSILON_UNITS
    }
    enough = max(found.values()) * (1.0 - _TIE)
    return next(choice for choice, worth in found.items() if worth >= enough)


@lru_cache(maxsize=64)
def total_for(clients: int, weights: int, signal: float) -> float | None:
    """Return about the least total that gives a run a signal; None above 100."""
    # As much more as the fewest answers that are nearly worth most may fall short of it.
    needed = signal * weights / clients / (1.0 - _TIE)
    kind: Kind = Codeword if 2 <= weights <= MAX_ORDER else SignDS
    grid = [step / 10 for step in range(1, 100)] + [float(e) for e in range(10, 101)]

    def is_enough(total: float) -> bool:
        units = round(total * EPSILON_UNITS)
        # SignDS is slower to plan, and its efficiency grows with epsilon to the end.
        times = counts(units, 1, None if kind is Codeword else 1)
        return max(_worth(kind, units, count, weights) for count in times) >= needed

    if not is_enough(grid[-1]):
        return None
    return grid[bisect_left(grid, True, hi=len(grid) - 1, key=is_enough)]


@lru_cache(maxsize=256)
def _worth(kind: Kind, units: int, times: int, weights: int) -> float:
    return times * kind(units // times / EPSILON_UNITS).plan(weights, quiet=True).efficiency


@dataclass(frozen=True)
class Remedies:
    """Changes that would each make a run good; None where a kind of change cannot.

    Parameters
    ----------
    weights : int or None
        At most so many.
    clients : int or None
        At least so many.
    total_epsilon : float or None
        At least this total per client, at most 100, with the better mechanism for it.
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
        no_limit = ", which as a promise means nothing"
        ways.append(
            f"a total epsilon of about {self.total_epsilon:g} spent as `flower-ldp plan` says"
            f"{no_limit if self.total_epsilon > LARGEST_LIMIT else ''}"
        )
        return ", or ".join(ways)


@dataclass(frozen=True)
class UtilityForecast:
    """The expected learning of a planned run.

    Parameters
    ----------
    plan : callable
        Maps a number of weights to the mechanism's plan.
    weights, clients, rounds, clients_per_round : int
        Of the model and the run.
    """

    plan: Callable[[int], UpdatePlan]
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
        """Changes that would make it good; None if it is."""
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
        agree = f"{one:.3f}, of clients that agree"
        less = f"{run:.3f}; clients that differ have less"
        return [
            Fact("outlook.cosine_round", one, "cosine of a round's step", text=agree),
            Fact("outlook.cosine_run", run, "cosine of the run's steps", text=less),
            Fact("outlook.verdict", self.verdict.value),
            Fact("outlook.judgement", self.judgement(), "verdict"),
            Fact("outlook.remedies", None if remedies is None else asdict(remedies)),
        ]

    def judgement(self) -> str:
        """Return the verdict in words, with the changes that would make it good."""
        found = self.remedies
        if found is None:
            return f"{self.verdict.value}: most of what can be learned is learned."
        what = {
            Verdict.POOR: "much of what can be learned is lost in the noise",
            Verdict.HOPELESS: "the steps are noise, and next to nothing is learned",
        }[self.verdict]
        return f"{self.verdict.value}: {what}. Good would be {found}. {self.route}"

    @property
    def route(self) -> str:
        """The route that fits what this one does not, with its two lines."""
        if self.clients >= FEW_CLIENTS:
            return (
                "Or train a small last part over features from public data (docs/part.md): "
                "LdpMod(train=CodewordRelease(trainable='NAME.*')) in the client, "
                "CodewordStrategy(Codeword(8.0), trainable='NAME.*') in the server."
            )
        return (
            f"With so few clients ({self.clients}), each private on its own, totals that protect "
            "are enough for few weights alone. If a client is a site with many people's rows, the "
            "route is DP-SGD per person (docs/dpsgd_release.md): LdpMod(train=DPSGDRelease()) with "
            "private_training in the client, DPSGDStrategy(FedAvg()) in the server."
        )

    def _enough_clients(self, worth: UpdatePlan) -> int | None:
        """Return how many clients are enough; None if the bias of reports is too large."""
        square = GOOD_COSINE**2
        along = 1.0 - square * (1.0 + worth.bias)
        if along <= 0.0:
            return None
        short = square / along * self.weights / (self.reports * worth.efficiency)
        clients = two_digits(self.clients * short * _SPARE, math.ceil)
        return clients if clients <= _MOST_CLIENTS else None

    def _few_enough(self, signal: float) -> int | None:
        """Return a number of weights at which the same reports are good, or None."""
        weights = self.weights
        try:
            for _ in range(_GUESSES):
                efficiency = self.plan(weights).efficiency
                enough = two_digits(self.reports * efficiency / signal, math.floor)
                weights = min(enough, self.weights)
                if weights < 2:
                    return None
            while weights >= 2:
                if run_cosine(self.plan(weights), self.reports) >= GOOD_COSINE:
                    return weights
                weights = two_digits(weights * 0.95, math.floor)
        except ValueError:  # a report with as many indices as its h says needs as many weights
            pass
        return None


@dataclass(frozen=True)
class Advice:
    """How to train with a total for each client, and what this can teach. ``print`` shows it.

    Parameters
    ----------
    total_epsilon : float
        Per client: the pure sum of all its answers.
    mechanism : SignDS or Codeword
        With the epsilon of one answer, rounded down to 12 decimals so that all answers fit.
    plan : SelectionPlan or CodewordPlan
        The mechanism's plan for the model.
    answers_per_client, bytes_up : int
        Answers of a client, and bytes of an answer.
    outlook : UtilityForecast
        Rounds, clients of a round, cosines and verdict.

    Examples
    --------
    >>> advice = advise(clients=1000, weights=2_010, total_epsilon=8.0)
    >>> advice.mechanism, advice.answers_per_client, advice.outlook.rounds
    (Codeword(epsilon=8.0, favoured=0, rotations=64, seed=0, blocks=1), 1, 40)
    >>> advice.verdict.value, round(advice.outlook.run_cosine, 2)
    ('good', 0.89)
    >>> advise(clients=1000, weights=62_006, total_epsilon=8.0).remedies
    Remedies(weights=7800, clients=8200, total_epsilon=53.0)
    """

    total_epsilon: float
    mechanism: SignDS | Codeword
    plan: SelectionPlan | CodewordPlan
    answers_per_client: int
    bytes_up: int
    outlook: UtilityForecast

    @property
    def verdict(self) -> Verdict:
        """Good, poor or hopeless."""
        return self.outlook.verdict

    @property
    def remedies(self) -> Remedies | None:
        """Changes that would make it good, if it is not."""
        return self.outlook.remedies

    def facts(self) -> list[Fact]:
        """Return how to train, with the outlook."""
        times, epsilon = self.answers_per_client, self.mechanism.epsilon
        asked = "once" if times == 1 else f"{times:,} times"
        told = f"{times:,} (answers_per_client={times}: asked {asked})"
        rounds, each = self.outlook.rounds, self.outlook.clients_per_round
        # A strategy asks fewer than two only where it is told to.
        of = f" of {each:,} clients each" if each > 1 else " of 1 client (min_train_nodes=1) each"
        name = type(self.mechanism).__name__
        described = f"{name}(epsilon={epsilon:.12g}), {self.plan.summary}"
        return [
            note("epsilon of a client in all", f"{self.total_epsilon:g}"),
            Fact("mechanism", name.lower(), "mechanism", text=described),
            Fact("selection", self.plan.sizes),
            Fact("advice.epsilon_answer", epsilon),
            Fact("advice.answers_per_client", times, "answers of a client", text=told),
            Fact("advice.rounds", rounds, "rounds", of),
            Fact("advice.clients_per_round", each),
            Fact("advice.efficiency", self.plan.efficiency),
            note("step rule", "AgreedLength(), the default: no length has to be tuned"),
            Fact("bytes_up.per_round", self.bytes_up, "bytes up of an answer"),
            Fact("bytes_up.total", self.bytes_up * times),
            *self.outlook.facts(),
        ]

    def __str__(self) -> str:
        worth = meaning(PrivacySpent(Unit.CLIENT, self.total_epsilon))
        return f"{beneath(self.facts())}\n{worth}"


def advise(
    *,
    clients: int,
    weights: int,
    total_epsilon: float,
    answers_per_client: int | None = None,
    rounds: int | None = None,
    mechanism: Kind | None = None,
) -> Advice:
    """Return how to train with a total for each client, and what this can teach.

    Parameters
    ----------
    clients : int
        All clients, at least 1.
    weights : int
        Floating-point entries of the model, in [2, 2^32 - 1].
    total_epsilon : float
        Per client for the whole run, pure; positive.
    answers_per_client : int, optional
        By default the fewest within a twentieth of the best efficiency.
    rounds : int, optional
        At least ``answers_per_client``, and at most the answers of all. By default 40, or fewer so
        that each has 5 reports.
    mechanism : type, optional
        ``SignDS`` or ``Codeword``. By default the more efficient one; codewords if nearly equal.

    Raises
    ------
    ValueError
        If a parameter is outside its interval, or two contradict each other.
    TypeError
        If ``mechanism`` is neither.
    """
    _check(clients, weights, answers_per_client, rounds, mechanism)
    try:
        units = Amount.allowance(total_epsilon).epsilon
    except ValueError as error:
        raise ValueError(f"total_{error}") from error
    kinds: tuple[Kind, ...] = (Codeword, SignDS) if mechanism is None else (mechanism,)
    kinds = tuple(kind for kind in kinds if kind is SignDS or weights <= MAX_ORDER)
    if not kinds:
        raise ValueError(f"weights must be at most {MAX_ORDER} for codewords, got {weights}")
    answers = _answers(units, clients, answers_per_client, rounds)
    kind, times = best(units, weights, kinds, answers)
    reports = clients * times
    number = rounds or max(times, reports // max(LEAST_REPORTS, -(-reports // ROUNDS)))
    chosen = kind(units // times / EPSILON_UNITS)
    plan = chosen.plan(weights, quiet=True)
    asked = SignDSRound(chosen.sized(weights)) if isinstance(chosen, SignDS) else chosen
    return Advice(
        total_epsilon=total_epsilon,
        mechanism=chosen,
        plan=plan,
        answers_per_client=times,
        bytes_up=asked.report_length(weights),
        outlook=UtilityForecast(
            partial(chosen.plan, quiet=True), weights, clients, number, reports // number
        ),
    )


def _check(
    clients: int, weights: int, answers: int | None, rounds: int | None, mechanism: object
) -> None:
    check_in(f"[1, {MAX_DIMENSION}]", "clients", clients, int)
    check_in(f"[2, {MAX_DIMENSION}]", "weights", weights, int)
    for name, value in (("answers_per_client", answers), ("rounds", rounds)):
        if value is not None:
            check_in("[1, 1000000]", name, value, int)
    if rounds is not None and answers is not None:
        # A client answers a round once, and no round is without a report.
        check_in(f"[{answers}, {clients * answers}]", "rounds", rounds, int)
    if mechanism not in (None, SignDS, Codeword):
        raise TypeError(f"mechanism must be SignDS or Codeword, the class, got {mechanism!r}")


def _answers(units: int, clients: int, answers: int | None, rounds: int | None) -> list[int]:
    """Return how often a client may be asked, with epsilons of at most 100."""
    if units < 1:
        raise ValueError("total_epsilon must be at least 1e-12")
    fewest = max(1, -(-units // int(LARGEST_EPSILON * EPSILON_UNITS)))
    of_which = f"for this total_epsilon, of which one answer may have {LARGEST_EPSILON:g} at most"
    if answers is not None:
        if not fewest <= answers <= units:
            raise ValueError(
                f"answers_per_client must be in [{fewest}, {units}] {of_which}, got {answers}"
            )
        return [answers]
    if rounds is None:
        return counts(units, fewest, None)
    if rounds < fewest:
        raise ValueError(f"rounds must be at least {fewest} {of_which}, got {rounds}")
    return counts(units, max(fewest, -(-rounds // clients)), rounds)
