"""An audit: draw from a sampler under two inputs, and bound its epsilon from below.

The first half of the draws chooses an event (:func:`best_event`), the second gives the bound
(:mod:`~flower_ldp.audit.bounds`), so the search costs no confidence. A claim below the bound is
refuted: if it were true, so high a bound would have a probability of at most 1 - confidence. **An
audit can refute a claim and never prove one**: the bound concerns one event under one pair of
inputs. A statistic maps a report to a score; candidate events are "score >= t", "<= t" and, for few
values, "== t", in both directions.

**Repeated noise.** Epsilons add up only if each release draws fresh noise. A generator with a
constant seed passes an audit of single reports, and two reports reveal the data. The check makes
three releases in a row, each from a fresh source: on (x, x', x) or on (x, x', x'). Only the third
input differs, so with fresh noise the probability of any event changes by a factor of at most
e^epsilon (plus delta), the claim for **one** release. The event is "the first two differ, and the
third equals the first" (or the second). With repeated noise one of the two events is impossible
under each input, and any epsilon is refuted. The auditor draws the pair anew for each triple, by a
public coin, since a constant seed may give equal reports on one pair.

**A case** is data: a sampler, its claim, the worst inputs and their statistics. :func:`of_updates`
builds it from a mechanism's own worst inputs
(:meth:`~flower_ldp.mechanisms.base.UpdateMechanism.audit_pairs`). For another sampler of the same
mechanism, ``dataclasses.replace`` the ``draw`` (and ``draw_many``).
"""

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flower_ldp.audit.bounds import epsilon_lower_bound, largest_bound
from flower_ldp.mechanisms.base import Contrast, UpdateMechanism
from flower_ldp.mechanisms.random import RandomSource
from flower_ldp.parameter_bounds import check_in
from flower_ldp.privacy import PrivacyEvent, PrivacySpent, compose

Scores = NDArray[np.float64]

_RELATIONS = {">=": np.greater_equal, "<=": np.less_equal, "==": np.equal}
# With more distinct scores than this, thresholds are taken at a selection of ranks.
_FEW = 512
_RANKS = 400


@dataclass(frozen=True)
class Event:
    """A set of scores, and the input under which it is likelier.

    Parameters
    ----------
    relation : str
        ``">="``, ``"<="`` or ``"=="``.
    threshold : float
        The score's threshold.
    likelier : int
        0 for the first input, 1 for the second.
    """

    relation: str
    threshold: float
    likelier: int

    def count(self, scores: Scores) -> int:
        """Return the number of scores in the event."""
        return int(np.count_nonzero(_RELATIONS[self.relation](scores, self.threshold)))

    def describe(self, label: str) -> str:
        """Return the event in words; ``label`` names the score."""
        side = ("first", "second")[self.likelier]
        return f"{label} {self.relation} {self.threshold:g}, likelier under the {side} input"


def best_event(first: Scores, second: Scores, *, confidence: float, delta: float = 0.0) -> Event:
    """Return the event with the largest bound on these scores.

    Parameters
    ----------
    first, second : ndarray of float64, equal lengths
        Scores of draws under the two inputs, not to be used for the bound.
    confidence, delta : float
        Of the bound.
    """
    draws = len(first)
    sides = np.sort(first), np.sort(second)
    distinct = np.unique(np.concatenate(sides))
    few = len(distinct) <= _FEW
    thresholds = distinct if few else _at_ranks(np.sort(np.concatenate(sides)))
    counts = {
        ">=": [draws - np.searchsorted(side, thresholds, side="left") for side in sides],
        "<=": [np.searchsorted(side, thresholds, side="right") for side in sides],
    }
    if few:
        at_least, at_most = counts[">="], counts["<="]
        counts["=="] = [a + b - draws for a, b in zip(at_least, at_most, strict=True)]
    best, best_bound = Event(">=", float(thresholds[0]), 0), -np.inf
    for relation, (one, other) in counts.items():
        for likelier, pair in enumerate(((one, other), (other, one))):
            bounds = epsilon_lower_bound(*pair, draws, confidence=confidence, delta=delta)
            at = int(np.argmax(bounds))
            if bounds[at] > best_bound:
                best = Event(relation, float(thresholds[at]), likelier)
                best_bound = float(bounds[at])
    return best


