"""Protected evaluation around any Flower strategy, and saving of the best model."""

from __future__ import annotations

import logging
import math
import os
import zipfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Strategy
from numpy.typing import NDArray

from flower_ldp.mechanisms.codebook import CodebookResponse
from flower_ldp.mechanisms.example_sums import BoundedMean
from flower_ldp.mechanisms.laplace import Laplace, project_to_simplex
from flower_ldp.mechanisms.random import RandomSource
from flower_ldp.parameter_bounds import check_in, must_be
from flower_ldp.privacy import PrivacyEvent, Unit, compose
from flower_ldp.safe_files import replacing
from flower_ldp.strategies import evaluation_scores as scores
from flower_ldp.strategies.deadlines import StrategyWithDeadlines
from flower_ldp.strategies.replies import Metrics, ReplyValidator
from flower_ldp.strategies.rounds import Health, HealthMonitor, Round, SpendingLog, SpendingReport
from flower_ldp.strategies.sampling import ClientPool, pool_of, sample_round
from flower_ldp.wire.evaluation import EvalProposal, decode_eval_report
from flower_ldp.wire.proposal import health_events

_log = logging.getLogger("flwr")
_own_log = logging.getLogger("flower_ldp")
_OWN_PREFIXES = ("score", "epsilon-", "rejected-", "failing-share")
Evaluate = Callable[[int, ArrayRecord], MetricRecord | None]


@dataclass(frozen=True)
class ProxyCodebook:
    """Rows reported as codes, with a codebook from the round's model and public inputs.

    Parameters
    ----------
    epsilon : float
        Per row and per client, for any change of the row; in (0, 100], or ValueError.
    proxy : callable
        Maps a model's arrays to its class probabilities on public inputs, shape (any number,
        classes), for the codebook and in place of the clients' rows in the score.
    rows, levels : int
        Rows per release of a client, and codes per class.
    trust_repeats : int
        Experiments of :func:`~flower_ldp.strategies.score_trust`, which cost no privacy: at least
        2, or 0 for none.
    """

    epsilon: float
    proxy: Callable[[ArrayRecord], NDArray[np.floating[Any]]]
    rows: int = 1
    levels: int = scores.DEFAULT_LEVELS
    trust_repeats: int = 20

    def __post_init__(self) -> None:
        CodebookResponse(np.eye(2), self.epsilon, self.rows)  # their domains
        check_in("[1, inf)", "levels", self.levels, int)
        if self.trust_repeats < 0 or self.trust_repeats == 1:
            raise ValueError(f"trust_repeats must be 0 or at least 2, got {self.trust_repeats}")

    def events(self) -> tuple[PrivacyEvent, ...]:
        """Return the cost of one release: epsilon per row and client."""
        return CodebookResponse(np.eye(2), self.epsilon, self.rows).events()

    def for_model(self, arrays: ArrayRecord) -> CodebookRows:
        """Return a model's codebook and proxy rows."""
        proxy = np.asarray(self.proxy(arrays))
        codebook = scores.confidence_codebook(proxy, self.levels)
        mechanism = CodebookResponse(codebook, self.epsilon, self.rows)
        return CodebookRows(mechanism, scores.ProxySupport.of(mechanism, proxy), self.trust_repeats)


@dataclass(frozen=True, eq=False)
class CodebookRows:
    """The codebook of one round."""

    mechanism: CodebookResponse
    support: scores.ProxySupport
    trust_repeats: int

    def scored(self, reports: NDArray[np.int64], score: scores.ClusterScore) -> dict[str, float]:
        """Return the score, with recovery and error."""
        shares = self.support.spread(self.mechanism.estimate(reports))
        scores.warn_if_near_uniform(self.support.rows, shares)
        values = {"score": score.of_law(self.support.rows, shares, len(reports))}
        if self.trust_repeats and len(reports) > 1:
            total, rng, repeats = len(reports), RandomSource.from_os(), self.trust_repeats
            trust = scores.score_trust(
                self.mechanism, self.support, score, total, rng, repeats=repeats
            )
            values |= {"score-recovery": trust.recovery, "score-error": trust.error}
            if trust.complaint:
                _own_log.warning("%s", trust.complaint)
        return values


@dataclass
class _Evaluation(Round):
    rows: Laplace | CodebookRows
    proposal: EvalProposal


