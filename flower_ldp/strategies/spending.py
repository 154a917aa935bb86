"""What a server has asked of its clients: the worst case, and what each client was charged.

The server counts every proposal that it sends, answered or not: what was never answered may
have been charged, and its report lost on the way. Only a client that answers with a refusal
that its gate decides before it charges anything has spent nothing, and that proposal is taken
off again; and a client that answers without a gate was promised nothing: that it did is counted
apart (:attr:`SpendingReport.raw`). The clients' ledgers are the truth; this is the server's view
of them.

**Worst case.** The pure total is the largest sum over clients, of epsilons and of deltas each:
no client's exceeds either. The approximate one bounds a client that was asked for each kind of
release as often as any client was: at least as much as every client's releases, and the same
where all take part in every round. It is a statement about epsilons that were fixed beforehand
(:mod:`flower_ldp.accounting.composition`).

Units are nested (:mod:`flower_ldp.privacy`): what is about a client counts towards its examples
and labels. The owner may have declared releases post-processing of others; a server does not
know, and counts them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from flwr.app import ConfigRecord, RecordDict

from flower_ldp.accounting.composition import ShuffleBound, Totals, shuffled, totals
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
from flower_ldp.strategies.replies import ReplyFilter
from flower_ldp.strategies.rounds import Metrics, Round, RoundCallback
from flower_ldp.strategies.sampling import ClientPool
from flower_ldp.wire.proposal import PROPOSAL_KEY, Field


@dataclass(frozen=True)
class SpendingReport:
    """What clients have spent on a server's proposals, in the worst case.

    ``print`` it for people.

    Parameters
    ----------
    units : mapping of Unit to PrivacySpent
        Per unit, the largest sum over clients, with all that is about coarser units: pure
        composition. Only units for which something was promised.
    direct : mapping of Unit to PrivacySpent
        The same of events about the very unit.
    beyond : mapping of Unit to Unbounded
        Per unit, the most releases of one client that its total says nothing about.
    smaller : mapping of Unit to PrivacySpent
        Per unit, the smaller valid bound, which has a delta if it is not the sum.
    clients : mapping of int to mapping of Unit to PrivacySpent
        Per node id, what its ledger should say for this run, in all.
    shuffle : ShuffleBound or None
        What one round would cost towards someone who sees shuffled reports only; None if no
        theorem applies. Never part of a total.
    raw : tuple of int
        Node ids of clients that sent raw replies. No epsilon covers those.
    """

    units: Mapping[Unit, PrivacySpent]
    direct: Mapping[Unit, PrivacySpent]
    beyond: Mapping[Unit, Unbounded]
    smaller: Mapping[Unit, PrivacySpent]
    clients: Mapping[int, Mapping[Unit, PrivacySpent]]
    shuffle: ShuffleBound | None
    raw: tuple[int, ...] = ()

    def __str__(self) -> str:
        lines: list[str] = []
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
            lines += self._lines(unit, spent, beyond)
            said = spent
        if self.shuffle is not None:
            lines.append(f"conditional, in no total: {self.shuffle}")
        return "\n".join(lines) or "nothing was asked for"

    def _lines(self, unit: Unit, spent: PrivacySpent, beyond: Unbounded) -> list[str]:
        line = f"at most {spent} (worst of {len(self.clients)} clients, a sum)"
        direct = self.direct.get(unit)
        if direct != spent:
            line += f", of which directly {direct or 'nothing'}"
        if self.smaller[unit] != spent:
            line += f"; or {self.smaller[unit]}"
        if beyond:
            line += f"; {beyond}: the total does not bound them"
        return [line, meaning(self.smaller[unit])]


class Proposals(RoundCallback[Round]):
    """The server's own record of what it asked for, by node and kind of release."""

    def __init__(self) -> None:
        self._asked: dict[int, Counter[PrivacyEvent]] = {}
        self._last: tuple[tuple[PrivacyEvent, ...], int] | None = None
        self._raw: set[int] = set()
        self._inherited: list[ClientPool] = []

    def before_ask(self, current: Round) -> None:
        """Count what a pool of clients remembers of earlier runs, once for each pool.

        A pool knows how often it asked, and not for what: such an answer counts as one of now.
        """
        pool = current.turn.pool
        if pool is not None and not any(pool is one for one in self._inherited):
            self._inherited.append(pool)
            for node, times in pool.asked().items():
                self.record(node, _repeated((event, times) for event in current.events))

    def choose(self, current: Round, content: RecordDict, fields: Mapping[str, Field]) -> None:
        """Put a round's proposal into its content, choose who is asked, and count it.

        The choice counts as asked, so nothing may go wrong after it. Nodes that answered without a
        gate before are asked no more.
        """
        content[PROPOSAL_KEY] = ConfigRecord({**fields})
        current.nodes = [node for node in current.turn.choose() if node not in self._raw]
        for node in current.nodes:
            self.record(node, current.events)

    def after_replies(self, current: Round, replies: ReplyFilter) -> None:
        """Take off what was refused before it was charged, and what no gate ever saw."""
        for node in (*replies.uncharged, *replies.raw):
            self.withdraw(node, current.events)
        self._raw.update(replies.raw)
        if current.turn.pool is not None:
            current.turn.pool.put_back(replies.uncharged)

    def metrics(self, current: Round) -> Metrics:
        """Return ``epsilon-total`` and ``epsilon-round``, and the deltas where there are any."""
        asked = compose(current.events)[Unit.CLIENT]
        worst = self.worst().get(Unit.CLIENT, PrivacySpent(Unit.CLIENT, 0.0))
        values: Metrics = {"epsilon-total": worst.epsilon, "epsilon-round": asked.epsilon}
        if asked.delta or worst.delta:
            values |= {"delta-total": worst.delta, "delta-round": asked.delta}
        return values

    def record(self, node: int, events: Iterable[PrivacyEvent]) -> None:
        """Count a proposal that is about to be sent."""
        self._asked.setdefault(node, Counter()).update(events)

    def withdraw(self, node: int, events: Iterable[PrivacyEvent]) -> None:
        """Take off a proposal that the node refused before it charged anything."""
        self._asked[node] -= Counter(events)

    def answered(self, events: Iterable[PrivacyEvent], reports: int) -> None:
        """Remember how many clients answered the last round, for the conditional line."""
        self._last = tuple(events), reports

    def worst(self) -> dict[Unit, PrivacySpent]:
        """Return the largest pure sums over clients, per unit: of epsilons and of deltas."""
        return _largest(map(compose, self._histories()))

    def report(self, *, delta: float) -> SpendingReport:
        """Return the report; see :meth:`SignDSStrategy.privacy_spent`."""
        units, histories = self.worst(), self._histories()
        return SpendingReport(
            units=units,
            direct=_largest(map(compose_directly, histories)),
            beyond={unit: _most(histories, unit) for unit in Unit},
            smaller=self._smaller(units, delta),
            clients={
                node: compose(_repeated(asked.items())) for node, asked in self._asked.items()
            },
            shuffle=self._shuffle(delta),
            raw=tuple(sorted(self._raw)),
        )

    def _histories(self) -> list[list[PrivacyEvent]]:
        """Return what clients were asked for, each history once."""
        different = {frozenset(events.items()) for events in self._asked.values()}
        return [_repeated(history) for history in different]

    def _smaller(
        self, units: Mapping[Unit, PrivacySpent], delta: float
    ) -> dict[Unit, PrivacySpent]:
        most: Counter[PrivacyEvent] = Counter()
        for asked in self._asked.values():
            most |= asked
        try:
            bounds = totals(_repeated(most.items()), delta=delta)
        except ModuleNotFoundError:  # dp-accounting is an extra: the sums hold without it
            return dict(units)
        return {
            unit: Totals(spent, bounds[unit].approximate).smaller for unit, spent in units.items()
        }

    def _shuffle(self, delta: float) -> ShuffleBound | None:
        if self._last is None or self._last[1] < 1:
            return None
        events, reports = self._last
        spent = compose(events).get(Unit.CLIENT)
        # The theorem is about a client's whole report: no part of it may be left out.
        if spent is None or spent.delta or unbounded(events, Unit.CLIENT):
            return None
        return shuffled(spent.epsilon, clients=reports, delta=delta)


def _largest(sums: Iterable[Mapping[Unit, PrivacySpent]]) -> dict[Unit, PrivacySpent]:
    """Return, per unit, the largest epsilon and the largest delta."""
    found: dict[Unit, PrivacySpent] = {}
    for one in sums:
        for unit, spent in one.items():
            had = found.get(unit, spent)
            epsilon, delta = max(had.epsilon, spent.epsilon), max(had.delta, spent.delta)
            found[unit] = PrivacySpent(unit, epsilon, delta)
    return {unit: found[unit] for unit in Unit if unit in found}


def _most(histories: Iterable[list[PrivacyEvent]], unit: Unit) -> Unbounded:
    """Return the most releases of one client that a unit's total says nothing about."""
    found = [unbounded(history, unit) for history in histories]
    silent = max((one.silent for one in found), default=0)
    return Unbounded(silent, max((one.conditional for one in found), default=0))


def _repeated(history: Iterable[tuple[PrivacyEvent, int]]) -> list[PrivacyEvent]:
    return [replace(event, count=event.count * times) for event, times in history]
