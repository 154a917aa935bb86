"""SignDS training as a Flower strategy: sparse private reports in, one model step out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
from flwr.app import MetricRecord, RecordDict
from numpy.typing import NDArray

from flower_ldp.mechanisms.selection import SignSum
from flower_ldp.mechanisms.signds import SignDS
from flower_ldp.mechanisms.signds_round import Report, SignDSRound
from flower_ldp.mechanisms.subspace import Subspace
from flower_ldp.privacy import Unit, compose
from flower_ldp.strategies.agreed_length import AgreedLength
from flower_ldp.strategies.forecast import Preview
from flower_ldp.strategies.guards import must_be
from flower_ldp.strategies.health import Health
from flower_ldp.strategies.optimizers import FixedLength, ServerOptimizer
from flower_ldp.strategies.rounds import Metrics
from flower_ldp.strategies.sampling import ClientPool
from flower_ldp.strategies.step_size import FixedStep, LearnedStep, Question, Scaling, StepSize
from flower_ldp.strategies.training import TrainingStrategy
from flower_ldp.wire.part import Trainable
from flower_ldp.wire.proposal import UpdateProposal

#: Optimizers to which only the direction of the sum counts.
_PLANNED = (FixedLength, AgreedLength)


class SignDSTally:
    """One round of SignDS: what is asked, and the sum of the signs that came back.

    Parameters
    ----------
    proposal : UpdateProposal
        What clients are asked for.
    dimension : int
        d.
    step_size : StepSize
        Of the run; learns from the round's magnitude bits.

    Attributes
    ----------
    plan : SelectionPlan
        h, v_th and the law for that d.
    ones : int
        Magnitude bits that are 1, so far.
    """

    def __init__(
        self, proposal: UpdateProposal[SignDSRound], dimension: int, step_size: StepSize
    ) -> None:
        self.proposal = proposal
        self.plan = proposal.mechanism.selection.plan(dimension, quiet=True)
        self.ones = 0
        self._asked = proposal.mechanism.magnitude is not None
        self._step_size = step_size
        self._signs = SignSum(dimension)

    @property
    def total(self) -> NDArray[np.int32]:
        """The sum of signs so far, shape (d,)."""
        return self._signs.total()

    def decode(self, payload: bytes) -> Report:
        """Return the selection and, if it was asked for, the magnitude bit."""
        return self.proposal.mechanism.decode(payload, self.plan.dimension)

    def add(self, report: Report) -> None:
        """Take in a report."""
        selection, bit = report
        self.ones += bit or 0
        self._signs.add(selection)

    def close(self, reports: int) -> Metrics:
        """Learn from the bits, and return ``r-est`` and ``magnitude-majority`` if they were asked.

        The majority is B: 1 yes, 0 no, -1 undecided.
        """
        if not self._asked or self._step_size.estimate is None:
            return {}
        majority = self._step_size.learn(self.ones, reports)
        return {
            "r-est": self._step_size.estimate.value,
            "magnitude-majority": -1 if majority is None else majority,
        }

    def summed(self) -> NDArray[np.int32]:
        """Return the sum of signs."""
        return self.total

    def step(self, reports: int) -> NDArray[np.float32]:
        """Return the scaled sum of signs."""
        factor = self._step_size.factor(reports, self.plan, asked=self._asked)
        return np.float32(factor) * self.total.astype(np.float32)


class SignDSStrategy(TrainingStrategy[SignDS]):
    """Federated training from SignDS reports.

    An ordinary Flower strategy: sampling, ``start`` and ``evaluate_fn`` are those of FedAvg.
    Clients run :class:`~flower_ldp.clients.LdpMod` with
    :class:`~flower_ldp.clients.SignDSRelease`; no gradient, loss or count of theirs arrives
    here. The server moves the model along the sum of the reported signs. Metrics of a round have
    ``r-est`` and ``magnitude-majority`` (B: 1 yes, 0 no, -1 undecided) besides, where bits were
    asked for.

    Parameters
    ----------
    mechanism : SignDS
        The dimension selection that clients are asked for. Without k, K and h are chosen for
        the model of the round, and each proposal states them.
    step : LearnedStep or FixedStep, optional
        Step size: learned from one more private bit per client (MagRR), or fixed. By default
        only the direction of the sum counts, and ``server_optimizer`` is an
        :class:`~flower_ldp.strategies.AgreedLength` if it is left out too.
    scaling : {"published", "unbiased"}
        See :mod:`flower_ldp.strategies.step_size`.
    server_optimizer : ServerOptimizer, optional
        Momentum, steps of fixed length, or one of Flower's
        (:mod:`flower_ldp.strategies.optimizers`); works on the privatized sum, at no cost in
        privacy. Its state belongs to one run. Steps of planned length, FixedLength and
        AgreedLength, need a FixedStep or none.
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
    ValueError
        For a learned step with an optimizer of planned length: clients would pay for bits
        that set no length.
    TypeError
        If the mechanism, the step, the optimizer, the health or the part is of another type.

    Examples
    --------
    >>> from flower_ldp.mechanisms import MagRR, SignDS
    >>> untuned = SignDSStrategy(SignDS(epsilon=8.0), answers_per_client=1)
    >>> strategy = SignDSStrategy(
    ...     SignDS(epsilon=8.0), LearnedStep(MagRR(epsilon=1.0)), fraction_train=0.5
    ... )
    """

    _mechanism_type = SignDS
    _mechanism_example = "a SignDS, as SignDS(epsilon=8.0)"

    def __init__(
        self,
        mechanism: SignDS,
        step: LearnedStep | FixedStep | None = None,
        *,
        scaling: Scaling = "published",
        server_optimizer: ServerOptimizer | None = None,
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
        if step is None:
            step, server_optimizer = FixedStep(1.0), server_optimizer or AgreedLength()
        must_be(
            "step",
            step,
            (LearnedStep, FixedStep),
            "a LearnedStep or a FixedStep, as LearnedStep(MagRR(epsilon=1.0)) or FixedStep(0.1)",
        )
        if step.magnitude is not None and isinstance(server_optimizer, (FixedLength, AgreedLength)):
            raise ValueError(
                "steps of planned length ignore a learned size: clients would pay "
                f"epsilon {step.magnitude.epsilon:g} a round for a bit that is never used; "
                "leave the step out, or pass another server optimizer"
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
        self.step_size = StepSize(step, scaling)
        self.scaling = scaling
        self._planned: set[int] = set()

    def _tally(self, dimension: int, participation: float) -> SignDSTally:
        self._warn_once(dimension)
        question = self.step_size.question(participation)
        proposal = self._proposal(self.mechanism.sized(dimension), question)
        tally = SignDSTally(proposal, dimension, self.step_size)
        self.step_size.check(tally.plan)
        return tally

    def _description(self) -> Iterator[str]:
        """Yield what it costs and how to learn the step size if it is not."""
        spent = compose(self._proposal(self.mechanism, self.step_size.question(1.0)).events())
        yield f"\t├──> SignDS: {self.mechanism}"
        yield f"\t│\t├──Cost of a round: at most {spent[Unit.CLIENT]}"
        yield f"\t│\t├──Scaling: {self.scaling}"
        if self.server_optimizer is not None:
            yield f"\t│\t├──Server optimizer: {self.server_optimizer.describe()}"
        if isinstance(self.server_optimizer, _PLANNED):
            yield "\t│\t└──Step: only the direction of the sum counts"
        elif self.step_size.estimate is None:
            yield (
                "\t│\t└──Step: fixed rate; to learn it from one private bit per client, set "
                "sign_mag_eps in the configuration or pass step=LearnedStep(MagRR(epsilon=...))"
            )
        else:
            yield f"\t│\t└──Step: learned by MagRR from {self.step_size.estimate}"

    def _preview(self, dimension: int | None) -> Preview:
        mechanism = self.mechanism if dimension is None else self.mechanism.sized(dimension)
        rule = "learned by MagRR" if self.step_size.estimate else "fixed rate"
        if isinstance(self.server_optimizer, _PLANNED):
            rule = self.server_optimizer.describe()
        elif self.server_optimizer is not None:
            rule += f", {self.server_optimizer.describe()}"
        return Preview(
            self._proposal(mechanism, self.step_size.question(1.0)),
            partial(self.mechanism.plan, quiet=True),
            rule,
        )

    def _proposal(
        self, mechanism: SignDS, question: Question | None
    ) -> UpdateProposal[SignDSRound]:
        bit = () if question is None else (question.epsilon, question.threshold)
        return UpdateProposal(SignDSRound(mechanism, *bit), self._health.epsilon)

    def _warn_once(self, dimension: int) -> None:
        """Say that the top set is small, by the mechanism as it was given, not at every round."""
        self.mechanism.plan(dimension, quiet=dimension in self._planned)
        self._planned.add(dimension)
