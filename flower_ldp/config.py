"""YAML configuration of training and evaluation, in the shape that MindSpore Federated uses.

An ``encrypt`` section of an existing configuration loads unchanged::

    encrypt:
      encrypt_train_type: SIGNDS
      signds:
        sign_k: 0.01
        sign_eps: 100
        sign_thr_ratio: 0.6
        sign_global_lr: 0.1
        sign_dim_out: 0

This package adds optional fields that the published shape lacks: ``sign_mag_eps`` above
all, the epsilon of the magnitude bit. It has no default: without it the rate is fixed.
``laplace_eval`` and ``unsupervised`` configure protected evaluation. ``laplace_eval_eps`` is
what the published shape means by it: noise of scale 1 / laplace_eval_eps, with a true epsilon of
twice that per row, since rows on the simplex are up to 2 apart.

Unknown fields, wrong types and values outside their intervals are errors that name the
file, the line and the field.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AliasChoices, Field, model_validator
from pydantic_core import PydanticCustomError

from flower_ldp.mechanisms.bounded_mean import BoundedMean
from flower_ldp.mechanisms.gaussian import Gaussian
from flower_ldp.mechanisms.laplace import EPSILON_WARNED, Laplace, NoProtectionWarning
from flower_ldp.mechanisms.laplace_plan import LaplacePlan
from flower_ldp.mechanisms.magrr import MagRR
from flower_ldp.mechanisms.signds import SignDS
from flower_ldp.strategies import FixedLength, FixedStep, LearnedStep, Momentum, ServerOptimizer
from flower_ldp.strategies.step_size import Scaling
from flower_ldp.yaml_source import Section, YamlFormat, interval


class MomentumConfig(Section):
    """Server momentum."""

    kind: Literal["momentum"]
    momentum: Annotated[float, interval("[0, 1)")] = 0.9
    learning_rate: Annotated[float, interval("(0, inf)")] = 1.0

    def build(self) -> ServerOptimizer:
        """Return the optimizer, with fresh state."""
        return Momentum(self.momentum, self.learning_rate)


class FixedLengthConfig(Section):
    """Server steps of planned length."""

    kind: Literal["fixed_length"]
    length: Annotated[float, interval("(0, inf)")]
    rounds: Annotated[int, interval("[1, inf)", int)]
    momentum: Annotated[float, interval("[0, 1)")] = 0.9
    final_fraction: Annotated[float, interval("[0, 1]")] = 0.0

    def build(self) -> ServerOptimizer:
        """Return the optimizer, with fresh state."""
        return FixedLength(self.length, self.rounds, self.momentum, self.final_fraction)


class SignDSConfig(Section):
    """The ``signds`` section.

    Parameters
    ----------
    sign_k, sign_eps, sign_thr_ratio, sign_dim_out
        Fraction of dimensions that count as largest; epsilon of the selection, per round
        and client; least expected fraction of true top dimensions in a report; reported
        dimensions, 0 to choose them.
    sign_global_lr : float
        Fixed rate. Used without ``sign_mag_eps``, and below ``sign_min_participation``.
    sign_mag_eps : float, optional
        Epsilon of the magnitude bit, per round and client: without it the rate is fixed.
    sign_mag_initial, sign_mag_significance, sign_mag_regrow_after
        MagRR's first estimate; standard deviations that a majority must stand out by;
        settled rounds after which growth is probed again. The last two are 0 as published.
    sign_min_participation : float
        Participation below which the fixed rate is used.
    sign_scaling : {"published", "unbiased"}
        How the sum of signs is scaled.
    sign_server_optimizer : mapping, optional
        ``kind: momentum`` or ``kind: fixed_length`` with its fields.
    """

    sign_k: Annotated[float, interval("(0, 0.25]")] = 0.01
    sign_eps: Annotated[float, interval("(0, 100]")] = 100.0
    sign_thr_ratio: Annotated[float, interval("[0.5, 1]")] = 0.6
    sign_global_lr: Annotated[float, interval("(0, inf)")] = 0.1
    sign_dim_out: Annotated[int, interval("[0, 50]", int)] = 0
    sign_mag_eps: Annotated[float, interval("(0, 100]")] | None = None
    sign_mag_initial: Annotated[float, interval("[1e-30, 1e30]")] = 2.0**-10
    sign_mag_significance: Annotated[float, interval("[0, inf)")] = 2.0
    sign_mag_regrow_after: Annotated[int, interval("[0, inf)", int)] = 5
    sign_min_participation: Annotated[float, interval("[0, 1]")] = 0.05
    sign_scaling: Scaling = "published"
    sign_server_optimizer: (
        Annotated[MomentumConfig | FixedLengthConfig, Field(discriminator="kind")] | None
    ) = None

    def mechanism(self) -> SignDS:
        """Return the dimension selection."""
        return SignDS(self.sign_eps, self.sign_k, self.sign_thr_ratio, self.sign_dim_out)

    def step(self) -> LearnedStep | FixedStep:
        """Return the step rule: learned if ``sign_mag_eps`` is given, else fixed."""
        fixed = FixedStep(self.sign_global_lr)
        if self.sign_mag_eps is None:
            return fixed
        magnitude = MagRR(
            self.sign_mag_eps,
            self.sign_mag_initial,
            self.sign_mag_significance,
            self.sign_mag_regrow_after,
        )
        return LearnedStep(magnitude, fixed, self.sign_min_participation)

    def server_optimizer(self) -> ServerOptimizer | None:
        """Return the server optimizer with fresh state, if one is configured."""
        chosen = self.sign_server_optimizer
        return None if chosen is None else chosen.build()


class MetricConfig(Section):
    """What one scalar metric goes through; epsilon per evaluation and client."""

    epsilon: Annotated[float, interval("[0.000001, 1000000]")]
    lower: Annotated[float, interval("(-inf, inf)")]
    upper: Annotated[float, interval("(-inf, inf)")]

    @model_validator(mode="after")
    def _bounds_are_in_order(self) -> MetricConfig:
        if not self.lower < self.upper:
            raise PydanticCustomError("bounds", "must be above lower", {"at": ("upper",)})
        return self


class LaplaceEvalConfig(Section):
    """The ``laplace_eval`` section.

    Parameters
    ----------
    laplace_eval_eps : float
        One over the scale of the noise, as published: half of the true epsilon per row.
    rows : int
        Rows that a client releases in an evaluation; each costs the epsilon.
    metrics : mapping of str to MetricConfig
        Scalar metrics that clients are asked for; others never leave.
    """

    laplace_eval_eps: Annotated[float, interval("[0.0000005, 500000]")] = 230_260.0
    rows: Annotated[int, interval("[1, 1048576]", int)] = 1
    metrics: Mapping[str, MetricConfig] = Field(default_factory=dict)

    @property
    def epsilon(self) -> float:
        """The true epsilon per row and client, by theorem."""
        return LaplacePlan.from_published(self.laplace_eval_eps).epsilon

    def mechanism(self, classes: int) -> Laplace:
        """Return the mechanism for rows of ``classes`` probabilities."""
        return Laplace(self.epsilon, classes, self.rows)

    def metric_mechanisms(self) -> dict[str, BoundedMean]:
        """Return the mechanism of each metric, by its name."""
        return {
            name: BoundedMean(metric.epsilon, metric.lower, metric.upper)
            for name, metric in self.metrics.items()
        }


class UnsupervisedConfig(Section):
    """The ``unsupervised`` section: how many clients score, and what the score is."""

    cluster_client_num: Annotated[int, interval("[1, inf)", int)] = 1_000
    eval_type: Literal["SILHOUETTE_SCORE", "CALINSKI_HARABASZ_SCORE"] = "SILHOUETTE_SCORE"


class DPEncryptConfig(Section):
    """The published ``dp_encrypt`` section; used if ``encrypt_train_type`` is ``DP_ENCRYPT``.

    Parameters
    ----------
    dp_eps, dp_delta : float
        Of a round, per client. For ``DP_ENCRYPT`` in [0.001, 100] and [1e-18, 0.5].
    dp_norm_clip : float
        Length to which longer updates are scaled. For ``DP_ENCRYPT`` in [1e-30, 1e30].
    """

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


#: Narrower than the published section's, which may stand unused beside ``signds``.
_DP_INTERVALS = {
    "dp_eps": "[0.001, 100]",
    "dp_delta": "[1e-18, 0.5]",
    "dp_norm_clip": "[1e-30, 1e30]",
}


class PwEncryptConfig(Section):
    """The published ``pw_encrypt`` section (secure aggregation): read, and not used."""

    share_secrets_ratio: Annotated[float, interval("(0, 1]")] = 1.0
    cipher_time_window: Annotated[int, interval("[0, inf)", int)] = 300_000
    reconstruct_secrets_threshold: Annotated[int, interval("[0, inf)", int)] = 2_000


class EncryptConfig(Section):
    """The ``encrypt`` section."""

    encrypt_train_type: Literal["SIGNDS", "DP_ENCRYPT", "NOT_ENCRYPT"] = Field(
        validation_alias=AliasChoices("encrypt_train_type", "encrypt_type")
    )
    signds: SignDSConfig = SignDSConfig()
    privacy_eval_type: Literal["NOT_ENCRYPT", "LAPLACE"] = "NOT_ENCRYPT"
    laplace_eval: LaplaceEvalConfig = LaplaceEvalConfig()
    dp_encrypt: DPEncryptConfig | None = None
    pw_encrypt: PwEncryptConfig | None = None

    @model_validator(mode="after")
    def _warn_of_no_protection(self) -> EncryptConfig:
        asked = self.laplace_eval
        if self.privacy_eval_type == "LAPLACE" and asked.epsilon > EPSILON_WARNED:
            warnings.warn(
                f"laplace_eval_eps = {asked.laplace_eval_eps:,g} is a true epsilon of "
                f"{asked.epsilon:,.10g} per row and client, and protects nothing",
                NoProtectionWarning,
                stacklevel=2,
            )
        return self

    @model_validator(mode="after")
    def _what_is_used_is_within_its_intervals(self) -> EncryptConfig:
        if self.encrypt_train_type == "DP_ENCRYPT":
            if self.dp_encrypt is None:
                raise PydanticCustomError("missing", "is missing", {"at": ("dp_encrypt",)})
            for field, ends in _DP_INTERVALS.items():
                low, high = (float(end) for end in ends[1:-1].split(", "))
                if not low <= getattr(self.dp_encrypt, field) <= high:
                    raise PydanticCustomError(
                        "interval",
                        "must be a number in {ends} for DP_ENCRYPT",
                        {"ends": ends, "at": ("dp_encrypt", field)},
                    )
        return self


class TrainConfig(Section):
    """A configuration file: an ``encrypt`` section, and how evaluation clusters."""

    encrypt: EncryptConfig
    unsupervised: UnsupervisedConfig = UnsupervisedConfig()


_FORMAT = YamlFormat(
    TrainConfig,
    synonyms={"encrypt_type": "encrypt_train_type"},
    tagged={"sign_server_optimizer": ("momentum", "fixed_length")},
)


def load_config(path: str | Path) -> TrainConfig:
    """Read a YAML configuration.

    Parameters
    ----------
    path : path-like
        The file.

    Raises
    ------
    ConfigError
        If the file cannot be read, is not YAML, or holds an unknown field, a wrong type or
        a value outside its interval. The text gives file, line and field of every error.
    """
    return _FORMAT.load(path)


def parse_config(text: str, *, source: str = "<text>") -> TrainConfig:
    """Parse a YAML configuration; see :func:`load_config`."""
    return _FORMAT.parse(text, source=source)
