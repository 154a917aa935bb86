"""The plugin: ``pytest -p flower_ldp.conformance.plugin --ldp-mechanism MODULE:OBJECT``.

With ``--ldp-release`` it tests a :class:`~flower_ldp.conformance.releases.ReleaseCase` instead.

It is no entry point, so pytest loads it only where it is named. It adds one test for each of the
checks to those that pytest finds itself. Each check raises where the extension fails it. A case is
what an extension is tried on: epsilons, small numbers of entries, and updates of all kinds.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pkgutil import resolve_name
from typing import Any

import numpy as np
import pytest

from flower_ldp.conformance import FAILURE, SEED, ConformanceError
from flower_ldp.conformance.releases import RELEASE_CHECKS, ReleaseCase
from flower_ldp.errors import quoted
from flower_ldp.extensions.contract import Extension, ExtensionMechanism
from flower_ldp.mechanisms.random import RandomSource

#: Reports that are counted at most.
MOST_REPORTS = 20_000
_TINY = float(np.float32(1e-45))
_HUGE = float(np.finfo(np.float32).max)
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Case:
    """An extension, and what it is tried at.

    Parameters
    ----------
    extension : Extension
        Under test.
    epsilons : sequence of float
        Each must be kept.
    dimensions : sequence of int
        Numbers of entries, so few that all reports can be counted.
    delta : float
        Stated beside each epsilon.
    options : mapping of str to float
        What is not left at its default.
    draws : int
        Of the sampler, for each update that it is tried on.
    """

    extension: Extension
    epsilons: Sequence[float] = (0.25, 1.0, 4.0)
    dimensions: Sequence[int] = (1, 2, 3)
    delta: float = 0.0
    options: Mapping[str, float] = field(default_factory=dict)
    draws: int = 2_000

    @property
    def name(self) -> str:
        """The extension's."""
        return self.extension.name

    def settings(self) -> Iterator[Tried]:
        """Yield the mechanism at each epsilon and number of entries."""
        for epsilon, dimension in itertools.product(self.epsilons, self.dimensions):
            chosen = self.extension.chosen(epsilon, self.delta, self.options)
            yield Tried(chosen.mechanism(dimension), self, epsilon, dimension)


@dataclass(frozen=True)
class Tried:
    """A mechanism at one epsilon and one number of entries."""

    mechanism: ExtensionMechanism
    case: Case
    epsilon: float
    dimension: int

    def error(self, what: str) -> ConformanceError:
        """Return the error that something is wrong at this setting."""
        return ConformanceError(f"epsilon {self.epsilon:g}, {self.dimension} entries: {what}")

    @cached_property
    def reports(self) -> tuple[bytes, ...]:
        """All reports, each once."""
        found = tuple(itertools.islice(self.mechanism.reports(), MOST_REPORTS + 1))
        if not found or len(found) > MOST_REPORTS or len(set(found)) != len(found):
            raise self.error(
                f"reports() must name each report once, {MOST_REPORTS} at most; "
                "state fewer entries by --ldp-dimensions"
            )
        return found

    def law(self, update: Any) -> tuple[float, ...]:
        """Return the logarithm of each report's probability."""
        try:
            found = tuple(float(self.mechanism.log_prob(one, update)) for one in self.reports)
        except Exception as error:
            told = f"log_prob has no law for {quoted(update)}: {type(error).__name__}"
            raise self.error(told) from error
        if any(math.isnan(one) or one > 1e-9 for one in found):
            raise self.error("log_prob is no logarithm of a probability")
        return found

    def updates(self) -> list[Any]:
        """Return valid updates, as different as updates can be."""
        values = [-_HUGE, -1.0, -_TINY, -0.0, 0.0, _TINY, 1.0, _HUGE]
        if self.dimension > 2:
            values = [-_HUGE, 0.0, _TINY]
        if self.dimension > 4:
            ramp = np.linspace(-1.0, 1.0, self.dimension, dtype=np.float32)
            return [ramp, -ramp, 0 * ramp, _HUGE * ramp, _TINY + 0 * ramp]
        every = itertools.product(values, repeat=self.dimension)
        return [np.array(one, dtype=np.float32) for one in every]

    def every(self) -> list[Any]:
        """Return all updates that are tried: valid ones, None for the neutral law, and others."""
        size = self.dimension
        filled = [np.full(size, one, dtype=np.float32) for one in (np.nan, np.inf, -np.inf)]
        half = np.zeros(size, dtype=np.float32)
        half[-1] = np.nan
        return [
            *self.updates(),
            None,
            *filled,
            half,
            np.zeros(0, dtype=np.float32),
            np.ones(size + 1, dtype=np.float32),
            np.ones((size, 1, 1), dtype=np.float32),
            np.full(size, 1e300),
            np.full(size, 1j),
            np.array([object()] * size, dtype=object),
            np.array(["text"] * size),
            "text",
            [[1.0], [1.0, 2.0]],
        ]