def _at_ranks(scores: Scores) -> Scores:
    """Return scores at ranks that are dense at both ends, where rare events are."""
    ranks = np.unique(np.geomspace(1, len(scores), _RANKS).astype(np.int64)) - 1
    return np.unique(np.concatenate([scores[ranks], scores[::-1][ranks]]))


#: ``draw(value, rng)`` returns one report, or ``draw(value, count, rng)`` many (``batched``).
Draw = Callable[..., Any]
#: Turns a sequence of reports into as many scores.
Statistic = Callable[[Sequence[Any]], Any]
Sources = Callable[[], RandomSource]
#: Is told how many draws were made since the last time.
Progress = Callable[[int], None]

FEWEST_DRAWS = 100
# Reports in memory at a time: one by one they are objects, in a batch rows of an array.
_OBJECTS, _ROWS = 2_000, 50_000


@dataclass(frozen=True)
class AuditResult:
    """The result of one check of one claim.

    Parameters
    ----------
    check : str
        What was tried.
    claimed : float
        Claimed epsilon per release, at ``delta``.
    lower_bound : float
        The true epsilon (at ``delta``) is at least this, with probability ``confidence``.
    confidence : float
        Of this bound.
    draws : int
        Under each input; half of them chose the event.
    event : str
        The event of the bound.
    reach : float
        Largest bound of so many draws; they cannot refute a claim above it.
    delta : float
        Of the claim.
    """

    check: str
    claimed: float
    lower_bound: float
    confidence: float
    draws: int
    event: str
    reach: float
    delta: float = 0.0

    @property
    def refuted(self) -> bool:
        """Whether the bound exceeds the claim. False proves nothing."""
        return self.lower_bound > self.claimed

    @property
    def verdict(self) -> str:
        """The result in a few words."""
        if self.refuted:
            return "REFUTED"
        if self.reach <= self.claimed:
            return "not refuted (beyond reach of so many draws)"
        return "not refuted"


def audit(
    draw: Draw,
    pair: tuple[Any, Any],
    statistic: Statistic,
    claimed_epsilon: float,
    draws: int,
    *,
    delta: float = 0.0,
    confidence: float = 0.999,
    batched: bool = False,
    sources: Sources = RandomSource.from_os,
    check: str = "one release",
    label: str = "statistic",
    progress: Progress | None = None,
) -> AuditResult:
    """Test a claim of epsilon on one pair of inputs.

    Parameters
    ----------
    draw : callable
        The sampler: ``draw(value, rng)`` returns a report of ``value``.
    pair : tuple of two values
        Neighbouring inputs, as far apart as the mechanism's law allows.
    statistic : callable
        Maps a sequence of reports to one number each; best an increasing function of their
        log-ratio.
    claimed_epsilon : float
        Per release; positive.
    draws : int
        Under each input, at least 100. Half choose the event, half give the bound.
    delta : float
        Of the claim, in [0, 1).
    confidence : float
        Of the bound, in (0, 1).
    batched : bool
        ``draw`` takes ``(value, count, rng)`` and returns ``count`` reports.
    sources : callable
        Makes the source of randomness, once an audit.
    check, label : str
        Names of the check and of the statistic, for the result.
    progress : callable, optional
        Is called with numbers of draws; their sum is 2 ``draws``.

    Raises
    ------
    ValueError
        If an argument is outside its interval, or a score is missing or NaN.
    ModuleNotFoundError
        If scipy is not installed.
    """
    check_in("(0, 1)", "confidence", confidence)
    check_in("(0, inf)", "claimed_epsilon", claimed_epsilon)
    check_in(f"[{FEWEST_DRAWS}, inf)", "draws", draws)
    half = draws // 2
    reach = largest_bound(draws - half, confidence=confidence, delta=delta)
    rng = sources()

    def scores(value: Any, count: int) -> Scores:
        size, found = _ROWS if batched else _OBJECTS, []
        for start in range(0, count, size):  # pieces that fit into memory
            part = min(size, count - start)
            reports = draw(value, part, rng) if batched else [draw(value, rng) for _ in range(part)]
            found.append(_scored(statistic, reports, progress))
        return np.concatenate(found)

    choosing = scores(pair[0], half), scores(pair[1], half)
    event = best_event(*choosing, confidence=confidence, delta=delta)
    counts = [event.count(scores(value, draws - half)) for value in pair]
    often, seldom = counts if event.likelier == 0 else counts[::-1]
    found = epsilon_lower_bound(often, seldom, draws - half, confidence=confidence, delta=delta)
    bound, told = max(0.0, float(found)), event.describe(label)
    return AuditResult(check, claimed_epsilon, bound, confidence, draws, told, reach, delta)


