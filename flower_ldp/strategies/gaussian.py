"""Federated averaging of clipped and noised updates, as a Flower strategy."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from flower_ldp.mechanisms.gaussian import Gaussian
from flower_ldp.privacy import Unit, compose
from flower_ldp.strategies.forecast import Preview
from flower_ldp.strategies.rounds import Metrics
from flower_ldp.strategies.training import TrainingStrategy
from flower_ldp.wire.proposal import UpdateProposal


class GaussianTally:
    """One round of the Gaussian mechanism: what is asked, and the sum of the noised updates.

    Parameters
    ----------
    proposal : UpdateProposal
        What clients are asked for.
    dimension : int
        d.
    """

    def __init__(self, proposal: UpdateProposal[Gaussian], dimension: int) -> None:
        self.proposal = proposal
        self._total = np.zeros(dimension, dtype=np.int64)

    def decode(self, payload: bytes) -> NDArray[np.int8]:
        """Return a noised update."""
        return self.proposal.mechanism.decode(payload, len(self._total))

    def add(self, report: NDArray[np.int8]) -> None:
        """Take in a noised update."""
        self._total += report

    def close(self, reports: int) -> Metrics:
        """Return ``noise-deviation``, of an entry of the mean, if there is one."""
        deviation = self.proposal.mechanism.deviation
        return {"noise-deviation": deviation / reports**0.5} if reports else {}

    def summed(self) -> NDArray[np.int64]:
        """Return the sum of the noised updates, in units of a report."""
        return self._total

    def step(self, reports: int) -> NDArray[np.float64]:
        """Return the mean of the noised updates."""
        return self.proposal.mechanism.estimate(self._total, reports)


class GaussianStrategy(TrainingStrategy[Gaussian]):
    """Federated training from updates that each client clipped and noised itself.

    An ordinary Flower strategy: sampling, ``start`` and ``evaluate_fn`` are those of FedAvg.
    Clients run :class:`~flower_ldp.clients.LdpMod` with
    :class:`~flower_ldp.clients.GaussianRelease`. The model moves by the mean of the noised
    updates, each client counting the same, since numbers of examples do not arrive here. Metrics
    of a round have ``noise-deviation``, of an entry of the mean, besides. For a smaller bound on
    rounds that all use the same parameters than the sum that :meth:`privacy_spent` gives see
    :func:`flower_ldp.accounting.gaussian.composed_epsilon`.

    Parameters
    ----------
    mechanism : Gaussian
        Epsilon and delta of a round, and the clip norm.
    server_optimizer : ServerOptimizer, optional
        Works on the mean, at no cost in privacy. Its state belongs to one run.
    health : Health, optional
        Asks for one more private bit per report, whether it is neutral, and stops the run where
        too many are. By default no such bit is asked for.
    answers_per_client : int or ClientPool, optional
        How often a client is asked in a whole run, by sampling without replacement; a
        :class:`~flower_ldp.strategies.ClientPool` to share it with an evaluation or to keep it
        in a file. By default every round samples anew, as FedAvg does.
    trainable : str or sequence of str, optional
        Names or patterns (``"head.*"``) of the arrays that reports are about; others are sent to
        clients and never move. By default all floating-point arrays but running statistics.
    subspace : Subspace, optional
        Public; reports are about the update's projection onto it, and the model moves in it
        alone. By default reports are about the update, weight by weight.
    fraction_train, min_train_nodes, min_available_nodes, arrayrecord_key, configrecord_key
        As in FedAvg.
    fraction_evaluate, min_evaluate_nodes, evaluate_metrics_aggr_fn
        As in FedAvg, except that the fraction is 0 by default: metrics that clients send
        raw are a leak, and the gate refuses them. Use ``evaluate_fn`` on the server.

    Raises
    ------
    TypeError
        If the mechanism, the health or the part is of another type.

    Examples
    --------
    >>> from flower_ldp.mechanisms import Gaussian
    >>> strategy = GaussianStrategy(Gaussian(epsilon=8.0, delta=1e-6, clip_norm=0.5))
    """

    _mechanism_type = Gaussian
    _mechanism_example = "a Gaussian, as Gaussian(epsilon=8.0, delta=1e-6, clip_norm=0.5)"

    def _tally(self, dimension: int, participation: float) -> GaussianTally:
        return GaussianTally(self._proposal(), dimension)

    def _description(self) -> Iterator[str]:
        """Yield what it costs and how much noise that is."""
        spent = compose(self._proposal().events())[Unit.CLIENT]
        yield f"\t├──> Gaussian: {self.mechanism}"
        cost = f"epsilon {spent.epsilon:g}, delta {spent.delta:g} per client"
        yield f"\t│\t├──Cost of a round: {cost}"
        deviation = f"standard deviation {self.mechanism.deviation:.4g}"
        yield f"\t│\t└──Noise of one client's entry: {deviation}"
        if self.server_optimizer is not None:
            yield f"\t│\t└──Server optimizer: {self.server_optimizer.describe()}"

    def _preview(self, dimension: int | None) -> Preview:
        optimizer = self.server_optimizer
        rule = "the mean" if optimizer is None else optimizer.describe()
        return Preview(self._proposal(), self.mechanism.plan, rule)

    def _proposal(self) -> UpdateProposal[Gaussian]:
        return UpdateProposal(self.mechanism, self._health.epsilon)