#: Every test, by its name.
CHECKS: dict[str, Callable[[Tried], None]] = {}


def _check(of: Callable[[Tried], None]) -> Callable[[Tried], None]:
    CHECKS[of.__name__] = of
    return of


@_check
def law_sums_to_one(tried: Tried) -> None:
    """Add up the probabilities of all reports to one update: they must make 1."""
    for update in tried.every():
        total = math.fsum(map(math.exp, tried.law(update)))
        if abs(total - 1) > _ROUNDING:
            raise tried.error(f"the law of {quoted(update)} sums to {total}")


@_check
def epsilon_is_kept(tried: Tried) -> None:
    """Compare all updates, valid or not: no report tells two apart by more than is stated."""
    every = tried.every()
    laws = [tried.law(update) for update in every]
    if tried.case.delta == 0:
        _check_ratio(tried, every, laws)
    else:
        _check_excess(tried, every, np.exp(laws))


def _check_ratio(tried: Tried, every: Sequence[Any], laws: Sequence[Sequence[float]]) -> None:
    for report, column in zip(tried.reports, zip(*laws, strict=True), strict=True):
        high, low = max(column), min(column)
        if high - low > tried.epsilon + _ROUNDING:  # NaN if no update is ever answered by it
            highest, lowest = every[column.index(high)], every[column.index(low)]
            raise tried.error(
                f"the report {quoted(report)} has a log-ratio of {high - low:.6g} between "
                f"{quoted(highest)} and {quoted(lowest)}"
            )


def _check_excess(tried: Tried, every: Sequence[Any], masses: Any) -> None:
    factor = math.exp(tried.epsilon)
    for first, row in zip(every, masses, strict=True):
        excess = np.maximum(row - factor * masses, 0.0).sum(axis=1)
        at = int(excess.argmax())
        if excess[at] > tried.case.delta + _ROUNDING:
            raise tried.error(
                f"delta is {excess[at]:.6g} between {quoted(first)} and "
                f"{quoted(every[at])}, {tried.case.delta:g} is stated"
            )


@_check
def sampler_follows_the_law(tried: Tried) -> None:
    """Draw reports: they must have the law that log_prob states."""
    case, valid = tried.case, tried.updates()
    some = [valid[0], valid[-1], None]
    settings = len(case.epsilons) * len(case.dimensions)
    level = FAILURE / (settings * len(some) * len(tried.reports))
    for update in some:
        rng = RandomSource.seeded(SEED)
        drawn = Counter(tried.mechanism.randomize(update, rng) for _ in range(case.draws))
        for report, log in zip(tried.reports, tried.law(update), strict=True):
            seen = drawn.pop(report, 0)
            if _chance(seen, case.draws, math.exp(min(log, 0.0))) < level:
                raise tried.error(
                    f"{quoted(update)} gives {quoted(report)} {seen} times of "
                    f"{case.draws}, its probability is {math.exp(log):.6g}"
                )
        if drawn:
            raise tried.error(f"reports() does not name {quoted(next(iter(drawn)))}")


def _chance(seen: int, draws: int, probability: float) -> float:
    """Return a bound on the chance of a count as far off as this one (Chernoff)."""
    share, far = seen / draws, 0.0
    for part, expected in ((share, probability), (1 - share, 1 - probability)):
        if part > 0:
            if expected <= 0:
                return 0.0
            far += part * math.log(part / expected)
    return min(1.0, 2 * math.exp(-draws * max(far, 0.0)))


@_check
def everything_is_answered(tried: Tried) -> None:
    """Ask about each update, valid or not: the answer must be one of reports()."""
    known, rng = set(tried.reports), RandomSource.seeded(SEED)
    for update in tried.every():
        given = update
        if isinstance(update, np.ndarray):  # as the gate gives it: it cannot be written to
            given = update.copy()
            given.setflags(write=False)
        try:
            report = tried.mechanism.randomize(given, rng)
        except Exception as error:
            name = type(error).__name__
            raise tried.error(f"{quoted(update)} is answered by {name}") from error
        if type(report) is not bytes or report not in known:
            raise tried.error(
                f"{quoted(update)} is answered by {quoted(report)}, which reports() does not name"
            )


@_check
def reports_have_one_length(tried: Tried) -> None:
    """Look at all reports: they must be bytes of the length that is stated."""
    length = tried.mechanism.report_bytes
    for report in tried.reports:
        if type(report) is not bytes or len(report) != length:
            raise tried.error(f"{quoted(report)} is not {length} bytes")


@_check
def randomness_is_the_gates(tried: Tried) -> None:
    """Draw by one seed twice and by another: the source that is given must decide, alone."""
    update = tried.updates()[-1]

    def drawn(seed: int) -> list[bytes]:
        rng = RandomSource.seeded(seed)
        return [tried.mechanism.randomize(update, rng) for _ in range(256)]

    first = drawn(SEED)
    if drawn(SEED) != first:
        raise tried.error("it has another source of randomness")
    if max(tried.law(update)) < math.log(0.9) and drawn(SEED + 1) == first:
        raise tried.error("it does not use the source that is given")


