"""The server as a shuffler: it sees who answered, can read no report, and gets sums.

**What leaves for the analyzer** is one batch of a round: its proposal, and the ciphertexts in an
order drawn from the system's entropy. No node, time or message goes with it. All that a strategy
learns of reports comes back as sums: the total, the number of reports, and the sum of the health
bits. docs/analyzer.md says what is claimed, and whom one must trust for it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable

import numpy as np
from flwr.app import Message
from flwr.serverapp import Grid

from flower_ldp.errors import WireError
from flower_ldp.parameter_bounds import must_be
from flower_ldp.shuffle import Analyzer, AnalyzerError, AnalyzerRefusal, ReportAnalyzer
from flower_ldp.shuffle.batch import MOST_BYTES, NO_PROPOSAL, Batch, SealedProposal
from flower_ldp.shuffle.sealing import RoundKey, sealed_length, stated
from flower_ldp.strategies.replies import Metrics, ReplyValidator, RunStopped
from flower_ldp.strategies.rounds import (
    CentralCost,
    HealthMonitor,
    RoundCallback,
    SpendingLog,
    TrainingRound,
    Vector,
)
from flower_ldp.wire.layout import ModelLayout

_log = logging.getLogger("flwr")
#: The most random bytes that place a ciphertext in a batch.
_PLACE = 16
#: Of what is said before a run; the analyzer has its own.
_DELTA = 1e-6


class Shuffler(RoundCallback[TrainingRound]):
    """Sends a run's rounds to an analyzer.

    Parameters
    ----------
    analyzer : Analyzer or ReportAnalyzer
    spending : SpendingLog
        Gets what the analyzer says of rounds.
    """

    def __init__(self, analyzer: Analyzer | ReportAnalyzer, spending: SpendingLog) -> None:
        wanted = "an Analyzer, as Analyzer('https://...', key, token=...), or a ReportAnalyzer"
        must_be("analyzer", analyzer, (Analyzer, ReportAnalyzer), wanted)
        self._analyzer = analyzer
        self._spending = spending
        #: Whether this run's claim was logged, and whether its last round had no sums.
        self._is_told = self._is_lost = False

    def on_run_start(self, rounds: int, layout: ModelLayout | None) -> None:
        """Begin a run."""
        self._is_told = self._is_lost = False

    def key(self, grid: Grid, server_round: int) -> RoundKey:
        """Return what a round's reports are sealed for; RunStopped without the analyzer."""
        try:
            return self._analyzer.new_key(grid.run.run_id)
        except (AnalyzerError, AnalyzerRefusal) as error:
            raise RunStopped(f"nobody was asked in round {server_round}: {error}") from error

    def before_ask(self, current: TrainingRound) -> None:
        """Refuse a round of fewer clients than the analyzer answers for, or of too many."""
        key = current.analyzer_key
        if key is None:
            return
        size, minimum = current.sample.size, key.minimum
        if size < minimum:
            raise ValueError(
                f"round {current.server_round} would ask {size:,} clients, and the analyzer "
                f"answers for {minimum:,} reports at least: run fewer rounds, or set "
                "fraction_train. Nobody was asked"
            )
        text = stated(current.proposal, current.layout, key)
        length = sealed_length(current.proposal.report_bytes(current.layout.entries))
        most = (MOST_BYTES - len(Batch(text, ()).to_bytes())) // length
        if size > most:
            raise ValueError(
                f"round {current.server_round} would ask {size:,} clients, and a batch has at most "
                f"{most:,} reports: run more rounds, or set fraction_train. Nobody was asked"
            )
        if self._is_told:
            return
        # What the analyzer would not read is not asked for.
        asked = SealedProposal.parse(text)
        now, least = (asked.central_epsilon(n, _DELTA) for n in (size, minimum))
        self._is_told = True
        cost = CentralCost(now, least, _DELTA, size, minimum)
        _log.info("\t├──> if all answer: %s", cost)

    def total(
        self,
        current: TrainingRound,
        key: RoundKey,
        judge: ReplyValidator,
        replies: Iterable[Message],
        health: HealthMonitor,
    ) -> Vector:
        """Return the sum of a round's reports; zeros, of no report, if the analyzer refuses.

        Raises
        ------
        RunStopped
            If the analyzer does not answer, cannot read such proposals, or refuses a second round
            of the run in a row.
        """
        proposal, entries = current.proposal, current.layout.entries
        length = sealed_length(proposal.report_bytes(entries))

        def whole(data: bytes) -> bytes:
            if len(data) != length:
                raise WireError("length", f"{len(data)} bytes, expected {length}")
            return data

        # In an order of the system's entropy, not of arrival.
        sealed = sorted(judge.decode(replies, whole), key=lambda _: os.urandom(_PLACE))
        if not sealed:
            return np.zeros(entries)
        batch = Batch(stated(proposal, current.layout, key), tuple(sealed))
        judge.accepted = 0
        try:
            found = self._analyzer.sums(batch)
        except AnalyzerRefusal as refusal:
            told = f"round {current.server_round}: the analyzer gives no sums: {refusal}"
            if refusal.code == NO_PROPOSAL:
                raise RunStopped(told) from refusal
            if self._is_lost:
                more = "The round before had none either, and clients paid for both"
                raise RunStopped(f"{told}. {more}") from refusal
            self._is_lost = True
            _log.error(told)
            judge.rejected["analyzer"] += len(sealed)
            return np.zeros(entries)
        except AnalyzerError as error:
            raise RunStopped(f"round {current.server_round} has no sums: {error}") from error
        if found.accepted + sum(found.rejected.values()) != len(sealed):
            told = f"{found.accepted:,} reports and {sum(found.rejected.values()):,} left out"
            raise RunStopped(f"the analyzer answers for {told}, of {len(sealed):,} sent")
        self._is_lost = False
        judge.accepted = found.accepted
        judge.rejected.update(found.rejected)
        if found.ones is not None:
            health.count(found.ones, found.accepted)
        price = found.central_epsilon, found.central_epsilon_minimum, found.delta
        now = current.central = CentralCost(*price, found.accepted, key.minimum)
        before = self._spending.central
        if before is None or now.epsilon > before.epsilon:
            self._spending.central = now
        _log.info("\t├──> shuffled: %s", now)
        return found.total

    def metrics(self, current: TrainingRound) -> Metrics:
        """Return the round's central epsilons, if it was answered."""
        found = current.central
        if found is None:
            return {}
        return {
            "central-epsilon": found.epsilon,
            "central-epsilon-minimum": found.epsilon_minimum,
            "central-delta": found.delta,
        }

    def __str__(self) -> str:
        if isinstance(self._analyzer, Analyzer):
            return f"{self._analyzer.url}, {self._analyzer.key}"
        least = f"{self._analyzer.minimum:,} reports at least"
        return f"one in this process, which hides nothing from this machine; {least}"