def _scored(statistic: Statistic, reports: Sequence[Any], progress: Progress | None) -> Scores:
    scores = np.asarray(statistic(reports), dtype=np.float64)
    if scores.shape != (len(reports),):
        raise ValueError(
            f"statistic must return {len(reports)} numbers for as many reports, "
            f"got shape {scores.shape}"
        )
    if np.isnan(scores).any():
        raise ValueError("statistic must not return NaN")
    if progress is not None:
        progress(len(reports))
    return scores


#: Share of noise that gives different reports on a pair, unless a mechanism knows better.
DIFFERING = 0.2
# Triples whose reports differ, were noise repeated: fewer leave their share too uncertain.
_FEWEST_DIFFERING = 200.0


def report_key(report: Any) -> Hashable:
    """Return a value that is equal for equal reports: numbers as they are, arrays as bytes."""
    if isinstance(report, np.ndarray):
        return report.shape, report.tobytes()
    try:
        hash(report)
    except TypeError as error:
        name = type(report).__name__
        raise TypeError(f"a key is needed to compare reports of type {name}") from error
    return report  # type: ignore[no-any-return]


def reuse_draws(
    claimed_epsilon: float, draws: int, *, confidence: float, differing: float = DIFFERING
) -> int:
    """Return how many triples suffice to refute repeated noise, at most ``draws``.

    ``differing`` is the share of noise that gives different reports on a pair.
    """
    zero = -math.log((1.0 - confidence) / 2.0)
    # Half of the draws choose the event; a quarter above the claim is the room.
    wanted = 2.0 * zero * math.exp(min(claimed_epsilon, 50.0) + 0.25) / differing
    return max(FEWEST_DRAWS, min(draws, math.ceil(max(wanted, _FEWEST_DIFFERING / differing))))


def audit_reuse(
    draw: Draw,
    pairs: Sequence[tuple[Any, Any]],
    claimed_epsilon: float,
    draws: int,
    *,
    delta: float = 0.0,
    confidence: float = 0.999,
    key: Callable[[Any], Hashable] = report_key,
    sources: Sources = RandomSource.from_os,
    progress: Progress | None = None,
) -> AuditResult:
    """Test that consecutive releases do not repeat their noise.

    Parameters
    ----------
    draw : callable
        The sampler: ``draw(value, rng)`` returns a report of ``value``.
    pairs : sequence of tuples of two values
        Several neighbouring inputs: a constant seed may hide behind one.
    claimed_epsilon, delta : float
        Of one release.
    draws : int
        Triples of releases under each input.
    confidence : float
        Of the bound.
    key : callable
        Maps equal reports to equal values.
    sources : callable
        Makes the source of randomness, once a release and once for the auditor's coins.
    progress : callable, optional
        Is called with numbers of triples.
    """
    if not pairs:
        raise ValueError("pairs must hold at least one pair")

    def release(value: Any) -> Hashable:
        return key(draw(value, sources()))

    def triple(last: int, coins: RandomSource) -> int:
        pair = pairs[coins.below(len(pairs))]
        first, second, third = release(pair[0]), release(pair[1]), release(pair[last])
        if first == second:
            return 0
        return int(third == first) - int(third == second)

    return audit(
        triple,
        (0, 1),
        np.asarray,
        claimed_epsilon,
        draws,
        delta=delta,
        confidence=confidence,
        sources=sources,
        check="three releases, fresh source each",
        label="third report equals first (1) or second (-1), which differ",
        progress=progress,
    )


# Pairs of updates that the check for repeated noise chooses from.
_PAIRS = 16


