"""Rounds of a strategy, their callbacks, the health bit, and the server's count of spending.

**Spending.** Every proposal sent counts, answered or not, because a client may have been charged
and its report lost. Refusals from before the charge and raw replies are taken off. The approximate
total bounds a client that was asked for each kind of release as often as any client was, for
epsilons fixed in advance. Releases that an owner waives are counted.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import NoneType
from typing import Annotated, Any, Generic, TypeAlias, TypeVar

import numpy as np
from flwr.app import ConfigRecord, Message, RecordDict
from numpy.polynomial.polynomial import polypow
from numpy.typing import NDArray

from flower_ldp.accounting.composition import Totals, totals
from flower_ldp.accounting.shuffled import ShuffleBound, shuffle_bound
from flower_ldp.accounting.zcdp import life_by_zcdp
from flower_ldp.mechanisms.randomized_response import BinaryResponse
from flower_ldp.parameter_bounds import Bounded, Checked, must_be
from flower_ldp.privacy import (
    PrivacyEvent,
    PrivacySpent,
    Unbounded,
    Unit,
    compose,
    compose_directly,
    meaning,
    unbounded,
)
from flower_ldp.shuffle.sealing import RoundKey
from flower_ldp.strategies.replies import (
    Metrics,
    OnceLogger,
    ReplyValidator,
    RunStopped,
    raise_if_unproductive,
)
from flower_ldp.strategies.sampling import ClientPool, RoundSample
from flower_ldp.wire.layout import ModelLayout
from flower_ldp.wire.proposal import HEALTH, PROPOSAL_KEY, Field, UpdateProposal, split_health

Vector: TypeAlias = NDArray[Any]
Sums: TypeAlias = Mapping[Unit, PrivacySpent]
ReportT = TypeVar("ReportT")
#: Of more health bits the law is that of normal noise.
_MOST_EXACT = 2_000
#: Ones and reports of nobody.
_NONE = (0, 0)


@dataclass
class Round:
    """State of a round."""

    server_round: int
    sample: RoundSample
    events: tuple[PrivacyEvent, ...]
    nodes: list[int] = field(default_factory=list, kw_only=True)


@dataclass(frozen=True)
class CentralCost:
    """What an analyzer says of one round of shuffled reports; in no total.

    ``epsilon`` is at the ``reports`` that arrived, ``epsilon_minimum`` at the ``minimum``.
    """

    epsilon: float
    epsilon_minimum: float
    delta: float
    reports: int
    minimum: int

    def __str__(self) -> str:
        return (
            f"a client's report in a round has the central epsilon {self.epsilon:.4g} at delta "
            f"{self.delta:g} among {self.reports:,}, for the analyzer and who sees the model, if "
            f"the server tells nobody who is who; {self.epsilon_minimum:.4g} among {self.minimum:,}"
            ", for a server that drops reports, and invents none"
        )


@dataclass
class TrainingRound(Round):
    """A round of training."""

    model: Mapping[str, NDArray[Any]]
    layout: ModelLayout
    proposal: UpdateProposal[Any]
    analyzer_key: RoundKey | None = None
    central: CentralCost | None = None


RoundT = TypeVar("RoundT", bound=Round)


class RoundCallback(Generic[RoundT]):
    """Part of a strategy that follows its rounds."""

    def on_run_start(self, rounds: int, layout: ModelLayout | None) -> None:
        """Begin a run; ``layout`` is None for an evaluation."""

    def before_ask(self, current: RoundT) -> None:
        """Prepare for a round, or refuse it by an error."""

    def after_replies(self, current: RoundT, replies: ReplyValidator) -> None:
        """Receive the replies, or raise RunStopped."""

    def after_step(self, current: RoundT, total: Vector, reports: int) -> None:
        """Receive the sum of a round's reports."""

    def metrics(self, current: RoundT) -> Metrics:
        """Return the round's metrics."""
        return {}


