"""How to train with a total for each client: mechanism, answers, rounds, and what comes of it.

A training in which each client is asked a few times, best once, spends a total that means
something. From the clients, the weights and that total the rest follows: what answers are worth
(:mod:`flower_ldp.mechanisms.base`) says how often to ask, and by which mechanism.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from flower_ldp.accounting.amounts import EPSILON_UNITS, Amount
from flower_ldp.advice.outlook import (
    LARGEST_EPSILON,
    Kind,
    Outlook,
    Remedies,
    best,
    counts,
    plan_of,
)
from flower_ldp.facts import Fact, beneath, note
from flower_ldp.mechanisms.base import Verdict
from flower_ldp.mechanisms.codeword import Codeword, CodewordPlan
from flower_ldp.mechanisms.sampling.nearest import MAX_ORDER
from flower_ldp.mechanisms.signds import SelectionPlan, SignDS
from flower_ldp.mechanisms.signds_round import report_length
from flower_ldp.mechanisms.signds_size import MAX_DIMENSION
from flower_ldp.privacy import PrivacySpent, Unit, meaning

#: Rounds that a training gets if it has reports for them: the measured runs had 40. All reports
#: together are worth the same in any number of rounds; more rounds let clients answer for a model
#: that is further on, fewer leave less to one client of a round.
ROUNDS = 40
#: Fewest reports of a round, where clients are there for them: one that is broken, or gone, must
#: not decide a step.
LEAST_REPORTS = 5


@dataclass(frozen=True)
class Advice:
    """How to train with a total for each client, and what that can learn. ``print`` it for people.

    Parameters
    ----------
    total_epsilon : float
        What was asked for, per client: the pure sum of all its answers.
    mechanism : SignDS or Codeword
        With the epsilon of one answer, rounded down to 12 decimals so that all answers fit.
    plan : SelectionPlan or CodewordPlan
        K and h, or K, of the mechanism for the model.
    answers_per_client : int
        How often a client is asked in the run.
    bytes_up : int
        Of an answer.
    outlook : Outlook
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
    outlook: Outlook

    @property
    def verdict(self) -> Verdict:
        """Good, poor or hopeless."""
        return self.outlook.verdict

    @property
    def remedies(self) -> Remedies | None:
        """What would make it good, if it is not."""
        return self.outlook.remedies

    def facts(self) -> list[Fact]:
        """Return how to train, with the outlook."""
        times, epsilon = self.answers_per_client, self.mechanism.epsilon
        asked = "once" if times == 1 else f"{times:,} times"
        rounds, each = self.outlook.rounds, self.outlook.clients_per_round
        told = f"{times:,} (answers_per_client={times}: asked {asked})"
        of = f" of {_clients(each)} each"
        if isinstance(self.plan, CodewordPlan):
            name, sizes = "Codeword", f"K = {self.plan.favoured:,}"
            selection = {"favoured": self.plan.favoured, "rotations": self.plan.rotations}
            selection["n"] = self.plan.order
        else:
            name, sizes = "SignDS", f"K = {self.plan.top_size:,}, h = {self.plan.dim_out:,}"
            selection = {"top_size": self.plan.top_size, "h": self.plan.dim_out}
            selection["v_th"] = self.plan.threshold
        described = f"{name}(epsilon={epsilon:.12g}), {sizes}"
        return [
            note("epsilon of a client in all", f"{self.total_epsilon:g}"),
            Fact("mechanism", name.lower(), "mechanism", text=described),
            Fact("selection", selection),
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
    """Return how to train with a total for each client, and what that can learn.

    Parameters
    ----------
    clients : int
        Clients that there are, at least 1.
    weights : int
        Floating-point entries of the model, in [2, 2^32 - 1].
    total_epsilon : float
        What a client may spend in the whole run, pure; positive.
    answers_per_client : int, optional
        How often a client is asked. By default what makes all its answers together worth most,
        and the fewest that are worth within a twentieth of that.
    rounds : int, optional
        At least ``answers_per_client``, as a client answers a round once, and at most the answers
        of all. By default 40, or so few that each has 5 reports.
    mechanism : type, optional
        ``SignDS`` or ``Codeword``. By default the one whose answers are worth more; codewords if
        that is nearly the same, since they are shorter.

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
    choice = best(units, weights, kinds, answers)
    reports = clients * choice.answers
    each = max(LEAST_REPORTS, -(-reports // ROUNDS))
    number = rounds or max(choice.answers, reports // each)
    chosen = choice.kind(choice.epsilon)
    plan = plan_of(chosen, weights)
    return Advice(
        total_epsilon=total_epsilon,
        mechanism=chosen,
        plan=plan,
        answers_per_client=choice.answers,
        bytes_up=_bytes(plan),
        outlook=Outlook(partial(plan_of, chosen), weights, clients, number, reports // number),
    )


def _check(
    clients: int, weights: int, answers: int | None, rounds: int | None, mechanism: object
) -> None:
    """Raise unless each parameter is in its interval and they go together."""
    for name, value, least, most in (
        ("clients", clients, 1, MAX_DIMENSION),
        ("weights", weights, 2, MAX_DIMENSION),
        ("answers_per_client", answers, 1, 10**6),
        ("rounds", rounds, 1, 10**6),
    ):
        whole = isinstance(value, int) and not isinstance(value, bool)
        if value is not None and not (whole and least <= value <= most):
            raise ValueError(f"{name} must be an integer in [{least}, {most}], got {value!r}")
    if rounds is not None and rounds < (answers or 1):
        raise ValueError(
            f"rounds must be at least answers_per_client, {answers}, as a client answers a round "
            f"once, got {rounds}"
        )
    if rounds is not None and answers is not None and rounds > clients * answers:
        raise ValueError(
            f"rounds must be at most clients * answers_per_client, {clients * answers}: no round "
            f"is without a report, got {rounds}"
        )
    if mechanism not in (None, SignDS, Codeword):
        raise TypeError(f"mechanism must be SignDS or Codeword, the class, got {mechanism!r}")


def _answers(units: int, clients: int, answers: int | None, rounds: int | None) -> list[int]:
    """Return how often a client may be asked; each answer has an epsilon in (0, 100]."""
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


def _clients(count: int) -> str:
    """Return so many clients in words; a strategy asks fewer than two only where it is told to."""
    return f"{count:,} clients" if count > 1 else "1 client (min_train_nodes=1)"


def _bytes(plan: SelectionPlan | CodewordPlan) -> int:
    if isinstance(plan, CodewordPlan):
        return plan.report_bytes
    return report_length(dimension=plan.dimension, dim_out=plan.dim_out)
