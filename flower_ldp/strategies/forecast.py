"""Forecast of a run: cost per client, expected learning, a test for noise, and a part to train.

**Test for noise**, by post-processing, of the squared length of the reports' sum. It is done
**once**, after a quarter of the reports and when a good run would show four standard deviations. It
warns of a signal below two, or of one that even with two more would be hopeless.
"""

from __future__ import annotations

import logging
import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from flower_ldp.advice import UtilityForecast
from flower_ldp.errors import quoted
from flower_ldp.mechanisms.base import GOOD_COSINE, POOR_COSINE, Verdict, signal_of
from flower_ldp.privacy import Unit, compose, meaning
from flower_ldp.strategies.rounds import RoundCallback, TrainingRound, Vector
from flower_ldp.wire.layout import ArraySpec, ModelLayout, perhaps_statistics, running_statistics

if TYPE_CHECKING:
    from flower_ldp.strategies.training import TrainingStrategy

_log = logging.getLogger("flwr")
#: Share of a run's reports after which its steps are looked at, at the earliest.
LOOKED_AT = 0.25
#: A signal below so many standard deviations is none.
_FEWEST = 2.0
#: So many a good run must show, or nothing is said.
_SHOWN = 4.0
_Layer = tuple[ArraySpec, ...]
#: Of more layers the names are not looked for.
_MOST_LAYERS = 4