@dataclass(frozen=True)
class Health(Checked):
    """Asks clients whether their reports are neutral, and stops the run if too many are.

    Parameters
    ----------
    epsilon : float
        Of one bit, per report and client, added to the report's own; in [0.01, 100], or ValueError.
        Policies must allow the mechanism ``health``.
    stop_above : float
        Largest allowed share of neutral reports, in [0, 1).
    significance : float
        Required certainty, in normal standard deviations: by default 0.13 % of tests stop falsely.

    Examples
    --------
    >>> from flower_ldp.mechanisms import SignDS
    >>> from flower_ldp.strategies import FixedStep, SignDSStrategy
    >>> strategy = SignDSStrategy(SignDS(epsilon=7.5), FixedStep(0.1), health=Health(epsilon=0.5))
    """

    epsilon: Annotated[float, Bounded("[0.01, 100]")]
    stop_above: Annotated[float, Bounded("[0, 1)")] = 0.5
    significance: Annotated[float, Bounded("[0, inf)")] = 3.0

    @property
    def response(self) -> BinaryResponse:
        """The randomized response of the bit."""
        return BinaryResponse(self.epsilon, name=HEALTH)

    def estimate(self, ones: int, reports: int) -> tuple[float, float]:
        """Return the share of neutral reports and its standard error."""
        bit = self.response
        return bit.estimate(ones, reports) / reports, bit.standard_deviation(reports) / reports


class HealthMonitor(RoundCallback[Round]):
    """Stops a run that cannot learn."""

    def __init__(self, health: Health | None) -> None:
        must_be("health", health, (Health, NoneType), "a Health, as Health(epsilon=0.5)")
        self._health = health
        self.complaints = OnceLogger()
        #: Ones, and reports, of the round and of the run.
        self._round, self._run = _NONE, _NONE

    @property
    def epsilon(self) -> float | None:
        """Epsilon of the bit for proposals, or None."""
        return None if self._health is None else self._health.epsilon

    def on_run_start(self, rounds: int, layout: ModelLayout | None) -> None:
        """Forget an earlier run."""
        self._run = _NONE
        self.complaints = OnceLogger()

    def before_ask(self, current: Round) -> None:
        """Begin a round."""
        self._round = _NONE

    def decoder(self, decode: Callable[[bytes], ReportT]) -> Callable[[bytes], ReportT]:
        """Return a decoder that counts bits."""

        def whole(payload: bytes) -> ReportT:
            report, bit = split_health(payload, asked=self._health is not None)
            found = decode(report)
            if bit is not None:
                self.count(bit, 1)
            return found

        return whole

    def count(self, ones: int, reports: int) -> None:
        """Add bits that an analyzer summed."""
        self._round = self._round[0] + ones, self._round[1] + reports
        self._run = self._run[0] + ones, self._run[1] + reports

    def metrics(self, current: Round) -> Metrics:
        """Return ``failing-share`` and ``failing-share-error``."""
        if self._health is None or self._round == _NONE:
            return {}
        share, error = self._health.estimate(*self._round)
        return {"failing-share": share, "failing-share-error": error}

    def after_replies(self, current: Round, replies: ReplyValidator) -> None:
        """Raise RunStopped if the run cannot learn."""
        raise_if_unproductive(replies, current.server_round)
        if self._health is None:
            return
        for ones, reports in (self._round, self._run):
            if reports and _is_too_large(self._health, ones, reports):
                share, error = self._health.estimate(ones, reports)
                raise RunStopped(
                    f"round {current.server_round}: by the clients' health bits the app fails in "
                    f"{share:.0%} ± {error:.0%} of {reports:,} reports (± is one standard error; "
                    f"at most {self._health.stop_above:.0%} may). The reports of an app that fails "
                    "are neutral and teach nothing, and cost what any report costs. What failed is "
                    "in the clients' logs; to see it here, rehearse the app on public sample data: "
                    "LdpMod(..., rehearsal=Rehearsal(...))"
                )


def _is_too_large(health: Health, ones: int, reports: int) -> bool:
    response, allowed = health.response, math.floor(health.stop_above * reports)
    if reports > _MOST_EXACT:
        excess = response.estimate(ones, reports) - health.stop_above * reports
        return excess > health.significance * response.standard_deviation(reports)
    if response.estimate(ones, reports) <= allowed:
        return False
    keep = response.keep_probability
    # The chance of each number of ones: coefficients of a product, one factor for each bit.
    neutral = polypow([1.0 - keep, keep], allowed)
    law = np.convolve(neutral, polypow([keep, 1.0 - keep], reports - allowed))
    return float(law[ones:].sum()) <= math.erfc(health.significance / math.sqrt(2.0)) / 2.0


