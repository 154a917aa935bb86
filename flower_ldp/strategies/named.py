"""Strategies of training by name: one for each mechanism of this package, and for extensions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from flower_ldp.errors import WireError
from flower_ldp.extensions.contract import Chosen, ExtensionMechanism
from flower_ldp.mechanisms.codeword import MOST_SEED, Codeword
from flower_ldp.mechanisms.gaussian import Gaussian
from flower_ldp.mechanisms.signds import SelectionPlan, SignDS
from flower_ldp.mechanisms.signds_round import Report, SignDSRound
from flower_ldp.strategies.agreed_length import AgreedLength
from flower_ldp.strategies.guards import must_be
from flower_ldp.strategies.optimizers import ServerOptimizer
from flower_ldp.strategies.rounds import Metrics, TrainingRound
from flower_ldp.strategies.step_size import FixedStep, LearnedStep, Scaling, StepSize
from flower_ldp.strategies.training import TrainingOptions, TrainingStrategy
from flower_ldp.wire.extension import ExtensionReport


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
        Works on the privatized sum, at no cost in privacy. Its state belongs to one run. Steps of
        planned length, FixedLength and AgreedLength, need a FixedStep or none.
    **options
        As in :class:`~flower_ldp.strategies.training.TrainingStrategy`.

    Raises
    ------
    ValueError
        For a learned step with an optimizer of planned length: clients would pay for bits
        that set no length.
    TypeError
        If an argument is of another type, or there is none of its name.

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
        **options: Unpack[TrainingOptions],
    ) -> None:
        if step is None:
            step, server_optimizer = FixedStep(1.0), server_optimizer or AgreedLength()
        must_be(
            "step",
            step,
            (LearnedStep, FixedStep),
            "a LearnedStep or a FixedStep, as LearnedStep(MagRR(epsilon=1.0)) or FixedStep(0.1)",
        )
        super().__init__(mechanism, server_optimizer, **options)
        if step.magnitude is not None and self._sets_length:
            raise ValueError(
                "steps of planned length ignore a learned size: clients would pay "
                f"epsilon {step.magnitude.epsilon:g} a round for a bit that is never used; "
                "leave the step out, or pass another server optimizer"
            )
        self.step_size = StepSize(step, scaling)
        self.scaling = scaling
        self.callbacks.append(self.step_size)
        self._planned: set[int] = set()

    @property
    def _sets_length(self) -> bool:
        return self.server_optimizer is not None and self.server_optimizer.sets_length

    def _asked(self, entries: int | None, participation: float = 1.0) -> SignDSRound:
        mechanism = self.mechanism if entries is None else self.mechanism.sized(entries)
        return SignDSRound(mechanism, *(self.step_size.question(participation) or ()))

    def _next(self, entries: int, participation: float) -> SignDSRound:
        # That the top set is small is said by the mechanism as it was given, and once.
        self.mechanism.plan(entries, quiet=entries in self._planned)
        self._planned.add(entries)
        asked = self._asked(entries, participation)
        self.step_size.check(_selection(asked, entries))
        return asked

    def _total(self, current: TrainingRound, reports: Iterable[Report]) -> NDArray[Any]:
        return super()._total(current, self.step_size.counted(reports))

    def _estimate(
        self, current: TrainingRound, total: NDArray[Any], reports: int
    ) -> NDArray[np.float32]:
        asked: SignDSRound = current.proposal.mechanism
        plan = _selection(asked, current.layout.entries)
        factor = self.step_size.factor(reports, plan, asked=asked.magnitude is not None)
        return np.float32(factor) * total.astype(np.float32)

    def _description(self) -> Iterator[str]:
        yield from super()._description()
        yield f"Scaling: {self.scaling}"
        if self._sets_length:
            yield "Step: only the direction of the sum counts"
        elif self.step_size.estimate is None:
            yield (
                "Step: fixed rate; to learn it from one private bit per client, set sign_mag_eps "
                "in the configuration or pass step=LearnedStep(MagRR(epsilon=...))"
            )
        else:
            yield f"Step: learned by MagRR from {self.step_size.estimate}"

    def step_rule(self) -> str:
        """Return how the model is moved."""
        rule = "learned by MagRR" if self.step_size.estimate else "fixed rate"
        if self.server_optimizer is None:
            return rule
        told = self.server_optimizer.describe()
        return told if self._sets_length else f"{rule}, {told}"

    def plan(self) -> partial[SelectionPlan]:
        """Return the mechanism's plan, without its warning."""
        return partial(self.mechanism.plan, quiet=True)