def rounds_left(left: Sequence[int], each: int, rounds: int) -> int:
    """Return how many rounds of ``each`` clients are possible."""
    most = range(1, min(rounds, sum(left) // each) + 1)
    # What is there for r rounds grows ever slower with r: once too little, always too little.
    return bisect_left(most, True, key=lambda r: r * each > sum(min(one, r) for one in left))


class Forecast(RoundCallback[TrainingRound]):
    """Logs the outlook of a run, and watches its signal."""

    def __init__(self, strategy: TrainingStrategy[Any]) -> None:
        self._strategy = strategy
        self._rounds: int | None = None
        self._before = self._planned = 0
        self._outlook: UtilityForecast | None = None
        self._watch: SignalMonitor | None = None
        #: That reports are about: of weights or of the subspace; None if no run has begun.
        self.entries: int | None = None

    def on_run_start(self, rounds: int, layout: ModelLayout | None) -> None:
        """Forget an earlier run."""
        pool = self._strategy.pool
        before = {} if pool is None else pool.asked()
        self._rounds, self._before = rounds, max(before.values(), default=0)
        self.entries = None if layout is None else layout.entries
        self._planned, self._outlook, self._watch = 0, None, None

    def rounds_from(self, server_round: int) -> int:
        """Return how many rounds are left, this one included; RuntimeError without a run."""
        if self._rounds is None:
            raise RuntimeError(
                "how many clients a round asks follows from the run's rounds: run them by the "
                "strategy's start, or name fraction_train. Nobody was asked"
            )
        return max(self._rounds - server_round + 1, 1)

    def before_ask(self, current: TrainingRound) -> None:
        """Log the outlook once, and let the optimizer plan."""
        sample, left = current.sample, current.sample.answers_left()
        if self._outlook is None:
            self._begin(current, left)
        optimizer = self._strategy.server_optimizer
        if optimizer is None:
            return
        optimizer.check()
        # More rounds may be planned, as clients came: no more than all answers that are left make,
        # however they are spread.
        rounds, over = self._rounds or 0, current.server_round - 1
        if left is not None and self._planned < min(rounds, over + sum(left) // sample.size):
            self._planned = over + rounds_left(left, sample.size, max(rounds - over, 0))
            optimizer.extend_run(self._planned)

    def after_step(self, current: TrainingRound, total: Vector, reports: int) -> None:
        """Add the round to the test for noise."""
        if self._watch is not None:
            self._watch.add(total, reports)

    def _begin(self, current: TrainingRound, left: Sequence[int] | None) -> None:
        sample, layout, plan = current.sample, current.layout, self._strategy.plan()
        if plan is None or not self._rounds or self.entries is None:
            return
        rounds, clients = self._rounds, sample.present
        if left is not None:
            rounds, clients = max(rounds_left(left, sample.size, rounds), 1), len(left)
        outlook = self._outlook = UtilityForecast(plan, self.entries, clients, rounds, sample.size)
        self._watch = SignalMonitor(outlook)
        _log.log(
            logging.INFO if outlook.verdict is Verdict.GOOD else logging.WARNING,
            f"outlook: {outlook.judgement()} Of clients that agree, the steps of {rounds:,} rounds "
            f"of {sample.size:,} clients have the expected cosine {outlook.run_cosine:.3f} with "
            f"their direction, and a round's step {outlook.round_cosine:.3f}.",
        )
        log_trainable_hint(layout, outlook)
        if left is not None and self._strategy.spreads:
            log_too_few(outlook, self._rounds)
        elif left is not None and not self._strategy.pool_is_shared:
            log_spread(outlook, self._rounds, sample.present, sum(left))
        if self._strategy.server_optimizer is not None:
            weights = [current.model[spec.name] for spec in layout.updated]
            self._strategy.server_optimizer.on_run_start(rounds, weights)

    @property
    def _answers(self) -> int | None:
        pool = self._strategy.pool
        return None if pool is None else pool.answers_per_client

    def total(self) -> str:
        """Return a client's total cost and its meaning."""
        events = self._strategy.proposal(self.entries).events()
        most, times = self._answers, self._answers
        if self._rounds is not None:
            rounds = self._before + self._rounds
            times = rounds if most is None else min(most, rounds)
        if times is None:
            return f"at most {compose(events)[Unit.CLIENT]} for each round in which it is asked"
        if times == 0:
            return "nothing, in no round"
        total = compose(replace(event, count=event.count * times) for event in events)[Unit.CLIENT]
        asked = "once" if times == 1 else f"{times:,} times"
        earlier = ", in earlier runs included" if self._before else ""
        return f"at most {total}, asked {asked}{earlier}. {meaning(total)}"

    def lines(self) -> Iterator[str]:
        """Yield what the run does and can learn."""
        answers, plan, outlook = self._answers, self._strategy.plan(), self._outlook
        often = "1 in every round that it is sampled for" if answers is None else f"{answers:,}"
        yield f"Answers of a client: {often}"
        yield f"Step rule: {self._strategy.step_rule()}"
        if self.entries is not None:
            yield f"Entries of an update that answers are about: {self.entries:,}"
            if plan is not None and plan(self.entries).summary:
                yield f"Sizes: {plan(self.entries).summary}"
            length = self._strategy.proposal(self.entries).report_bytes(self.entries)
            yield f"Bytes up of an answer: {length:,}"
        if outlook is not None:
            yield f"Rounds: {outlook.rounds:,} of {outlook.clients_per_round:,} clients each"
            told = (fact for fact in outlook.facts() if fact.label)
            yield from (f"{fact.label[0].upper()}{fact.label[1:]}: {fact}" for fact in told)
        elif plan is not None:
            rounds = "" if self._rounds is None else f"{self._rounds:,}; "
            yield f"Rounds: {rounds}the first says how many clients each has, and the verdict"


class SignalMonitor:
    """Test for noise."""

    def __init__(self, outlook: UtilityForecast) -> None:
        self._outlook = outlook
        self._sum: Vector | None = np.zeros(outlook.weights)  # None once it was looked at
        self._reports = 0

    def add(self, summed: NDArray[Any], reports: int) -> None:
        """Add a round's sum; warn if all so far are noise."""
        if self._sum is None:
            return
        self._sum += summed
        self._reports += reports
        noise = self._outlook.plan(self._outlook.weights).null_distribution
        progress = min(self._reports / self._outlook.reports, 1.0)
        deviation = noise.deviation(self._reports)
        good = signal_of(GOOD_COSINE) * progress
        # One report has the length of any: noise and signal differ in products of two.
        if self._reports < 2 or progress < LOOKED_AT or good < _SHOWN * deviation:
            return
        signal = noise.signal(float(self._sum @ self._sum), self._reports)
        most = (signal + _FEWEST * deviation) / progress
        hopeless = most < signal_of(POOR_COSINE)
        if hopeless or signal < _FEWEST * deviation:
            advice = f"Good would be {self._outlook.remedies}."
            if self._outlook.verdict is Verdict.GOOD:
                advice = (
                    "Clients that agree would be enough: these have little in common, or their "
                    "training moves nothing. An evaluation on the server tells if it is enough."
                )
            _log.warning(
                f"the steps {'are noise' if hopeless else 'cannot be told from noise yet'}: the "
                f"sum of {self._reports:,} reports has {signal:+.4f} of the noise's square length "
                f"beyond it, {signal / deviation:+.1f} standard deviations, where a good run would "
                f"have {good:.4f}. {advice} {self._outlook.route}"
            )
        self._sum = None


def log_too_few(outlook: UtilityForecast, rounds: int) -> None:
    """Log if the answers are too few for all rounds."""
    if outlook.rounds < rounds:
        _log.warning(
            f"the answers of {outlook.clients:,} clients are enough for {outlook.rounds:,} of "
            f"{rounds:,} rounds of {outlook.clients_per_round:,} clients: the other rounds ask "
            f"nobody. Take num_rounds={outlook.rounds}, more clients, or a larger "
            "answers_per_client, at so many times the cost"
        )


def log_spread(outlook: UtilityForecast, rounds: int, nodes: int, answers: int) -> None:
    """Log if answers and rounds do not match."""
    each = outlook.clients_per_round
    enough = math.ceil(100 * answers / (rounds * nodes) - 1e-9) / 100
    if outlook.reports + each <= answers and outlook.rounds == rounds:
        ways = f"{-(-answers // each):,} rounds"
        ways += f", or fraction_train={enough:g}," if enough <= 1.0 else ""
        _log.warning(
            f"{rounds:,} rounds of {each:,} clients ask for {outlook.reports:,} of "
            f"{answers:,} answers: {ways} would ask for all"
        )
    elif outlook.rounds + 1 < rounds and each > 1:
        _log.warning(
            f"all answers are asked for in {outlook.rounds:,} of {rounds:,} rounds: "
            f"fraction_train={enough:g} would spread them, so that clients answer for a model "
            "that is further on"
        )


def log_trainable_hint(layout: ModelLayout, outlook: UtilityForecast) -> None:
    """Log which part of the model would make the verdict good."""
    within, remedies = layout.part.subspace, outlook.remedies
    if within is not None:
        _log.info(
            f"these cosines are within the {within.dimension} public dimensions: of what updates "
            "have outside them nothing is learned"
        )
    elif remedies is not None and remedies.weights is not None:
        _log.warning("%s", suggest_trainable(layout, remedies.weights))
    elif remedies is None and layout.part.names is not None:
        _log.info(
            "these cosines are of the trained arrays alone: how much a model can learn by them is "
            "a matter of the others, which stay as they are"
        )


def log_running_statistics(model: Mapping[str, NDArray[Any]]) -> None:
    """Log which arrays are, or look like, BatchNorm's running statistics."""
    statistics, perhaps = sorted(running_statistics(model)), perhaps_statistics(model)
    if statistics:
        _log.info("BatchNorm's running statistics stay as they are: %s", ", ".join(statistics))
    if perhaps:
        _log.warning(
            "these arrays look like running statistics (BatchNorm's) and are trained as weights: "
            "%s. If they are none of the weights, name those to train by trainable= (docs/part.md)",
            quoted(perhaps),
        )


def suggest_trainable(layout: ModelLayout, most: int) -> str:
    """Return names of last layers with few enough weights."""
    arrays = [spec for spec in layout.updated if spec.size]
    layers = [tuple(group) for _, group in groupby(arrays, key=_place)]
    for count in range(min(_MOST_LAYERS, len(layers)), 0, -1):
        chosen = layers[-count:]
        if _size(chosen) <= most and _is_matrix(chosen[0]):
            words = [word for layer in chosen for word in _words(layer, layout)]
            shown = repr(words[0] if len(words) == 1 else words)
            return (
                f"Of this model trainable={shown} is so few, {_size(chosen):,} weights. The rest "
                "stays as it is: begin with one that was trained on public data (docs/part.md)."
            )
    last = next((layer for layer in reversed(layers) if _is_matrix(layer)), layers[-1])
    named = " and ".join(repr(word) for word in _words(last, layout))
    return (
        f"No last layer of this model is so few: {named} has {_size([last]):,} weights. It takes a "
        "smaller one, over features that stay as they are (docs/asked_once.md)."
    )


def _place(spec: ArraySpec) -> str:
    before, dot, _ = spec.name.rpartition(".")
    return before if dot else spec.name


def _words(layer: _Layer, layout: ModelLayout) -> list[str]:
    names = [spec.name for spec in layer]
    pattern = f"{_place(layer[0])}.*"
    matched = [s.name for s in layout.specs if s.is_float and fnmatchcase(s.name, pattern)]
    return [pattern] if matched == names else names


def _is_matrix(layer: _Layer) -> bool:
    return any(len(spec.shape) > 1 for spec in layer)


def _size(layers: Iterable[_Layer]) -> int:
    return sum(spec.size for layer in layers for spec in layer)
