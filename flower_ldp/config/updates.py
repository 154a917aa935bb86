"""The sections ``signds``, ``codeword`` and ``dp_encrypt``: how updates are protected.

A section of a server optimizer has the fields of the optimizer's dataclass, with their types and
defaults, and is told by its ``kind``.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import MISSING, fields
from functools import reduce
from operator import or_
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Literal,
    TypeAlias,
    Unpack,
    get_type_hints,
)

from pydantic import BeforeValidator, Field, create_model, model_validator

from flower_ldp.clients import CodewordRelease, GaussianRelease, SignDSRelease, UpdateRelease
from flower_ldp.mechanisms.codeword import Codeword
from flower_ldp.mechanisms.gaussian import Gaussian
from flower_ldp.mechanisms.hadamard import Subspace
from flower_ldp.mechanisms.magrr import MagRR
from flower_ldp.mechanisms.signds import SignDS
from flower_ldp.privacy import PrivacyEvent
from flower_ldp.shuffle import Analyzer
from flower_ldp.shuffle.remote import ADDRESS
from flower_ldp.shuffle.sealing import SIGNER
from flower_ldp.strategies import (
    Adagrad,
    Adam,
    AgreedLength,
    CodewordStrategy,
    FixedLength,
    FixedStep,
    GaussianStrategy,
    LearnedStep,
    Momentum,
    ServerOptimizer,
    SignDSStrategy,
    Yogi,
)
from flower_ldp.strategies.named import Scaling
from flower_ldp.strategies.training import TrainingOptions, TrainingStrategy
from flower_ldp.wire.layout import patterns_of
from flower_ldp.yaml_source import Section, declared, interval, matching, misfit


class OptimizerSection(Section):
    """A server optimizer, by its ``kind``."""

    optimizer: ClassVar[type[Any]]

    def build(self) -> ServerOptimizer:
        """Return the optimizer, with fresh state."""
        built: ServerOptimizer = self.optimizer(**self.model_dump(exclude={"kind"}))
        return built


def _section(kind: str, optimizer: type[Any]) -> type[OptimizerSection]:
    types, own = get_type_hints(optimizer), {}
    for one in fields(optimizer):
        if not one.name.startswith("_"):
            default = ... if one.default is MISSING else one.default
            own[one.name] = (Annotated[types[one.name], declared(optimizer, one.name)], default)
    named: Any = {"kind": (Literal[kind], ...), **own}
    section = create_model(optimizer.__name__, __base__=OptimizerSection, **named)
    section.optimizer = optimizer
    return section


KINDS: Mapping[str, type[OptimizerSection]] = {
    "momentum": _section("momentum", Momentum),
    "fixed_length": _section("fixed_length", FixedLength),
    "agreed_length": _section("agreed_length", AgreedLength),
    "adam": _section("adam", Adam),
    "yogi": _section("yogi", Yogi),
    "adagrad": _section("adagrad", Adagrad),
}
if TYPE_CHECKING:
    OptimizerConfig: TypeAlias = OptimizerSection
else:
    #: Any of them, told apart by its ``kind``.
    OptimizerConfig = Annotated[reduce(or_, KINDS.values()), Field(discriminator="kind")]


class SubspaceConfig(Section):
    """A public subspace that a run moves in.

    Parameters
    ----------
    dimension : int
        k, at most the weights of what is trained.
    seed : int
        Which subspace of that dimension.
    """

    dimension: Annotated[int, declared(Subspace, "dimension")]
    seed: Annotated[int, declared(Subspace, "seed")] = 0

    def build(self) -> Subspace:
        """Return the subspace, for a strategy's ``subspace=``."""
        return Subspace(self.dimension, self.seed)


def _patterns(value: object) -> object:
    with suppress(TypeError, ValueError):
        found = patterns_of(value)  # type: ignore[arg-type]  # whatever the file says
        if found is not None:
            return found
    raise misfit("must be a name or pattern of arrays, or a list")


#: A name or a pattern of arrays, or a list of them, as a tuple.
Patterns: TypeAlias = Annotated[tuple[str, ...], BeforeValidator(_patterns)]


