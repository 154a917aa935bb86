"""What a server has asked of its clients: the worst case, and what each client was charged.

The server counts every proposal that it sends, answered or not: what was never answered may
have been charged, and its report lost on the way. Only a client that answers with a refusal
that its gate decides before it charges anything has spent nothing, and that proposal is taken
off again. The clients' ledgers are the truth; this is the server's view of them.

**Worst case.** The pure total is the largest sum over clients. The approximate one bounds a
client that was asked for each kind of release as often as any client was: at least as much as
every client's releases, and the same where all take part in every round. It is a statement
about epsilons that were fixed beforehand (:mod:`flower_ldp.accounting.composition`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from flower_ldp.accounting.composition import Totals, totals
from flower_ldp.accounting.shuffle import ShuffleBound, shuffled
from flower_ldp.privacy import PrivacyEvent, PrivacySpent, Unit, compose, meaning


@dataclass(frozen=True)
class SpendingReport:
    """What clients have spent on a server's proposals, in the worst case.

    ``print`` it for people.

    Parameters
    ----------
    units : mapping of Unit to PrivacySpent
        Per unit, the largest sum over clients: pure composition.
    smaller : mapping of Unit to PrivacySpent
        Per unit, the smaller valid bound, which has a delta if it is not the sum.
    clients : mapping of int to mapping of Unit to PrivacySpent
        Per node id, what its ledger should say for this run.
    shuffle : ShuffleBound or None
        What one round would cost towards someone who sees shuffled reports only; None if no
        theorem applies. Never part of a total.
    """

    units: Mapping[Unit, PrivacySpent]
    smaller: Mapping[Unit, PrivacySpent]
    clients: Mapping[int, Mapping[Unit, PrivacySpent]]
    shuffle: ShuffleBound | None

    def __str__(self) -> str:
        lines = []
        for unit, spent in self.units.items():
            line = f"at most {spent} (worst of {len(self.clients)} clients, a sum)"
            if self.smaller[unit] != spent:
                line += f"; or {self.smaller[unit]}"
            lines += [line, meaning(self.smaller[unit])]
        if self.shuffle is not None:
            lines.append(f"conditional, in no total: {self.shuffle}")
        return "\n".join(lines) or "nothing was asked for"


class Proposals:
    """The server's own record of what it asked for, by node and kind of release."""

    def __init__(self) -> None:
        self._asked: dict[int, Counter[PrivacyEvent]] = {}
        self._last: tuple[tuple[PrivacyEvent, ...], int] | None = None

    def record(self, node: int, events: Iterable[PrivacyEvent]) -> None:
        """Count a proposal that is about to be sent."""
        self._asked.setdefault(node, Counter()).update(events)

    def withdraw(self, node: int, events: Iterable[PrivacyEvent]) -> None:
        """Take off a proposal that the node refused before it charged anything."""
        asked = self._asked[node]
        asked.subtract(events)
        self._asked[node] = +asked

    def answered(self, events: Iterable[PrivacyEvent], reports: int) -> None:
        """Remember how many clients answered the last round, for the conditional line."""
        self._last = tuple(events), reports

    def worst(self) -> dict[Unit, PrivacySpent]:
        """Return the largest pure sum over clients, per unit."""
        found: dict[Unit, PrivacySpent] = {}
        for history in {frozenset(events.items()) for events in self._asked.values()}:
            for unit, spent in compose(_repeated(history)).items():
                if unit not in found or spent.epsilon > found[unit].epsilon:
                    found[unit] = spent
        return found

    def report(self, *, delta: float) -> SpendingReport:
        """Return the report; see :meth:`SignDSStrategy.privacy_spent`."""
        units = self.worst()
        return SpendingReport(
            units=units,
            smaller=self._smaller(units, delta),
            clients={
                node: compose(_repeated(asked.items())) for node, asked in self._asked.items()
            },
            shuffle=self._shuffle(delta),
        )

    def _smaller(
        self, units: Mapping[Unit, PrivacySpent], delta: float
    ) -> dict[Unit, PrivacySpent]:
        most: Counter[PrivacyEvent] = Counter()
        for asked in self._asked.values():
            most |= asked
        try:
            bounds = totals(_repeated(most.items()), delta=delta)
        except ModuleNotFoundError:
            # dp-accounting is an extra: the sums hold without it.
            return dict(units)
        return {
            unit: Totals(spent, bounds[unit].approximate).smaller for unit, spent in units.items()
        }

    def _shuffle(self, delta: float) -> ShuffleBound | None:
        if self._last is None or self._last[1] < 1:
            return None
        events, reports = self._last
        spent = compose(events).get(Unit.CLIENT)
        if spent is None or spent.delta:
            return None
        return shuffled(spent.epsilon, clients=reports, delta=delta)


def _repeated(history: Iterable[tuple[PrivacyEvent, int]]) -> Iterable[PrivacyEvent]:
    return [replace(event, count=event.count * times) for event, times in history]