class ProtectedEvalStrategy(StrategyWithDeadlines):
    """Any strategy, with an evaluate phase of private predictions.

    Clients run :class:`~flower_ldp.clients.LdpMod` with ``evaluate`` set to a
    :class:`~flower_ldp.clients.ProtectedEvalRelease`. The wrapped strategy's evaluate phase, which
    would ask for raw metrics, is replaced.

    Parameters
    ----------
    strategy : Strategy
        Does the training.
    mechanism : Laplace or ProxyCodebook
        Randomizer of the rows, with their number per client.
    score, clusterer
        As for :class:`~flower_ldp.strategies.ClusterScore`.
    metrics : mapping of str to BoundedMean, optional
        Scalar metrics to ask for as well.
    cluster_client_num : int, optional
        Most clients asked in a round, at random; all by default.
    every : int
        Rounds between evaluations. Each costs every asked client its epsilon again.
    health, answers_per_client : optional
        As for :class:`TrainingStrategy`, whose pool counts both together.
    min_evaluate_nodes, min_available_nodes, arrayrecord_key, configrecord_key
        As in FedAvg, for the evaluate phase.

    Raises
    ------
    ValueError
        If a number is below 1, the score is unknown, or a metric's name is in use.
    TypeError
        If an argument is of a wrong type.
    """

    def __init__(
        self,
        strategy: Strategy,
        mechanism: Laplace | ProxyCodebook,
        *,
        score: str | scores.Score = scores.SILHOUETTE_SCORE,
        clusterer: Any = None,
        metrics: Mapping[str, BoundedMean] | None = None,
        cluster_client_num: int | None = None,
        every: int = 1,
        health: Health | None = None,
        answers_per_client: int | ClientPool | None = None,
        min_evaluate_nodes: int = 2,
        min_available_nodes: int = 2,
        arrayrecord_key: str = "arrays",
        configrecord_key: str = "config",
    ) -> None:
        must_be("strategy", strategy, Strategy, "a strategy, as SignDSStrategy(...)")
        wanted = "a Laplace or a ProxyCodebook, as Laplace(4.0, classes=10)"
        must_be("mechanism", mechanism, (Laplace, ProxyCodebook), wanted)
        if cluster_client_num is not None:
            check_in("[1, inf)", "cluster_client_num", cluster_client_num, int)
        check_in("[1, inf)", "every", every, int)
        for name, metric in (metrics or {}).items():
            wanted = "a BoundedMean, as BoundedMean(1.0, 0.0, 1.0)"
            must_be(f"metric {name!r}", metric, BoundedMean, wanted)
            if name in ("accepted", "rejected") or name.startswith(_OWN_PREFIXES):
                raise ValueError(f"a metric cannot be called {name!r}: the name is in use")
        self.strategy = strategy
        self.mechanism = mechanism
        self.metrics = dict(metrics or {})
        self.score = scores.ClusterScore(score, clusterer)
        self.cluster_client_num = cluster_client_num
        self.every = every
        self._builder = FedAvg()  # of messages
        self._least, self._available = min_evaluate_nodes, min_available_nodes
        self._arrays_key, self._config_key = arrayrecord_key, configrecord_key
        self._asked: _Evaluation | None = None
        self._pool = pool_of(answers_per_client)
        # One account with the training, so that totals are those of each client.
        shared = getattr(strategy, "proposals", None)
        self.proposals = shared if isinstance(shared, SpendingLog) else SpendingLog()
        self._health = HealthMonitor(health)
        self._callbacks = (self.proposals, self._health)

    def expect(self, rounds: int, arrays: ArrayRecord) -> None:
        """Begin a run."""
        for callback in self._callbacks:
            callback.on_run_start(rounds, None)
        if isinstance(self.strategy, StrategyWithDeadlines):
            self.strategy.expect(rounds, arrays)

    def summary(self) -> None:
        """Log the evaluation and the wrapped strategy's summary."""
        _log.info("\t├──> Protected evaluation: %s", self.mechanism)
        _log.info("\t│\t├──Metrics: %s", ", ".join(self.metrics) or "none")
        metrics = (event for metric in self.metrics.values() for event in metric.events())
        bit = health_events(self._health.epsilon)
        cost = compose((*self.mechanism.events(), *metrics, *bit))[Unit.CLIENT]
        _log.info("\t│\t└──Cost of an evaluation: %s, every %d rounds", cost, self.every)
        self.strategy.summary()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the wrapped strategy's messages; those of another package are ``uncounted``."""
        messages = self.strategy.configure_train(server_round, arrays, config, grid)
        counted = getattr(self.strategy, "proposals", None) is self.proposals
        return messages if counted else self.proposals.note_uncounted(messages)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Aggregate as the wrapped strategy does."""
        arrays, metrics = self.strategy.aggregate_train(server_round, replies)
        self._health.complaints.learned |= arrays is not None
        return arrays, metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Choose clients and send them the proposal."""
        if server_round % self.every:
            return []
        sample = sample_round(
            grid, self._pool, 1.0, self._least, self._available, most=self.cluster_client_num
        )
        if sample is None:  # nothing to run the model for
            return []
        own = self.mechanism
        rows = own if isinstance(own, Laplace) else own.for_model(arrays)
        asked = rows if isinstance(rows, Laplace) else rows.mechanism
        proposal = EvalProposal(asked, self.metrics, self._health.epsilon)
        config["server-round"] = server_round
        content = RecordDict({self._arrays_key: arrays, self._config_key: config})
        current = _Evaluation(server_round, sample, proposal.events(), rows, proposal)
        for callback in self._callbacks:
            callback.before_ask(current)
        self.proposals.choose(current, content, proposal.to_fields())
        self._asked = current if current.nodes else None
        return self._builder._construct_messages(content, current.nodes, MessageType.EVALUATE)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Score the reports of this round; None in rounds without an evaluation.

        docs/evaluation.md has the metrics. ``epsilon-total`` is of the worst client, pure.

        Raises
        ------
        RunStopped
            If further rounds would be useless (:mod:`flower_ldp.strategies.replies`).
        """
        asked, self._asked = self._asked, None
        if asked is None or asked.server_round != server_round:
            return None
        judge = ReplyValidator(asked.nodes, self._health.complaints)
        decode = self._health.decoder(lambda report: decode_eval_report(report, asked.proposal))
        reports = list(judge.decode(replies, decode))
        values: Metrics = {**judge.metrics(), **self._health.metrics(asked)}
        if reports:
            values |= self._scored(asked.rows, np.concatenate([rows for rows, _ in reports]))
            columns = np.array([metrics for _, metrics in reports]).T
            for (name, metric), column in zip(self.metrics.items(), columns, strict=True):
                values[name] = float(metric.estimate(column).mean())
                values[f"{name}-noise"] = metric.standard_deviation / len(column) ** 0.5
        else:
            _log.warning("no usable report in the evaluation of round %d", server_round)
        for callback in self._callbacks:
            callback.after_replies(asked, judge)
        costs = self.proposals.metrics(asked)
        values["epsilon-evaluation"] = costs["epsilon-round"]
        values["epsilon-total"] = costs["epsilon-total"]
        return MetricRecord(values)  # type: ignore[arg-type]

    def privacy_spent(self, *, delta: float = 1e-6) -> SpendingReport:
        """Return spending as :meth:`TrainingStrategy.privacy_spent`, training included."""
        return self.proposals.report(delta=delta)

    def _scored(self, rows: Laplace | CodebookRows, reports: NDArray[np.int64]) -> Metrics:
        if isinstance(rows, Laplace):
            found = {"score": self.score.of_rows(project_to_simplex(rows.estimate(reports)))}
        else:
            found = rows.scored(reports, self.score)
        if not math.isfinite(found["score"]):
            _log.warning("the rows allow no score: fewer than two clusters, or one row in each")
        kept = {name: value for name, value in found.items() if math.isfinite(value)}
        return {**kept, "score-rows": len(reports)}


#: The first name of :class:`ProtectedEvalStrategy`, which then ran Laplace noise alone: the same
#: class, for good.
LaplaceEvalStrategy = ProtectedEvalStrategy


class BestModel:
    """An ``evaluate_fn`` for ``Strategy.start`` that saves the best model so far.

    ``server_round`` and ``value`` are the round of the saved model, 0 for the initial one, and its
    metric.

    Parameters
    ----------
    path : path-like
        An ``.npz`` file of the model's arrays by name, replaced atomically.
    evaluate : callable, optional
        The server's evaluation. Without a result, the latest model is kept until a round is
        evaluated.
    metric : str
        The metric that decides; ValueError where it is missing.
    higher_is_better : bool

    Examples
    --------
    >>> best = BestModel("best.npz", lambda server_round, arrays: MetricRecord({"accuracy": 0.9}))
    >>> best.server_round is None  # strategy.start(grid, arrays, evaluate_fn=best) calls it
    True
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        evaluate: Evaluate | None = None,
        *,
        metric: str = "accuracy",
        higher_is_better: bool = True,
    ) -> None:
        self.path = Path(path)
        if self.path.suffix != ".npz":
            raise ValueError(f"path must end in .npz, got {self.path}")
        self.server_round: int | None = None
        self.value: float | None = None
        self._evaluate = evaluate
        self._metric = metric
        self._sign = 1.0 if higher_is_better else -1.0

    def __call__(self, server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
        """Save a round's model if it is the best; return its metrics."""
        found = None if self._evaluate is None else self._evaluate(server_round, arrays)
        value = None if found is None else self._value_of(found)
        if self._is_best(value):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # numpy.savez takes names as keywords, and an array may be called "file".
            with replacing(self.path) as file, zipfile.ZipFile(file, "w") as archive:
                for name, array in arrays.items():
                    with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                        np.lib.format.write_array(member, array.numpy(), allow_pickle=False)
            self.server_round, self.value = server_round, value
        return found

    def _value_of(self, found: MetricRecord) -> float:
        value = found.get(self._metric)
        if not isinstance(value, int | float):
            raise ValueError(f"evaluate must return {self._metric!r}, got {dict(found)}")
        return float(value)

    def _is_best(self, value: float | None) -> bool:
        if value is None or self.value is None:
            return value is not None or self.value is None
        return not math.isnan(value) and (
            math.isnan(self.value) or self._sign * value > self._sign * self.value
        )
