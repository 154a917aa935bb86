"""The tests themselves: each takes a case, and raises where the extension fails it."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from flower_ldp.conformance.cases import Case, ConformanceError, Tried
from flower_ldp.errors import quoted
from flower_ldp.mechanisms.random import RandomSource

#: How often a test of the sampler may fail with a right one; the seed is fixed.
FAILURE = 1e-6
_SEED = 20_260_101
_ROUNDING = 1e-9


def law_sums_to_one(case: Case) -> None:
    """Add up the probabilities of all reports to one update: they must make 1."""
    for tried in case.settings():
        for update in (*tried.updates(), *tried.broken()):
            total = math.fsum(map(math.exp, tried.law(update)))
            if abs(total - 1) > _ROUNDING:
                raise ConformanceError(
                    f"{tried.where}: the law of {_shown(update)} sums to {total}"
                )


def epsilon_is_kept(case: Case) -> None:
    """Compare all updates, valid or not: no report tells two apart by more than is stated."""
    for tried in case.settings():
        every = [*tried.updates(), *tried.broken()]
        laws = np.array([tried.law(update) for update in every])
        if tried.delta == 0:
            _check_ratio(tried, every, laws)
        else:
            _check_excess(tried, every, np.exp(laws))


def _check_ratio(tried: Tried, every: Sequence[Any], laws: Any) -> None:
    for at, column in enumerate(laws.T):
        low, high = int(column.argmin()), int(column.argmax())
        if column[high] == -np.inf:
            continue  # no update is ever answered by it
        ratio = column[high] - column[low]
        if ratio > tried.epsilon + _ROUNDING:
            raise ConformanceError(
                f"{tried.where}: the report {quoted(tried.reports[at])} has a log-ratio of "
                f"{ratio:.6g} between {_shown(every[high])} and {_shown(every[low])}"
            )


def _check_excess(tried: Tried, every: Sequence[Any], masses: Any) -> None:
    factor = math.exp(tried.epsilon)
    for first, row in zip(every, masses, strict=True):
        excess = np.maximum(row - factor * masses, 0.0).sum(axis=1)
        at = int(excess.argmax())
        if excess[at] > tried.delta + _ROUNDING:
            raise ConformanceError(
                f"{tried.where}: delta is {excess[at]:.6g} between {_shown(first)} and "
                f"{_shown(every[at])}, {tried.delta:g} is stated"
            )


def sampler_follows_the_law(case: Case) -> None:
    """Draw reports: they must have the law that log_prob states."""
    tries = list(case.settings())
    level = FAILURE / sum(len(_some(tried)) * len(tried.reports) for tried in tries)
    for tried in tries:
        for update in _some(tried):
            rng = RandomSource.seeded(_SEED)
            drawn = Counter(tried.mechanism.randomize(update, rng) for _ in range(case.draws))
            for report, log in zip(tried.reports, tried.law(update), strict=True):
                seen = drawn.pop(report, 0)
                if _chance(seen, case.draws, math.exp(min(log, 0.0))) < level:
                    raise ConformanceError(
                        f"{tried.where}: {_shown(update)} gives {quoted(report)} {seen} times of "
                        f"{case.draws}, its probability is {math.exp(log):.6g}"
                    )
            if drawn:
                told = quoted(next(iter(drawn)))
                raise ConformanceError(f"{tried.where}: reports() does not name {told}")


def _some(tried: Tried) -> list[Any]:
    valid = tried.updates()
    return [valid[0], valid[-1], None]


def _chance(seen: int, draws: int, probability: float) -> float:
    """Return a bound on the chance of a count as far off as this one (Chernoff)."""
    share, far = seen / draws, 0.0
    for part, expected in ((share, probability), (1 - share, 1 - probability)):
        if part > 0:
            if expected <= 0:
                return 0.0
            far += part * math.log(part / expected)
    return min(1.0, 2 * math.exp(-draws * max(far, 0.0)))


def everything_is_answered(case: Case) -> None:
    """Ask about each update, valid or not: the answer must be one of reports()."""
    for tried in case.settings():
        known, rng = set(tried.reports), RandomSource.seeded(_SEED)
        for update in (*tried.updates(), *tried.broken()):
            try:
                report = tried.mechanism.randomize(_closed(update), rng)
            except Exception as error:
                name = type(error).__name__
                raise ConformanceError(
                    f"{tried.where}: {_shown(update)} is answered by {name}"
                ) from error
            if type(report) is not bytes or report not in known:
                raise ConformanceError(
                    f"{tried.where}: {_shown(update)} is answered by {quoted(report)}, which "
                    "reports() does not name"
                )


def reports_have_one_length(case: Case) -> None:
    """Look at all reports: they must be bytes of the length that is stated."""
    for tried in case.settings():
        length = tried.mechanism.report_bytes
        for report in tried.reports:
            if type(report) is not bytes or len(report) != length:
                raise ConformanceError(f"{tried.where}: {quoted(report)} is not {length} bytes")


def randomness_is_the_gates(case: Case) -> None:
    """Draw by one seed twice and by another: the source that is given must decide, alone."""
    for tried in case.settings():
        update = tried.updates()[-1]

        def drawn(seed: int, tried: Tried = tried, update: Any = update) -> list[bytes]:
            rng = RandomSource.seeded(seed)
            return [tried.mechanism.randomize(update, rng) for _ in range(256)]

        first = drawn(_SEED)
        if drawn(_SEED) != first:
            raise ConformanceError(f"{tried.where}: it has another source of randomness")
        if max(tried.law(update)) < math.log(0.9) and drawn(_SEED + 1) == first:
            raise ConformanceError(f"{tried.where}: it does not use the source that is given")


def nothing_else_is_touched(case: Case) -> None:
    """Draw once: neither global generators nor the update may change."""
    for tried in case.settings():
        for update in (tried.updates()[-1], None):
            written = None if update is None else update.tobytes()
            before = _globals()
            tried.mechanism.randomize(update, RandomSource.seeded(_SEED))
            if _globals() != before:
                raise ConformanceError(f"{tried.where}: a global generator was used or seeded")
            if update is not None and update.tobytes() != written:
                raise ConformanceError(f"{tried.where}: the update was written to")


def every_report_is_understood(case: Case) -> None:
    """Read each report as the server does: a finite update, and ValueError for what is none."""
    for tried in case.settings():
        for report in tried.reports:
            found = np.asarray(tried.mechanism.estimate(report))
            if found.shape != (tried.dimension,) or not np.isfinite(found).all():
                raise ConformanceError(f"{tried.where}: estimate({quoted(report)}) is no update")
        for wrong in (b"", tried.reports[0] + b"\0", tried.reports[0][:-1]):
            try:
                tried.mechanism.estimate(wrong)
            except ValueError:
                continue
            raise ConformanceError(f"{tried.where}: estimate({quoted(wrong)}) is no ValueError")


def _globals() -> str:
    # Looked at where they are, and never imported: nothing is drawn from them here.
    python, numpy = sys.modules.get("random"), sys.modules.get("numpy.random")
    own = None if python is None else python.getstate()
    kind, key, *rest = ("", np.zeros(0)) if numpy is None else numpy.get_state()
    return repr((own, kind, key.tobytes(), rest))


def _closed(update: Any) -> Any:
    """Return an update as the gate gives it: what is an array cannot be written to."""
    if isinstance(update, np.ndarray):
        update = update.copy()
        update.setflags(write=False)
    return update


def _shown(update: Any) -> str:
    return "None" if update is None else quoted(update)


#: Every test, by its name.
CHECKS: Mapping[str, Callable[[Case], None]] = MappingProxyType(
    {
        check.__name__: check
        for check in (
            law_sums_to_one,
            epsilon_is_kept,
            sampler_follows_the_law,
            everything_is_answered,
            reports_have_one_length,
            randomness_is_the_gates,
            nothing_else_is_touched,
            every_report_is_understood,
        )
    }
)
