"""A round of training or evaluation, and the parts of a strategy that follow it.

**The health bit.** A client whose app fails answers with a neutral report, which looks like any
other and costs the same. So a bug would use up every client's budget in silence. With
:class:`Health` a strategy asks each client for one more private bit, whether its report is neutral.
From these bits it estimates the share that is, and stops the run where that is surely too large.

With N bits of which C are ones, and P the keeping probability, the share is estimated by
(C / N - (1 - P)) / (2P - 1), without bias, with a standard error of sqrt(P (1 - P) / N) / (2P - 1)
whatever the true bits. The run stops where so many ones would be a chance of one in 741 (three
deviations of a normal variable) or less if the share were what is allowed: the chance is exact for
up to 2,000 bits, and beyond that by the normal law. The rule looks at the round alone and at all
rounds so far: a few clients say together what one round cannot.

A client that lies weighs 1 / (2P - 1) times as much as an honest one: with a small epsilon a
small share of liars can stop a run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Generic, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from flower_ldp.bounds import Bounded, check_fields
from flower_ldp.mechanisms.randomized_response import BinaryResponse
from flower_ldp.privacy import PrivacyEvent
from flower_ldp.strategies.replies import Complaints, ReplyFilter, RunStopped, stop_if_in_vain
from flower_ldp.strategies.sampling import Turn
from flower_ldp.wire.layout import ModelLayout
from flower_ldp.wire.proposal import HEALTH, UpdateProposal, split_health

#: An update, a sum of them, or a step.
Vector: TypeAlias = NDArray[Any]
#: What a record of metrics is made from.
Metrics: TypeAlias = dict[str, int | float]


@dataclass
class Round:
    """What the server must remember between asking and aggregating.

    Parameters
    ----------
    server_round : int
        From 1.
    turn : Turn
        Who may be asked.
    events : tuple of PrivacyEvent
        What an answer costs a client.
    nodes : list of int
        Who was asked; nobody yet.
    """

    server_round: int
    turn: Turn
    events: tuple[PrivacyEvent, ...]
    nodes: list[int] = field(default_factory=list, kw_only=True)


@dataclass
class TrainingRound(Round):
    """A round of training.

    Parameters
    ----------
    model : mapping of str to ndarray
        That was sent.
    layout : ModelLayout
        What of it reports are about.
    proposal : UpdateProposal
        What clients are asked for.
    """

    model: Mapping[str, NDArray[Any]]
    layout: ModelLayout
    proposal: UpdateProposal[Any]


RoundT = TypeVar("RoundT", bound=Round)


class RoundCallback(Generic[RoundT]):
    """A part of a strategy that follows its rounds; a hook that is left out does nothing.

    A strategy calls its callbacks in the order of its list.
    """

    def on_run_start(self, rounds: int, layout: ModelLayout | None) -> None:
        """Learn of a run that begins; there is no layout for an evaluation."""

    def before_ask(self, current: RoundT) -> None:
        """Refuse a round, or prepare for it, before anybody is chosen.

        It raises ValueError or RuntimeError to refuse. Later hooks refuse nothing.
        """

    def after_replies(self, current: RoundT, replies: ReplyFilter) -> None:
        """Learn what came back. It raises RunStopped if going on would be in vain."""

    def after_step(self, current: RoundT, total: Vector, reports: int) -> None:
        """Learn the sum of a round's reports, at least one, by which the model was moved."""

    def metrics(self, current: RoundT) -> Metrics:
        """Return the round's metrics, once its replies were judged."""
        return {}


class StopRule(RoundCallback[Round]):
    """Stops a run in vain, and keeps what was complained of in it.

    Attributes
    ----------
    complaints : Complaints
        Of the run.
    """

    def __init__(self) -> None:
        self.complaints = Complaints()

    def on_run_start(self, rounds: int, layout: ModelLayout | None) -> None:
        """Forget the complaints of another run."""
        self.complaints = Complaints()

    def after_replies(self, current: Round, replies: ReplyFilter) -> None:
        """Stop the run as :func:`~flower_ldp.strategies.replies.stop_if_in_vain` says."""
        stop_if_in_vain(replies, current.server_round)


def reply_metrics(replies: ReplyFilter) -> Metrics:
    """Return ``accepted``, ``rejected`` and ``rejected-<reason>``."""
    values: Metrics = {"accepted": replies.accepted, "rejected": replies.rejected.total()}
    for reason, count in sorted(replies.rejected.items()):
        values[f"rejected-{reason}"] = count
    return values


ReportT = TypeVar("ReportT")
_MOST_EXACT = 2_000
#: Ones and reports of nobody.
_NONE = (0, 0)


