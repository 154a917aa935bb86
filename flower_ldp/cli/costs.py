"""What planned rounds cost, in the same lines and keys for every mechanism."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import typer

from flower_ldp.accounting.composition import totals
from flower_ldp.cli.output import Report, number
from flower_ldp.privacy import PrivacyEvent, PrivacySpent, Unit, compose, meaning

_MOST_ROUNDS = 1_000_000
#: What is about a client counts towards its examples and labels, and none of it is about these.
FINER_UNITS = ("   per example and label", "as much in all, nothing of it directly")


def wrong(option: str, what: str) -> typer.BadParameter:
    """Return the error of an option that is used wrongly: exit code 2."""
    return typer.BadParameter(what, param_hint=option)


def check_count(option: str, value: int | None, most: int = _MOST_ROUNDS) -> None:
    """Raise unless a number is left out or in [1, most]."""
    if value is not None and not 1 <= value <= most:
        raise wrong(option, f"must be in [1, {most}], got {value}")


def check_delta(delta: float) -> None:
    """Raise unless ``--delta`` is in (0, 1)."""
    if not 0 < delta < 1:
        raise wrong("--delta", f"must be in (0, 1), got {delta}")


@dataclass(frozen=True)
class Cost:
    """What a round costs a client, and all of them.

    Parameters
    ----------
    events : tuple of PrivacyEvent
        Of one round; all per client and pure.
    rounds : int
        Rounds in which the client takes part.
    one, pure : PrivacySpent
        Sums over a round and over all of them.
    second : PrivacySpent or None
        Of all, by loss distributions; None if that cannot be said.
    smaller : PrivacySpent
        The smaller of the two valid bounds.
    """

    events: tuple[PrivacyEvent, ...]
    rounds: int
    one: PrivacySpent
    pure: PrivacySpent
    second: PrivacySpent | None
    smaller: PrivacySpent

    @classmethod
    def of(cls, events: Sequence[PrivacyEvent], rounds: int, delta: float, report: Report) -> Cost:
        """Return the cost of rounds; say so where the second bound cannot be computed."""
        planned = [replace(event, count=event.count * rounds) for event in events]
        one, pure = compose(events)[Unit.CLIENT], compose(planned)[Unit.CLIENT]
        second, smaller = None, pure
        try:
            found = totals(planned, delta=delta)[Unit.CLIENT]
            second, smaller = found.approximate, found.smaller
        except ModuleNotFoundError as error:
            report.warn(str(error))
        return cls(tuple(events), rounds, one, pure, second, smaller)

    def lines(self) -> list[tuple[str, str]]:
        """Return names and values of the sums, for a report's pairs."""
        parts = " + ".join(f"{event.mechanism} {_times(event)}" for event in self.events)
        rows = [
            (
                "epsilon in all, pure",
                f"{self.pure.epsilon:.15g} per client after {self.rounds:,} rounds",
            ),
            FINER_UNITS,
        ]
        if self.second is not None:
            gain = "" if self.second.epsilon < self.pure.epsilon else "no less: "
            found = f"{gain}{number(self.second.epsilon)}, {_at(self.second)}"
            rows.append(("   by loss distributions", found))
        chosen = f"{self.smaller.epsilon:.15g}, the pure sum"
        if self.smaller.delta > 0:
            chosen = f"{number(self.smaller.epsilon)}, {_at(self.smaller)}"
        rows.append(("   the smaller valid bound", chosen))
        rows.append(("epsilon a round", f"{self.one.epsilon:.15g} per client, pure ({parts})"))
        return rows

    def tell_meaning(self, report: Report) -> None:
        """Put sums and their meaning into the facts, and say in words what they are worth."""
        report.facts["meaning"] = {"round": meaning(self.one), "total": meaning(self.pure)}
        # Rounds are about the client, and so about each of its examples and labels.
        report.facts["epsilon"] = {
            "unit": "client",
            "units": [unit.value for unit in Unit.CLIENT.within],
            "relation": Unit.CLIENT.relation,
            "round": self.one.epsilon,
            "total_pure": self.pure.epsilon,
            "total_pld": None if self.second is None else self.second.epsilon,
            "total_smaller": self.smaller.epsilon,
            "total_smaller_delta": self.smaller.delta,
        }
        report.line()
        report.line(f"In all:    {meaning(self.pure)}")
        report.line(f"One round: {meaning(self.one)}")


def _times(event: PrivacyEvent) -> str:
    times = "" if event.count == 1 else f"{event.count:,} x "
    return f"{times}{event.epsilon:.15g}"


def _at(spent: PrivacySpent) -> str:
    return f"delta {spent.delta:g} (if the rounds and epsilons are fixed beforehand)"
