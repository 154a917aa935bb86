"""Federated averaging of clipped and noised updates, as a Flower strategy."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from types import NoneType
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg
from numpy.typing import NDArray

from flower_ldp.mechanisms.gaussian import Gaussian
from flower_ldp.privacy import Unit, compose
from flower_ldp.strategies.checks import must_be
from flower_ldp.strategies.endings import stop_if_in_vain
from flower_ldp.strategies.exchange import (
    account,
    cost_metrics,
    moved_model,
    propose,
    reply_metrics,
)
from flower_ldp.strategies.health import Health, HealthWatch
from flower_ldp.strategies.patience import patient_start
from flower_ldp.strategies.replies import Complaints, ReplyFilter
from flower_ldp.strategies.server_optimizer import ServerOptimizer
from flower_ldp.strategies.spending import Proposals, SpendingReport
from flower_ldp.wire.gaussian import GaussianProposal, decode_gaussian, gaussian_length
from flower_ldp.wire.health import health_length
from flower_ldp.wire.layout import ModelLayout

_log = logging.getLogger("flwr")


@dataclass(frozen=True)
class _Round:
    """What the server must remember between asking and aggregating."""

    server_round: int
    model: Mapping[str, NDArray[Any]]
    layout: ModelLayout
    nodes: tuple[int, ...]


class GaussianStrategy(FedAvg):
    """Federated training from updates that each client clipped and noised itself.

    An ordinary Flower strategy: sampling, ``start`` and ``evaluate_fn`` are those of FedAvg.
    Clients run :class:`~flower_ldp.clients.LdpMod` with
    :class:`~flower_ldp.clients.GaussianRelease`. The model moves by the mean of the noised
    updates, each client counting the same, since numbers of examples do not arrive here.

    Parameters
    ----------
    mechanism : Gaussian
        Epsilon and delta of a round, and the clip norm.
    server_optimizer : ServerOptimizer, optional
        Works on the mean, at no cost in privacy. Its state belongs to one run.
    health : Health, optional
        Asks for one more private bit per report, whether it is neutral, and stops the run where
        too many are. By default no such bit is asked for.
    fraction_train, min_train_nodes, min_available_nodes, arrayrecord_key, configrecord_key
        As in FedAvg.
    fraction_evaluate, min_evaluate_nodes, evaluate_metrics_aggr_fn
        As in FedAvg, except that the fraction is 0 by default: metrics that clients send
        raw are a leak, and the gate refuses them. Use ``evaluate_fn`` on the server.

    Raises
    ------
    TypeError
        If the mechanism or the health is of another type.

    Examples
    --------
    >>> from flower_ldp.mechanisms import Gaussian
    >>> strategy = GaussianStrategy(Gaussian(epsilon=8.0, delta=1e-6, clip_norm=0.5))
    """

    def __init__(
        self,
        mechanism: Gaussian,
        *,
        server_optimizer: ServerOptimizer | None = None,
        health: Health | None = None,
        fraction_train: float = 1.0,
        fraction_evaluate: float = 0.0,
        min_train_nodes: int = 2,
        min_evaluate_nodes: int = 2,
        min_available_nodes: int = 2,
        arrayrecord_key: str = "arrays",
        configrecord_key: str = "config",
        evaluate_metrics_aggr_fn: Callable[[list[RecordDict], str], MetricRecord] | None = None,
    ) -> None:
        wanted = "a Gaussian, as Gaussian(epsilon=8.0, delta=1e-6, clip_norm=0.5)"
        must_be("mechanism", mechanism, Gaussian, wanted)
        must_be("health", health, (Health, NoneType), "a Health, as Health(epsilon=0.5)")
        super().__init__(
            fraction_train=fraction_train,
            fraction_evaluate=fraction_evaluate,
            min_train_nodes=min_train_nodes,
            min_evaluate_nodes=min_evaluate_nodes,
            min_available_nodes=min_available_nodes,
            arrayrecord_key=arrayrecord_key,
            configrecord_key=configrecord_key,
            evaluate_metrics_aggr_fn=evaluate_metrics_aggr_fn,
        )
        self.mechanism = mechanism
        self.server_optimizer = server_optimizer
        self._complaints = Complaints()
        self._health = HealthWatch(health)
        self._proposal = GaussianProposal(mechanism, self._health.epsilon)
        self._round: _Round | None = None
        self.proposals = Proposals()

    start = patient_start

    def summary(self) -> None:
        """Log the configuration, what it costs and how much noise that is."""
        _log.info("\t├──> Gaussian: %s", self.mechanism)
        spent = compose(self._proposal.events())[Unit.CLIENT]
        _log.info(
            "\t│\t├──Cost of a round: epsilon %g, delta %g per client", spent.epsilon, spent.delta
        )
        _log.info(
            "\t│\t└──Noise of one client's entry: standard deviation %.4g",
            self.mechanism.deviation,
        )
        if self.server_optimizer is not None:
            _log.info("\t│\t└──Server optimizer: %s", self.server_optimizer.describe())
        super().summary()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Sample clients as FedAvg does, and add the proposal to each message."""
        messages = list(super().configure_train(server_round, arrays, config, grid))
        model = {name: array.numpy() for name, array in arrays.items()}
        layout = ModelLayout.of(model)
        fields, events = self._proposal.to_fields(), self._proposal.events()
        nodes = propose(messages, fields, events, self.proposals)
        self._round = _Round(server_round, model, layout, nodes)
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Move the model by the mean of this round's noised updates.

        Returns
        -------
        arrays : ArrayRecord or None
            The new model; None, which keeps the old one, if no report was usable.
        metrics : MetricRecord or None
            ``accepted``, ``rejected`` and ``rejected-<reason>``; ``bytes-up`` (payload per
            report); ``noise-deviation`` (of an entry of the mean); ``failing-share`` and
            ``failing-share-error`` where health bits were asked for; ``epsilon-round``,
            ``delta-round``, ``epsilon-total`` and ``delta-total`` (worst client, a sum).

        Raises
        ------
        RunStopped
            If going on would be in vain (:mod:`flower_ldp.strategies.endings`).
        """
        current = self._round
        if current is None or current.server_round != server_round:
            raise RuntimeError(f"round {server_round} was not configured by this strategy")
        self._round = None
        dimension = current.layout.dimension
        filter_ = ReplyFilter(current.nodes, self._complaints)
        self._health.begin()
        decode = self._health.decoder(
            partial(decode_gaussian, dimension=dimension, largest=self.mechanism.largest)
        )
        total = np.zeros(dimension, dtype=np.int64)
        for report in filter_.decode(replies, decode):
            total += report
        events = self._proposal.events()
        account(filter_, events, self.proposals, self._complaints, server_round)
        stop_if_in_vain(filter_, server_round)
        self._health.check(server_round)
        length = gaussian_length(dimension) + health_length(self._proposal.health_epsilon)
        values = reply_metrics(filter_, filter_.accepted * length) | self._health.values()
        moved = None
        if filter_.accepted:
            values["noise-deviation"] = self.mechanism.deviation / filter_.accepted**0.5
            moved = self._moved(current, total, filter_.accepted)
        values.update(cost_metrics(events, self.proposals))
        return moved, MetricRecord(values)  # type: ignore[arg-type]

    def privacy_spent(self, *, delta: float = 1e-6) -> SpendingReport:
        """Return what clients have spent on this server's proposals, in the worst case.

        Epsilons and deltas add up. For a smaller bound on rounds that all use the same
        parameters see :func:`flower_ldp.accounting.gaussian.composed_epsilon`.

        Parameters
        ----------
        delta : float
            Of the approximate bound, in (0, 1). It must exceed the deltas' sum to give one.
        """
        return self.proposals.report(delta=delta)

    def _moved(self, current: _Round, total: NDArray[np.int64], reports: int) -> ArrayRecord | None:
        step = self.mechanism.estimate(total, reports).astype(np.float32)
        with np.errstate(over="ignore", invalid="ignore"):
            if self.server_optimizer is not None:
                step = self.server_optimizer.step(step, current.server_round)
        moved = moved_model(current.layout, current.model, step)
        if moved is None:
            _log.error("the step of round %d is not finite: the model stays", current.server_round)
        return moved