@dataclass(frozen=True)
class SpendingReport:
    """Worst-case spending of clients on a server's proposals. ``print`` shows it.

    Per unit, ``units`` has the largest sum over clients, coarser units included, ``direct`` only
    events about the unit itself, ``smaller`` the smaller valid bound, ``lives`` the smallest life
    by zCDP that fits, and ``beyond`` releases without a bound. ``shuffle`` holds for an observer of
    shuffled reports only and is in no total; with an analyzer ``central`` is in its place. No
    epsilon here covers the nodes of ``raw``, nor replies to messages that were sent, of the types
    ``uncounted``.
    """

    units: Sums
    direct: Sums
    beyond: Mapping[Unit, Unbounded]
    smaller: Sums
    lives: Sums
    clients: Mapping[int, Sums]
    shuffle: ShuffleBound | None
    raw: tuple[int, ...] = ()
    uncounted: tuple[str, ...] = ()
    central: CentralCost | None = None

    def __str__(self) -> str:
        lines = [
            f"NOT COUNTED: replies to {kind} messages, which are in no total here"
            for kind in self.uncounted
        ]
        if self.raw:
            lines.append(
                f"NOT PRIVATE: {len(self.raw)} clients sent raw replies, which no epsilon covers "
                "(their app has no LdpMod)"
            )
        said: PrivacySpent | None = None
        for unit in Unit:
            spent, beyond = self.units.get(unit), self.beyond[unit]
            if spent is None:
                if beyond:
                    lines.append(f"no promise per {unit.value}: {beyond}")
                continue
            if said is not None and replace(spent, unit=said.unit) == said and not beyond:
                lines.append(f"and as much per {unit.value}, which is part of it")
                continue
            line = f"at most {spent} (worst of {len(self.clients)} clients, a sum)"
            direct, smaller = self.direct.get(unit), self.smaller[unit]
            if direct != spent:
                line += f", of which directly {direct or 'nothing'}"
            if smaller != spent:
                line += f"; or {smaller}"
            if self.lives[unit].epsilon < spent.epsilon:
                line += f"; it fits a life by zCDP of {self.lives[unit]}"
            if beyond:
                line += f"; {beyond}: the total does not bound them"
            lines += [line, meaning(min(smaller, self.lives[unit], key=lambda one: one.epsilon))]
            said = spent
        if self.central is not None:
            lines.append(f"shuffled, in no total: {self.central}")
        elif self.shuffle is not None:
            lines.append(f"conditional, in no total: {self.shuffle}")
        return "\n".join(lines) or "nothing was asked for"