@dataclass(frozen=True)
class Health:
    """Asks clients whether their reports are neutral, and says when a run stops.

    Parameters
    ----------
    epsilon : float
        Of one bit, per report and client, added to the report's own; in [0.01, 100]. The
        clients' policies must allow the mechanism ``health``.
    stop_above : float
        The share of neutral reports that a run may have; in [0, 1).
    significance : float
        How sure it must be that the share is larger, in standard deviations of a normal variable;
        in [0, inf). By default a false stop has a chance of at most 0.13 % each time that the rule
        looks, and that only where the share is at its limit.

    Raises
    ------
    ValueError
        If a parameter is outside its interval.

    Examples
    --------
    >>> from flower_ldp.mechanisms import SignDS
    >>> from flower_ldp.strategies import FixedStep, SignDSStrategy
    >>> strategy = SignDSStrategy(SignDS(epsilon=7.5), FixedStep(0.1), health=Health(epsilon=0.5))
    """

    epsilon: Annotated[float, Bounded("[0.01, 100]")]
    stop_above: Annotated[float, Bounded("[0, 1)")] = 0.5
    significance: Annotated[float, Bounded("[0, inf)")] = 3.0

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def response(self) -> BinaryResponse:
        """What the bit goes through."""
        return BinaryResponse(self.epsilon, name=HEALTH)

    def estimate(self, ones: int, reports: int) -> tuple[float, float]:
        """Return the share of neutral reports, unbiased, and its standard error."""
        bit = self.response
        return bit.estimate(ones, reports) / reports, bit.standard_deviation(reports) / reports


class HealthMonitor(RoundCallback[Round]):
    """The bits of one strategy's rounds.

    Parameters
    ----------
    health : Health or None
        What is asked for; None for nothing, and then nothing is ever said.
    """

    def __init__(self, health: Health | None) -> None:
        self._health = health
        #: Ones, and reports, of the round and of the run.
        self._round, self._run = _NONE, _NONE

    @property
    def epsilon(self) -> float | None:
        """Of the bit, for proposals; None if it is not asked for."""
        return None if self._health is None else self._health.epsilon

    def on_run_start(self, rounds: int, layout: ModelLayout | None) -> None:
        """Begin a run: bits of another, of an app that was wrong by then, say nothing of this."""
        self._run = _NONE

    def before_ask(self, current: Round) -> None:
        """Begin a round."""
        self._round = _NONE

    def decoder(self, decode: Callable[[bytes], ReportT]) -> Callable[[bytes], ReportT]:
        """Return a decoder of whole reports, which counts the bits of those that are well-formed.

        Parameters
        ----------
        decode : callable
            Decodes what is before the bit.
        """

        def whole(payload: bytes) -> ReportT:
            report, bit = split_health(payload, asked=self._health is not None)
            found = decode(report)
            if bit is not None:
                self._round = self._round[0] + bit, self._round[1] + 1
                self._run = self._run[0] + bit, self._run[1] + 1
            return found

        return whole

    def metrics(self, current: Round) -> Metrics:
        """Return ``failing-share`` and ``failing-share-error`` of the round, if there is one."""
        if self._health is None or self._round == _NONE:
            return {}
        share, error = self._health.estimate(*self._round)
        return {"failing-share": share, "failing-share-error": error}

    def after_replies(self, current: Round, replies: ReplyFilter) -> None:
        """Stop the run if too many of its reports are surely neutral.

        Raises
        ------
        RunStopped
            If the share is surely above :attr:`Health.stop_above`, in the round or in all rounds
            so far.
        """
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
    """Return whether so many ones are no chance, if the share is what is allowed."""
    response, allowed = health.response, math.floor(health.stop_above * reports)
    if reports > _MOST_EXACT:
        excess = response.estimate(ones, reports) - health.stop_above * reports
        return excess > health.significance * response.standard_deviation(reports)
    if response.estimate(ones, reports) <= allowed:
        return False
    keep = response.keep_probability
    law = np.convolve(_binomial(allowed, keep), _binomial(reports - allowed, 1.0 - keep))
    return float(law[ones:].sum()) <= math.erfc(health.significance / math.sqrt(2.0)) / 2.0


def _binomial(count: int, chance: float) -> NDArray[np.float64]:
    """Return the chance of each number of ones, from 0 to ``count``."""
    if chance in (0.0, 1.0):  # of a bit that never flips, in doubles
        sure = np.zeros(count + 1)
        sure[count if chance else 0] = 1.0
        return sure
    ones = np.arange(count + 1)
    # Logarithms of the binomial coefficients, each from the one before.
    ways = np.cumsum(np.log([1.0, *((count + 1 - ones[1:]) / ones[1:])]))
    logs = ways + ones * math.log(chance) + (count - ones) * math.log1p(-chance)
    found: NDArray[np.float64] = np.exp(logs)
    return found