class UpdateSection(Section):
    """What the sections of training have in common: which part of the model is trained.

    Parameters
    ----------
    trainable : str or list of str, optional
        Names or patterns of the arrays that are trained; all by default.
    subspace : mapping, optional
        ``dimension`` and ``seed`` of the public subspace that the run moves in.
    """

    #: What lets reports of this mechanism out of a client, and of no other.
    release: ClassVar[type[UpdateRelease]]

    trainable: Patterns | None = None
    subspace: SubspaceConfig | None = None

    @abstractmethod
    def mechanism(self) -> SignDS | Codeword | Gaussian:
        """Return the mechanism; ValueError if a value is outside its intervals."""

    def events(self) -> tuple[PrivacyEvent, ...]:
        """Return what a report costs one client in a round."""
        return self.mechanism().events()

    def server_optimizer(self) -> ServerOptimizer | None:
        """Return the server optimizer with fresh state, if there is one."""
        return None

    def planned_rounds(self) -> int | None:
        """Return the rounds that the server optimizer plans, if it plans any."""
        optimizer = self.server_optimizer()
        return optimizer.rounds if isinstance(optimizer, FixedLength) else None

    def public_subspace(self) -> Subspace | None:
        """Return the subspace, for a strategy's ``subspace=``; None if there is none."""
        return None if self.subspace is None else self.subspace.build()

    @abstractmethod
    def strategy(self, **options: Unpack[TrainingOptions]) -> TrainingStrategy[Any]:
        """Return the strategy of this section with its mechanism, optimizer and step."""


class SignDSConfig(UpdateSection):
    """The ``signds`` section; further fields as in :class:`UpdateSection`.

    Parameters
    ----------
    sign_k, sign_eps, sign_thr_ratio, sign_dim_out
        Fraction of dimensions that count as largest; epsilon of the selection, per round
        and client; least expected fraction of true top dimensions in a report; reported
        dimensions, 0 to choose them. ``sign_k: null`` chooses both sizes by what a report is
        worth, and leaves the ratio out.
    sign_global_lr : float
        Fixed rate. Used without ``sign_mag_eps``, and below ``sign_min_participation``.
    sign_mag_eps : float, optional
        Epsilon of the magnitude bit, per round and client: without it the rate is fixed.
        Refused with ``kind: fixed_length`` and ``kind: agreed_length``, which ignore what the
        bits tell.
    sign_mag_initial, sign_mag_significance, sign_mag_regrow_after
        MagRR's first estimate; how sure a majority must be, in standard deviations;
        settled rounds after which growth is probed again. The last two are 0 as published.
    sign_min_participation : float
        Participation below which the fixed rate is used.
    sign_scaling : {"published", "unbiased"}
        How the sum of signs is scaled.
    sign_server_optimizer : mapping, optional
        ``kind`` is ``momentum``, ``fixed_length``, ``agreed_length``, ``adam``, ``yogi`` or
        ``adagrad``; and the fields of that kind.
    """

    release = SignDSRelease

    sign_k: Annotated[float, declared(SignDS, "k")] | None = 0.01
    sign_eps: Annotated[float, declared(SignDS, "epsilon")] = 100.0
    sign_thr_ratio: Annotated[float, declared(SignDS, "threshold_ratio")] = 0.6
    sign_global_lr: Annotated[float, declared(FixedStep, "global_lr")] = 0.1
    sign_dim_out: Annotated[int, interval("[0, 50]", int)] = 0
    sign_mag_eps: Annotated[float, declared(MagRR, "epsilon")] | None = None
    sign_mag_initial: Annotated[float, declared(MagRR, "initial_estimate")] = 2.0**-10
    sign_mag_significance: Annotated[float, declared(MagRR, "significance")] = 2.3
    sign_mag_regrow_after: Annotated[int, declared(MagRR, "regrow_after")] = 5
    sign_min_participation: Annotated[float, declared(LearnedStep, "min_participation")] = 0.05
    sign_scaling: Scaling = "published"
    sign_server_optimizer: OptimizerConfig | None = None

    @model_validator(mode="after")
    def _magnitude_bit_has_a_use(self) -> SignDSConfig:
        planned = isinstance(self.server_optimizer(), (FixedLength, AgreedLength))
        if self.sign_mag_eps is not None and planned:
            wanted = "must be left out with planned steps, which ignore what the bit tells"
            raise misfit(wanted, "sign_mag_eps")
        return self

    def mechanism(self) -> SignDS:
        """Return the dimension selection."""
        return SignDS(self.sign_eps, self.sign_k, self.sign_thr_ratio, self.sign_dim_out)

    def magnitude(self) -> MagRR | None:
        """Return what the magnitude bit goes through, if one is asked for."""
        if self.sign_mag_eps is None:
            return None
        return MagRR(
            self.sign_mag_eps,
            self.sign_mag_initial,
            self.sign_mag_significance,
            self.sign_mag_regrow_after,
        )

    def events(self) -> tuple[PrivacyEvent, ...]:
        """Return the cost of the selection and of the bit, if one is asked for."""
        magnitude = self.magnitude()
        return (*self.mechanism().events(), *(() if magnitude is None else magnitude.events()))

    def step(self) -> LearnedStep | FixedStep:
        """Return the step rule: learned if ``sign_mag_eps`` is given, else fixed."""
        fixed, magnitude = FixedStep(self.sign_global_lr), self.magnitude()
        if magnitude is None:
            return fixed
        return LearnedStep(magnitude, fixed, self.sign_min_participation)

    def server_optimizer(self) -> ServerOptimizer | None:
        """Return the server optimizer with fresh state, if one is configured."""
        chosen = self.sign_server_optimizer
        return None if chosen is None else chosen.build()

    def strategy(self, **options: Unpack[TrainingOptions]) -> SignDSStrategy:
        """Return the strategy of this section with its mechanism, optimizer and step."""
        return SignDSStrategy(
            self.mechanism(),
            self.step(),
            scaling=self.sign_scaling,
            server_optimizer=self.server_optimizer(),
            **options,
        )