class SpendingLog(RoundCallback[Round]):
    """Count of proposals, by node and event."""

    def __init__(self) -> None:
        self._asked: dict[int, Counter[PrivacyEvent]] = {}
        self._last: tuple[tuple[PrivacyEvent, ...], int] | None = None
        self._raw: set[int] = set()
        self._inherited: list[ClientPool] = []
        self._uncounted: set[str] = set()
        #: Of shuffled rounds, that of the fewest reports.
        self.central: CentralCost | None = None

    def before_ask(self, current: Round) -> None:
        """Count a pool's earlier runs, at this round's events."""
        pool = current.sample.pool
        if pool is not None and not any(pool is one for one in self._inherited):
            self._inherited.append(pool)
            for node, times in pool.asked().items():
                self.record(node, _repeated((event, times) for event in current.events))

    def choose(self, current: Round, content: RecordDict, fields: Mapping[str, Field]) -> None:
        """Add the proposal to the content, and choose and count the clients, last of all.

        Nodes that sent raw replies are excluded.
        """
        content[PROPOSAL_KEY] = ConfigRecord({**fields})
        current.nodes = [node for node in current.sample.draw() if node not in self._raw]
        for node in current.nodes:
            self.record(node, current.events)

    def after_replies(self, current: Round, replies: ReplyValidator) -> None:
        """Take off refusals before the charge, and raw replies."""
        for node in (*replies.uncharged, *replies.raw):
            self._asked[node] -= Counter(current.events)
        self._raw.update(replies.raw)
        if current.sample.pool is not None:
            current.sample.pool.put_back(replies.uncharged)

    def metrics(self, current: Round) -> Metrics:
        """Return epsilons and nonzero deltas, of the round and in total."""
        asked = compose(current.events)[Unit.CLIENT]
        worst = self.worst().get(Unit.CLIENT, PrivacySpent(Unit.CLIENT, 0.0))
        values: Metrics = {"epsilon-total": worst.epsilon, "epsilon-round": asked.epsilon}
        if asked.delta or worst.delta:
            values |= {"delta-total": worst.delta, "delta-round": asked.delta}
        return values

    def record(self, node: int, events: Iterable[PrivacyEvent]) -> None:
        """Count a proposal before it is sent."""
        self._asked.setdefault(node, Counter()).update(events)

    def note_uncounted(self, messages: Iterable[Message]) -> list[Message]:
        """Return messages that no proposal covers, and remember their types."""
        sent = list(messages)
        self._uncounted.update(message.metadata.message_type for message in sent)
        return sent

    def answered(self, events: Iterable[PrivacyEvent], reports: int) -> None:
        """Store a round's number of reports."""
        self._last = tuple(events), reports

    def worst(self) -> Sums:
        """Return the largest pure sums over clients."""
        return _largest(map(compose, self._histories()))

    def report(self, *, delta: float) -> SpendingReport:
        """Return the spending report."""
        units, histories = self.worst(), self._histories()
        clients = {node: compose(_repeated(one.items())) for node, one in self._asked.items()}
        return SpendingReport(
            units=units,
            direct=_largest(map(compose_directly, histories)),
            beyond={unit: _most(histories, unit) for unit in Unit},
            smaller=self._smaller(units, delta),
            lives=_lives(units, histories, delta),
            clients=clients,
            shuffle=self._shuffle(delta),
            raw=tuple(sorted(self._raw)),
            uncounted=tuple(sorted(self._uncounted)),
            central=self.central,
        )

    def _histories(self) -> list[list[PrivacyEvent]]:
        different = {frozenset(events.items()) for events in self._asked.values()}
        return [_repeated(history) for history in different]

    def _smaller(self, units: Sums, delta: float) -> Sums:
        most: Counter[PrivacyEvent] = Counter()
        for asked in self._asked.values():
            most |= asked
        bounds = totals(_repeated(most.items()), delta=delta)
        return {unit: Totals(one, bounds[unit].approximate).smaller for unit, one in units.items()}

    def _shuffle(self, delta: float) -> ShuffleBound | None:
        if self._last is None or self._last[1] < 1:
            return None
        events, reports = self._last
        spent = compose(events).get(Unit.CLIENT)
        # The bound is about a client's whole report: no part of it may be left out.
        if spent is None or spent.delta or unbounded(events, Unit.CLIENT):
            return None
        return shuffle_bound(spent.epsilon, clients=reports, delta=delta)


def _largest(sums: Iterable[Sums]) -> Sums:
    every = list(sums)
    found = {unit: [one[unit] for one in every if unit in one] for unit in Unit}
    return {
        unit: PrivacySpent(unit, max(one.epsilon for one in own), max(one.delta for one in own))
        for unit, own in found.items()
        if own
    }


def _lives(units: Sums, histories: list[list[PrivacyEvent]], delta: float) -> Sums:
    found = {}
    for unit in units:
        own = [one for one in histories if unit in compose(one)]
        most = max(life_by_zcdp(history, unit, delta) for history in own)
        found[unit] = PrivacySpent(unit, most, delta)
    return found


def _most(histories: Iterable[list[PrivacyEvent]], unit: Unit) -> Unbounded:
    found = [unbounded(history, unit) for history in histories]
    silent = max((one.silent for one in found), default=0)
    return Unbounded(silent, max((one.conditional for one in found), default=0))


def _repeated(history: Iterable[tuple[PrivacyEvent, int]]) -> list[PrivacyEvent]:
    return [replace(event, count=event.count * times) for event, times in history]