@dataclass(frozen=True)
class Case:
    """A sampler, its claim, and the attempts to refute it.

    Parameters
    ----------
    mechanism : str
        Name and parameters, for the table.
    epsilon, delta : float
        The claim, per release.
    draw : callable
        One report: ``draw(value, rng)``.
    contrasts : tuple of Contrast
        At least one.
    reuse_pairs : sequence of pairs
        Inputs for the check on repeated noise.
    draws : int
        Default number under each input: some seconds of work.
    draw_many : callable, optional
        ``draw_many(value, count, rng)`` returns as many reports, for the contrasts.
    key : callable
        Maps equal reports to equal values.
    differing : float
        Least share of the noise that gives different reports on a pair of ``reuse_pairs``.
    """

    mechanism: str
    epsilon: float
    draw: Draw
    contrasts: tuple[Contrast, ...]
    reuse_pairs: Sequence[tuple[Any, Any]]
    draws: int
    delta: float = 0.0
    draw_many: Draw | None = None
    key: Callable[[Any], Hashable] = report_key
    differing: float = DIFFERING

    @property
    def checks(self) -> int:
        """Number of bounds that an audit of this case computes."""
        return len(self.contrasts) + 1


def audit_case(
    case: Case,
    draws: int | None = None,
    *,
    confidence: float = 0.999,
    sources: Sources = RandomSource.from_os,
    progress: Callable[[str, int], Progress] | None = None,
) -> tuple[AuditResult, ...]:
    """Run all checks of one case.

    Parameters
    ----------
    case : Case
        The case.
    draws : int, optional
        Under each input of each contrast; by default the case's number. An upper bound for the
        check of repeated noise.
    confidence : float
        With which all bounds of the case hold together.
    sources : callable
        Makes sources of randomness.
    progress : callable, optional
        Called with each check's name and number of draws; returns its counter.

    Returns
    -------
    tuple of AuditResult
        One for each contrast, then the one for repeated noise.
    """
    each = 1.0 - (1.0 - confidence) / case.checks
    asked = case.draws if draws is None else draws
    triples = reuse_draws(case.epsilon, asked, confidence=each, differing=case.differing)
    claimed: dict[str, Any] = {"delta": case.delta, "confidence": each, "sources": sources}

    def counter(check: str, count: int) -> Progress | None:
        return progress(check, 2 * count) if progress else None

    results = [
        audit(
            case.draw_many or case.draw,
            contrast.pair,
            contrast.statistic,
            case.epsilon,
            asked,
            batched=case.draw_many is not None,
            check=contrast.check,
            label=contrast.label,
            progress=counter(contrast.check, asked),
            **claimed,
        )
        for contrast in case.contrasts
    ]
    repeated = audit_reuse(
        case.draw,
        case.reuse_pairs,
        case.epsilon,
        triples,
        key=case.key,
        progress=counter("repeated noise", triples),
        **claimed,
    )
    return (*results, repeated)


def claim(events: Iterable[PrivacyEvent]) -> PrivacySpent:
    """Return the claim of one release: the sum over its events, which concern one unit."""
    return next(iter(compose(events).values()))


def of_updates(mechanism: UpdateMechanism, dimension: int, draws: int = 20_000) -> Case:
    """Return the case of any mechanism for updates.

    Parameters
    ----------
    mechanism : UpdateMechanism
        With all parameters that a proposal states (``sized``).
    dimension : int
        d, entries of an update.
    draws : int
        Under each input.
    """
    contrasts = mechanism.audit_pairs(dimension)
    claimed = claim(mechanism.events())
    first, second = contrasts[0].pair
    # Rotated, so that no constant seed hides behind one pair.
    shifts = [i * dimension // _PAIRS for i in range(_PAIRS)]

    def draw(update: Any, rng: RandomSource) -> Any:
        return mechanism.randomize(update, rng, dimension)

    return Case(
        titled(mechanism.name, mechanism, d=dimension),
        claimed.epsilon,
        draw,
        contrasts,
        [(np.roll(first, shift), np.roll(second, shift)) for shift in shifts],
        draws,
        delta=claimed.delta,
        key=lambda report: mechanism.encode(report, dimension),
    )


def titled(name: str, mechanism: Any, **more: int) -> str:
    """Return a name with the claim and the other parameters."""
    given = [(one.name, getattr(mechanism, one.name), one.default) for one in fields(mechanism)]
    chosen = {key: value for key, value, default in given if value is not default}
    numbers = {"epsilon": claim(mechanism.events()).epsilon, **chosen, **more}
    told = [f"{key} {one:g}" for key, one in numbers.items() if isinstance(one, (int, float))]
    return f"{name} ({', '.join(told)})"