@_check
def nothing_else_is_touched(tried: Tried) -> None:
    """Draw once: neither global generators nor the update may change."""
    for update in (tried.updates()[-1], None):
        written = None if update is None else update.tobytes()
        before = _globals()
        tried.mechanism.randomize(update, RandomSource.seeded(SEED))
        if _globals() != before:
            raise tried.error("a global generator was used or seeded")
        if update is not None and update.tobytes() != written:
            raise tried.error("the update was written to")


@_check
def every_report_is_understood(tried: Tried) -> None:
    """Read each report as the server does: a finite update, and ValueError for what is none."""
    for report in tried.reports:
        found = np.asarray(tried.mechanism.estimate(report))
        if found.shape != (tried.dimension,) or not np.isfinite(found).all():
            raise tried.error(f"estimate({quoted(report)}) is no update")
    for wrong in (b"", tried.reports[0] + b"\0", tried.reports[0][:-1]):
        try:
            tried.mechanism.estimate(wrong)
        except ValueError:
            continue
        raise tried.error(f"estimate({quoted(wrong)}) is no ValueError")


def _globals() -> str:
    # Looked at where they are, and never imported: nothing is drawn from them here.
    python, numpy = sys.modules.get("random"), sys.modules.get("numpy.random")
    own = None if python is None else python.getstate()
    kind, key, *rest = ("", np.zeros(0)) if numpy is None else numpy.get_state()
    return repr((own, kind, key.tobytes(), rest))


#: Options, also of a pytest.ini, that name what is tested, and its type.
_UNDER_TEST: dict[str, type[Extension] | type[ReleaseCase]] = {
    "ldp_mechanism": Extension,
    "ldp_release": ReleaseCase,
}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("flower-ldp", "a mechanism or a release of one's own")
    for name, kind in _UNDER_TEST.items():
        told = f"The {kind.__name__} under test, as MODULE:OBJECT."
        group.addoption(f"--{name.replace('_', '-')}", metavar="NAME", help=told)
        parser.addini(name, told)
    for name, default, told in (
        ("--ldp-epsilons", "0.25,1,4", "Epsilons"),
        ("--ldp-dimensions", "1,2,3", "Numbers of entries"),
    ):
        group.addoption(name, default=default, help=f"{told} to try (default: {default}).")
    group.addoption("--ldp-delta", default=0.0, type=float, help="The delta to state (default: 0).")
    group.addoption(
        "--ldp-option",
        action="append",
        default=[],
        metavar="NAME=NUMBER",
        help="An option of the extension that is not left at its default.",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(
    session: pytest.Session, config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Add the checks, before others choose among the tests."""
    case = _case(config)
    checks = RELEASE_CHECKS if isinstance(case, ReleaseCase) else CHECKS
    for name, check in checks.items():
        nodeid = f"{case.name}::{name}"
        item: CheckItem = CheckItem.from_parent(session, name=name, nodeid=nodeid)
        item.check, item.case = check, case
        items.append(item)


class CheckItem(pytest.Item):
    """One check of what is under test."""

    check: Callable[[Any], None]
    case: Case | ReleaseCase

    def runtest(self) -> None:
        """Run the check at all settings of the case."""
        for tried in self.case.settings():
            self.check(tried)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """Return what is wrong: of a failed check its sentence alone."""
        if isinstance(excinfo.value, ConformanceError):
            return f"{(self.check.__doc__ or '').strip()}\n{excinfo.value}"
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Any, int | None, str]:
        """Return where the check is, for pytest."""
        return self.path, None, self.nodeid


def _case(config: pytest.Config) -> Case | ReleaseCase:
    given = {kind: config.getoption(one) or config.getini(one) for one, kind in _UNDER_TEST.items()}
    named = [(kind, name) for kind, name in given.items() if name]
    if len(named) != 1:
        told = "name it by --ldp-mechanism MODULE:OBJECT or by --ldp-release MODULE:OBJECT"
        raise pytest.UsageError(f"flower_ldp.conformance: {told}")
    ((kind, name),) = named
    try:
        found = resolve_name(name)
        if not isinstance(found, kind):
            raise ValueError(f"it is no {kind.__name__}")
        if isinstance(found, ReleaseCase):
            return found
        options = (one.partition("=") for one in config.getoption("--ldp-option"))
        return Case(
            found,
            tuple(map(float, config.getoption("--ldp-epsilons").split(","))),
            tuple(map(int, config.getoption("--ldp-dimensions").split(","))),
            config.getoption("--ldp-delta"),
            {option: float(value) for option, _, value in options},
        )
    except (ImportError, AttributeError, ValueError) as error:
        raise pytest.UsageError(f"flower_ldp.conformance: {name}: {error}") from error