class AnalyzerConfig(Section):
    """The analyzer that adds up sealed reports, as :class:`~flower_ldp.shuffle.Analyzer`."""

    url: Annotated[str, matching(ADDRESS, "must be https://HOST:PORT")]
    key: Annotated[str, matching(SIGNER, "must be 'ed25519:' and 64 hexadecimal digits")]
    token: str
    certificates: str | None = None

    def build(self) -> Analyzer:
        """Return the analyzer, for a strategy's ``analyzer=``."""
        return Analyzer(**self.model_dump())


class CodewordConfig(UpdateSection):
    """The ``codeword`` section; used if ``encrypt_train_type`` is ``CODEWORD``.

    Parameters
    ----------
    codeword_eps : float
        Epsilon of a report, per round and client.
    codeword_favoured : int
        K, how many codewords are favoured; 0 to choose it by what a report is then worth.
    codeword_rotations : int
        How many codes the reports of a round are spread over.
    codeword_blocks : int
        Parts of the update with rows of their own.
    codeword_analyzer : mapping, optional
        ``url``, ``key``, ``token`` and ``certificates`` of the analyzer of shuffled reports.
    codeword_server_optimizer : mapping, optional
        ``kind`` is ``momentum``, ``fixed_length``, ``agreed_length`` (the default), ``adam``,
        ``yogi`` or ``adagrad``; and the fields of that kind.
    """

    release = CodewordRelease

    codeword_eps: Annotated[float, declared(Codeword, "epsilon")]
    codeword_favoured: Annotated[int, declared(Codeword, "favoured")] = 0
    codeword_rotations: Annotated[int, declared(Codeword, "rotations")] = 64
    codeword_blocks: Annotated[int, declared(Codeword, "blocks")] = 1
    codeword_server_optimizer: OptimizerConfig | None = None
    codeword_analyzer: AnalyzerConfig | None = None

    def mechanism(self) -> Codeword:
        """Return the mechanism, for :class:`~flower_ldp.strategies.CodewordStrategy`."""
        return Codeword(
            self.codeword_eps,
            self.codeword_favoured,
            self.codeword_rotations,
            blocks=self.codeword_blocks,
        )

    def server_optimizer(self) -> ServerOptimizer:
        """Return the server optimizer with fresh state."""
        chosen = self.codeword_server_optimizer
        return AgreedLength() if chosen is None else chosen.build()

    def strategy(self, **options: Unpack[TrainingOptions]) -> CodewordStrategy:
        """Return the strategy of this section with its mechanism and optimizer."""
        found = self.codeword_analyzer
        more = {} if found is None else {"analyzer": found.build()}
        return CodewordStrategy(self.mechanism(), self.server_optimizer(), **more, **options)


class DPEncryptConfig(UpdateSection):
    """The published ``dp_encrypt`` section; used if ``encrypt_train_type`` is ``DP_ENCRYPT``.

    Parameters
    ----------
    dp_eps, dp_delta : float
        Of a round, per client. For ``DP_ENCRYPT`` in [0.001, 100] and [1e-18, 0.5].
    dp_norm_clip : float
        Length to which longer updates are scaled. For ``DP_ENCRYPT`` in [1e-30, 1e30].
    """

    release = GaussianRelease

    dp_eps: Annotated[float, interval("(0, inf)")] = 50.0
    dp_delta: Annotated[float, interval("(0, 1)")] = 0.01
    dp_norm_clip: Annotated[float, interval("(0, inf)")] = 1.0

    def mechanism(self) -> Gaussian:
        """Return the mechanism, for :class:`~flower_ldp.strategies.GaussianStrategy`.

        Raises
        ------
        ValueError
            If a value is outside the mechanism's interval.
        """
        return Gaussian(self.dp_eps, self.dp_delta, self.dp_norm_clip)

    def strategy(self, **options: Unpack[TrainingOptions]) -> GaussianStrategy:
        """Return the strategy of this section with its mechanism."""
        return GaussianStrategy(self.mechanism(), **options)
