"""Federated training from codewords near the clients' updates, as a Flower strategy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
from flwr.app import MetricRecord, RecordDict
from numpy.typing import NDArray

from flower_ldp.mechanisms.codeword import MOST_SEED, Codeword
from flower_ldp.mechanisms.codeword_report import NamedCodeword
from flower_ldp.mechanisms.subspace import Subspace
from flower_ldp.privacy import Unit, compose
from flower_ldp.strategies.agreed_length import AgreedLength
from flower_ldp.strategies.forecast import Preview
from flower_ldp.strategies.health import Health
from flower_ldp.strategies.optimizers import ServerOptimizer
from flower_ldp.strategies.rounds import Metrics
from flower_ldp.strategies.sampling import ClientPool
from flower_ldp.strategies.training import TrainingStrategy
from flower_ldp.wire.part import Trainable
from flower_ldp.wire.proposal import UpdateProposal


class CodewordTally:
    """One round of codewords: what is asked, and what was named.

    Parameters
    ----------
    proposal : UpdateProposal
        What clients are asked for.
    dimension : int
        d.
    """

    def __init__(self, proposal: UpdateProposal[Codeword], dimension: int) -> None:
        self.proposal = proposal
        self._dimension = dimension
        self._plan = proposal.mechanism.plan(dimension)
        self._named: list[NamedCodeword] = []
        self._total: NDArray[np.float64] | None = None

    def decode(self, payload: bytes) -> NamedCodeword:
        """Return the named codeword."""
        return self.proposal.mechanism.decode(payload, self._dimension)

    def add(self, report: NamedCodeword) -> None:
        """Take in a report: the transforms come once, in :meth:`step`."""
        self._named.append(report)

    def close(self, reports: int) -> Metrics:
        """Return ``expected-cosine`` of the step with the clients' direction, if they agree."""
        return {"expected-cosine": self._plan.cosine_of_sum(reports)} if reports else {}

    def summed(self) -> NDArray[np.float64]:
        """Return the sum of the named codewords; the transforms are done once."""
        if self._total is None:
            self._total = self.proposal.mechanism.total(self._named, self._dimension)
        return self._total

    def step(self, reports: int) -> NDArray[np.float64]:
        """Return the estimate of the clients' mean direction, as ``Codeword.estimate`` has it."""
        return self.summed() / (reports * self._plan.projection)


class CodewordStrategy(TrainingStrategy[Codeword]):
    """Federated training from one codeword per client, near the direction of its update.

    An ordinary Flower strategy: sampling, ``start`` and ``evaluate_fn`` are those of FedAvg.
    Clients run :class:`~flower_ldp.clients.LdpMod` with
    :class:`~flower_ldp.clients.CodewordRelease`. A report tells of the update's direction and
    nothing of its length. The model moves by an estimate of the clients' mean direction, whose
    length is mostly noise: steps have a length of their own. Metrics of a round have
    ``expected-cosine`` besides: of the estimate with the clients' direction, if they agree.

    Parameters
    ----------
    mechanism : Codeword
        Epsilon of a report, and the codes. Each round has a seed of its own, counted on from
        the mechanism's.
    server_optimizer : ServerOptimizer, optional
        Works on the estimated direction, at no cost in privacy. Its state belongs to one run. By
        default an :class:`~flower_ldp.strategies.AgreedLength`, which needs no tuning.
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
        If the mechanism, the optimizer, the health or the part is of another type.

    Examples
    --------
    >>> from flower_ldp.mechanisms import Codeword
    >>> strategy = CodewordStrategy(Codeword(epsilon=8.0), answers_per_client=1)
    """

    _mechanism_type = Codeword
    _mechanism_example = "a Codeword, as Codeword(epsilon=8.0)"

    def __init__(
        self,
        mechanism: Codeword,
        server_optimizer: ServerOptimizer | None = None,
        *,
        health: Health | None = None,
        answers_per_client: int | ClientPool | None = None,
        trainable: Trainable | None = None,
        subspace: Subspace | None = None,
        fraction_train: float = 1.0,
        fraction_evaluate: float = 0.0,
        min_train_nodes: int = 2,
        min_evaluate_nodes: int = 2,
        min_available_nodes: int = 2,
        arrayrecord_key: str = "arrays",
        configrecord_key: str = "config",
        evaluate_metrics_aggr_fn: Callable[[list[RecordDict], str], MetricRecord] | None = None,
    ) -> None:
        server_optimizer = AgreedLength() if server_optimizer is None else server_optimizer
        if not callable(getattr(server_optimizer, "step", None)):
            raise TypeError(
                "server_optimizer must be a ServerOptimizer, as FixedLength(0.5, rounds=40), "
                f"got {server_optimizer!r}: most of the estimate's length is noise"
            )
        super().__init__(
            mechanism,
            server_optimizer=server_optimizer,
            health=health,
            answers_per_client=answers_per_client,
            trainable=trainable,
            subspace=subspace,
            fraction_train=fraction_train,
            fraction_evaluate=fraction_evaluate,
            min_train_nodes=min_train_nodes,
            min_evaluate_nodes=min_evaluate_nodes,
            min_available_nodes=min_available_nodes,
            arrayrecord_key=arrayrecord_key,
            configrecord_key=configrecord_key,
            evaluate_metrics_aggr_fn=evaluate_metrics_aggr_fn,
        )
        self._optimizer = server_optimizer
        self._next: int | None = None

    def _tally(self, dimension: int, participation: float) -> CodewordTally:
        seed = (self.mechanism.seed + self._counted()) % MOST_SEED
        mechanism = replace(self.mechanism, seed=seed).sized(dimension)
        return CodewordTally(self._proposal(mechanism), dimension)

    def _counted(self) -> int:
        """Return the number of a round, which sets its codes.

        It begins at what the pool remembers: earlier rounds were no more than those they asked.
        """
        if self._next is None:
            self._next = 0 if self._pool is None else sum(self._pool.asked().values())
        self._next += 1
        return self._next - 1

    def _description(self) -> Iterator[str]:
        """Yield what it costs."""
        spent = compose(self._proposal(self.mechanism).events())[Unit.CLIENT]
        yield f"\t├──> Codeword: {self.mechanism}"
        yield f"\t│\t├──Cost of a round: epsilon {spent.epsilon:g} per client"
        yield f"\t│\t└──Server optimizer: {self._optimizer.describe()}"

    def _preview(self, dimension: int | None) -> Preview:
        mechanism = self.mechanism if dimension is None else self.mechanism.sized(dimension)
        return Preview(self._proposal(mechanism), self.mechanism.plan, self._optimizer.describe())

    def _proposal(self, mechanism: Codeword) -> UpdateProposal[Codeword]:
        return UpdateProposal(mechanism, self._health.epsilon)