def _selection(asked: SignDSRound, entries: int) -> SelectionPlan:
    return asked.selection.plan(entries, quiet=True)


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
    **options
        As in :class:`~flower_ldp.strategies.training.TrainingStrategy`.

    Raises
    ------
    TypeError
        If an argument is of another type, or there is none of its name.

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
        **options: Unpack[TrainingOptions],
    ) -> None:
        optimizer = AgreedLength() if server_optimizer is None else server_optimizer
        super().__init__(mechanism, optimizer, **options)
        self._rounds: int | None = None

    def _asked(self, entries: int | None, participation: float = 1.0) -> Codeword:
        return self.mechanism if entries is None else self.mechanism.sized(entries)

    def _next(self, entries: int, participation: float) -> Codeword:
        # Rounds count on from what the pool remembers: earlier ones were no more than it asked.
        if self._rounds is None:
            self._rounds = 0 if self.pool is None else sum(self.pool.asked().values())
        seed = (self.mechanism.seed + self._rounds) % MOST_SEED
        self._rounds += 1
        return replace(self._asked(entries), seed=seed)

    def _estimate(
        self, current: TrainingRound, total: NDArray[Any], reports: int
    ) -> NDArray[np.float64]:
        plan = self.mechanism.plan(current.layout.entries)
        mean: NDArray[np.float64] = total / (reports * plan.projection)
        return mean

    def _metrics(self, current: TrainingRound, reports: int) -> Metrics:
        plan = self.mechanism.plan(current.layout.entries)
        return {"expected-cosine": plan.cosine_of_sum(reports)}


class GaussianStrategy(TrainingStrategy[Gaussian]):
    """Federated training from updates that each client clipped and noised itself.

    An ordinary Flower strategy: sampling, ``start`` and ``evaluate_fn`` are those of FedAvg.
    Clients run :class:`~flower_ldp.clients.LdpMod` with
    :class:`~flower_ldp.clients.GaussianRelease`. The model moves by the mean of the noised
    updates, each client counting the same, since numbers of examples do not arrive here. Metrics
    of a round have ``noise-deviation``, of an entry of the mean, besides. For a smaller bound on
    rounds that all use the same parameters than the sum that :meth:`privacy_spent` gives see
    :func:`flower_ldp.accounting.gaussian.composed_epsilon`.

    The arguments are those of :class:`~flower_ldp.strategies.training.TrainingStrategy`; the
    mechanism is a Gaussian, with epsilon and delta of a round, and the clip norm.

    Examples
    --------
    >>> from flower_ldp.mechanisms import Gaussian
    >>> strategy = GaussianStrategy(Gaussian(epsilon=8.0, delta=1e-6, clip_norm=0.5))
    """

    _mechanism_type = Gaussian
    _mechanism_example = "a Gaussian, as Gaussian(epsilon=8.0, delta=1e-6, clip_norm=0.5)"

    def _estimate(
        self, current: TrainingRound, total: NDArray[Any], reports: int
    ) -> NDArray[np.float64]:
        return self.mechanism.estimate(total, reports)

    def _metrics(self, current: TrainingRound, reports: int) -> Metrics:
        return {"noise-deviation": self.mechanism.deviation / reports**0.5}

    def _description(self) -> Iterator[str]:
        yield from super()._description()
        yield f"Noise of one client's entry: standard deviation {self.mechanism.deviation:.4g}"


class ExtensionStrategy(TrainingStrategy[Chosen]):
    """Federated training from the reports of a mechanism that is not of this package.

    An ordinary Flower strategy: sampling, ``start`` and ``evaluate_fn`` are those of FedAvg.
    Clients run :class:`~flower_ldp.clients.LdpMod` with
    :class:`~flower_ldp.clients.ExtensionRelease`, and their owners' policies allow the extension.
    The model moves by the mean of what the reports say. The guarantee is a claim of the extension's
    author; a client's ledger may charge more than is stated here, where its owner says so.

    The arguments are those of :class:`~flower_ldp.strategies.training.TrainingStrategy`; the
    mechanism is the extension with the parameters of the run (:meth:`Extension.chosen
    <flower_ldp.extensions.Extension.chosen>`).
    """

    _mechanism_type = Chosen
    _mechanism_example = "an extension's parameters, as extension.chosen(epsilon=1.0)"

    def _asked(self, entries: int | None, participation: float = 1.0) -> ExtensionReport:
        name, setting = self.mechanism.extension.name, self.mechanism.setting
        price = name, setting.epsilon, setting.delta
        if entries is None:  # what a report costs is known before its length
            return ExtensionReport(*price, 1, setting.options)
        made = self.mechanism.mechanism(entries)
        return LoadedReport(*price, made.report_bytes, setting.options, made=made)

    def _description(self) -> Iterator[str]:
        name = self.mechanism.extension.name
        yield f"{name}, an extension: its guarantee, and the cost below, is its author's claim"


@dataclass(frozen=True)
class LoadedReport(ExtensionReport):
    """An extension's report for the server, which reads it by the extension's own code.

    Parameters
    ----------
    made : ExtensionMechanism
        For the entries of a round.
    """

    made: ExtensionMechanism = field(kw_only=True)

    def decode(self, data: bytes, dimension: int) -> NDArray[np.float64]:  # type: ignore[override]
        """Return what a report says of the update.

        Raises
        ------
        WireError
            If the extension cannot read it, or says what is no finite update.
        """
        report = super().decode(data, dimension)
        try:
            found = np.asarray(self.made.estimate(report), dtype=np.float64)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # whatever another package's code makes of these bytes
            raise WireError("report", f"{type(error).__name__}: {error}") from error
        if found.shape != (dimension,) or not np.isfinite(found).all():
            raise WireError("report", f"the extension's estimate has shape {found.shape}")
        return found
