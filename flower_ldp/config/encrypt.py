"""The ``encrypt`` section with protected evaluation, and the file that holds it."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AliasChoices, Field, model_validator

from flower_ldp.bounds import bounded_fields
from flower_ldp.config.updates import (
    KINDS,
    CodewordConfig,
    DPEncryptConfig,
    SignDSConfig,
    UpdateSection,
)
from flower_ldp.mechanisms.example_sums import BoundedMean
from flower_ldp.mechanisms.gaussian import Gaussian
from flower_ldp.mechanisms.laplace import EPSILON_WARNED, Laplace, LaplacePlan, NoProtectionWarning
from flower_ldp.strategies import Health
from flower_ldp.yaml_source import Section, YamlFormat, interval, misfit

#: Fields of ``dp_encrypt``, in the order of the mechanism's. Its intervals are narrower than the
#: published section's, which may stand unused beside ``signds``.
_DP_FIELDS = ("dp_eps", "dp_delta", "dp_norm_clip")


class MetricConfig(Section):
    """What one scalar metric goes through; epsilon per evaluation and client."""

    epsilon: Annotated[float, interval("[0.000001, 1000000]")]
    lower: Annotated[float, interval("(-inf, inf)")]
    upper: Annotated[float, interval("(-inf, inf)")]

    @model_validator(mode="after")
    def _bounds_are_in_order(self) -> MetricConfig:
        if not self.lower < self.upper:
            raise misfit("must be above lower", "upper")
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


class PwEncryptConfig(Section):
    """The published ``pw_encrypt`` section (secure aggregation): read, and not used."""

    share_secrets_ratio: Annotated[float, interval("(0, 1]")] = 1.0
    cipher_time_window: Annotated[int, interval("[0, inf)", int)] = 300_000
    reconstruct_secrets_threshold: Annotated[int, interval("[0, inf)", int)] = 2_000


class EncryptConfig(Section):
    """The ``encrypt`` section.

    Parameters
    ----------
    encrypt_train_type, privacy_eval_type
        What training and evaluation go through.
    signds, codeword, laplace_eval, dp_encrypt, pw_encrypt
        Their sections.
    health_eps : float, optional
        Epsilon of the health bit, per report and client; without it none is asked for.
    """

    encrypt_train_type: Literal["SIGNDS", "CODEWORD", "DP_ENCRYPT", "NOT_ENCRYPT"] = Field(
        validation_alias=AliasChoices("encrypt_train_type", "encrypt_type")
    )
    signds: SignDSConfig = SignDSConfig()
    codeword: CodewordConfig | None = None
    health_eps: Annotated[float, interval("[0.01, 100]")] | None = None
    privacy_eval_type: Literal["NOT_ENCRYPT", "LAPLACE"] = "NOT_ENCRYPT"
    laplace_eval: LaplaceEvalConfig = LaplaceEvalConfig()
    dp_encrypt: DPEncryptConfig | None = None
    pw_encrypt: PwEncryptConfig | None = None

    def health(self) -> Health | None:
        """Return what asks for health bits, for a strategy; None if none is asked for."""
        return None if self.health_eps is None else Health(self.health_eps)

    def training(self) -> UpdateSection | None:
        """Return the section that training goes by.

        Without protection that is the ``signds`` section, if the file has it: its sizes may be
        read by who trains; else None.
        """
        if self.encrypt_train_type == "DP_ENCRYPT":
            return self.dp_encrypt
        if self.encrypt_train_type == "CODEWORD":
            return self.codeword
        used = self.encrypt_train_type == "SIGNDS" or "signds" in self.model_fields_set
        return self.signds if used else None

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
        if self.encrypt_train_type == "CODEWORD" and self.codeword is None:
            raise misfit("is missing", "codeword")
        if self.encrypt_train_type == "DP_ENCRYPT":
            if self.dp_encrypt is None:
                raise misfit("is missing", "dp_encrypt")
            for field, (_, bounded, _) in zip(_DP_FIELDS, bounded_fields(Gaussian), strict=True):
                if not bounded.holds(getattr(self.dp_encrypt, field)):
                    wanted = f"must be a number in {bounded.interval} for DP_ENCRYPT"
                    raise misfit(wanted, "dp_encrypt", field)
        return self


class TrainConfig(Section):
    """A configuration file: an ``encrypt`` section, and how evaluation clusters.

    Parameters
    ----------
    fl_iteration_num : int, optional
        Rounds of the run.
    """

    encrypt: EncryptConfig
    unsupervised: UnsupervisedConfig = UnsupervisedConfig()
    fl_iteration_num: Annotated[int, interval("[1, inf)", int)] | None = None

    @model_validator(mode="after")
    def _rounds_agree(self) -> TrainConfig:
        section = self.encrypt.training()
        planned = None if section is None else section.planned_rounds()
        if None not in (planned, self.fl_iteration_num) and planned != self.fl_iteration_num:
            wanted = f"must be the optimizer's rounds, {planned}, or be left out"
            raise misfit(wanted, "fl_iteration_num")
        return self


_FORMAT = YamlFormat(
    TrainConfig,
    synonyms={"encrypt_type": "encrypt_train_type"},
    tagged=dict.fromkeys(("sign_server_optimizer", "codeword_server_optimizer"), tuple(KINDS)),
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
