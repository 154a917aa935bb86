"""The ``encrypt`` section with protected evaluation, the file that holds it, and a run from it."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Unpack

from flwr.app import ConfigRecord
from flwr.clientapp.typing import Mod
from flwr.serverapp.strategy import FedAvg, Strategy
from pydantic import AliasChoices, BeforeValidator, Field, model_validator

from flower_ldp.clients import (
    LdpMod,
    OwnerAuthorizer,
    ProtectedEvalRelease,
    Rehearsal,
    UnprotectedMod,
)
from flower_ldp.clients.unprotected import RAW_LEAVES
from flower_ldp.config.mindspore import HorizontalFile, told_elsewhere
from flower_ldp.config.updates import (
    KINDS,
    CodewordConfig,
    DPEncryptConfig,
    SignDSConfig,
    UpdateSection,
)
from flower_ldp.errors import ConfigError
from flower_ldp.mechanisms.base import NoProtectionWarning
from flower_ldp.mechanisms.example_sums import BoundedMean
from flower_ldp.mechanisms.gaussian import Gaussian
from flower_ldp.mechanisms.laplace import EPSILON_WARNED, Laplace, LaplacePlan
from flower_ldp.strategies import Health, ProtectedEvalStrategy
from flower_ldp.strategies.sampling import pool_of
from flower_ldp.strategies.training import TrainingOptions
from flower_ldp.yaml_source import Section, YamlFormat, interval, misfit, must_suit

_log = logging.getLogger("flower_ldp")
_PW_ENCRYPT = (
    "must be another type: PW_ENCRYPT is secure aggregation, whose server sees sums and not the "
    "reports that this package is for; Flower has it as SecAgg+"
)


def _in_capitals(value: object) -> object:
    found = value.upper() if isinstance(value, str) else value
    if found == "PW_ENCRYPT":
        raise misfit(_PW_ENCRYPT)
    return found


_Capitals = BeforeValidator(_in_capitals)
TrainType = Annotated[Literal["SIGNDS", "CODEWORD", "DP_ENCRYPT", "NOT_ENCRYPT"], _Capitals]
EvalType = Annotated[Literal["NOT_ENCRYPT", "LAPLACE"], _Capitals]
Score = Annotated[Literal["SILHOUETTE_SCORE", "CALINSKI_HARABASZ_SCORE", "NOT_EVAL"], _Capitals]


class MetricConfig(Section):
    """Bounds and noise of one scalar metric; epsilon per evaluation and client."""

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
        Rows of a client in an evaluation; each costs the epsilon.
    metrics : mapping of str to MetricConfig
        The scalar metrics that leave clients.
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
    """The ``unsupervised`` section: the number of scored clients, and the score."""

    cluster_client_num: Annotated[int, interval("[1, inf)", int)] = 1_000
    eval_type: Score = "SILHOUETTE_SCORE"


class PwEncryptConfig(Section):
    """The published ``pw_encrypt`` section (secure aggregation): read, and not used."""

    share_secrets_ratio: Annotated[float, interval("(0, 1]")] = 1.0
    cipher_time_window: Annotated[int, interval("[0, inf)", int)] = 300_000
    reconstruct_secrets_threshold: Annotated[int, interval("[0, inf)", int)] = 2_000


class EncryptConfig(Section):
    """The ``encrypt`` section.

    Parameters
    ----------
    encrypt_train_type, privacy_eval_type : str, optional
        The protection of training and evaluation, in upper or lower case. ``NOT_ENCRYPT`` is never
        a default: without a type there is no such messages' strategy.
    signds, codeword, laplace_eval, dp_encrypt, pw_encrypt
        Their sections.
    health_eps : float, optional
        Epsilon of the health bit, per report and client; no bit without it.
    """

    encrypt_train_type: TrainType | None = Field(
        default=None, validation_alias=AliasChoices("encrypt_train_type", "encrypt_type")
    )
    signds: SignDSConfig = SignDSConfig()
    codeword: CodewordConfig | None = None
    health_eps: Annotated[float, interval("[0.01, 100]")] | None = None
    privacy_eval_type: EvalType | None = None
    laplace_eval: LaplaceEvalConfig = LaplaceEvalConfig()
    dp_encrypt: DPEncryptConfig = DPEncryptConfig()
    pw_encrypt: PwEncryptConfig | None = None

    def health(self) -> Health | None:
        """Return the strategy's request for health bits, or None."""
        return None if self.health_eps is None else Health(self.health_eps)

    def protection(self) -> UpdateSection | None:
        """Return the section that protects training; None for ``NOT_ENCRYPT`` or no type."""
        if self.encrypt_train_type == "DP_ENCRYPT":
            return self.dp_encrypt
        if self.encrypt_train_type == "CODEWORD":
            return self.codeword
        return self.signds if self.encrypt_train_type == "SIGNDS" else None

    def planned_rounds(self) -> int | None:
        """Return the rounds that the server optimizer plans, or None."""
        section = self.protection()
        return None if section is None else section.planned_rounds()

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
        kind = self.encrypt_train_type
        if kind == "CODEWORD" and self.codeword is None:
            raise misfit("is missing", "codeword")
        if kind == "DP_ENCRYPT":
            # The published section may stand unused beside ``signds``, with wider intervals.
            section = self.dp_encrypt.model_dump(include={"dp_eps", "dp_delta", "dp_norm_clip"})
            must_suit(kind, Gaussian, section, "dp_encrypt")
        return self


class TrainConfig(HorizontalFile):
    """A configuration file: an ``encrypt`` section, and the clustering of evaluation.

    Parameters
    ----------
    round, client : sections, optional
        As in MindSpore Federated: :mod:`flower_ldp.config.mindspore`.
    fl_iteration_num : int, optional
        Rounds of the run.
    """

    encrypt: EncryptConfig = EncryptConfig()
    unsupervised: UnsupervisedConfig = UnsupervisedConfig()
    fl_iteration_num: Annotated[int, interval("[1, inf)", int)] | None = None

    @model_validator(mode="after")
    def _is_a_configuration(self) -> TrainConfig:
        if not self.model_fields_set & {"encrypt", "unsupervised"}:
            raise misfit("is missing", "encrypt")
        return self

    @model_validator(mode="after")
    def _rounds_agree(self) -> TrainConfig:
        planned = self.encrypt.planned_rounds()
        if None not in (planned, self.fl_iteration_num) and planned != self.fl_iteration_num:
            wanted = f"must be the optimizer's rounds, {planned}, or be left out"
            raise misfit(wanted, "fl_iteration_num")
        return self


FORMAT = YamlFormat(
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
        If the file cannot be read, is not YAML, or holds an unknown field, a wrong type or a value
        outside its interval. The text gives file, line and field of every error.
    """
    return FORMAT.load(path)


#: Options that training and evaluation share.
_OF_BOTH = (
    "answers_per_client",
    "health",
    "min_available_nodes",
    "min_evaluate_nodes",
    "arrayrecord_key",
    "configrecord_key",
)
#: Less than one client of any federation.
_NO_FRACTION = 1e-12


@dataclass(frozen=True)
class ConfiguredRun:
    """Strategy, mods and rounds of a file; :func:`from_config` makes it.

    Parameters
    ----------
    config : TrainConfig
        The values of the file.
    """

    config: TrainConfig

    @property
    def rounds(self) -> int | None:
        """Number of rounds, from ``fl_iteration_num`` or a plan of steps; else None."""
        return self.config.fl_iteration_num or self.config.encrypt.planned_rounds()

    @property
    def evaluates(self) -> bool:
        """Whether the file asks for protected evaluation."""
        scored = self.config.unsupervised.eval_type != "NOT_EVAL"
        return self.config.encrypt.privacy_eval_type == "LAPLACE" and scored

    @property
    def evaluates_raw(self) -> bool:
        """Whether the file asks for evaluation without protection."""
        scored = self.config.unsupervised.eval_type != "NOT_EVAL"
        return self.config.encrypt.privacy_eval_type == "NOT_ENCRYPT" and scored

    def train_config(self) -> ConfigRecord:
        """Return the ``client`` section for ``start(train_config=)``.

        Its fields are ``local-epochs``, ``batch-size`` and ``learning-rate``, as far as given.
        """
        return ConfigRecord(dict(self.config.client.train_config()))

    def training(self, **options: Unpack[TrainingOptions]) -> Strategy:
        """Return a new strategy that trains; FedAvg for ``NOT_ENCRYPT``.

        Parameters
        ----------
        **options
            As in :class:`~flower_ldp.strategies.training.TrainingStrategy`, without the file's own:
            ``health``, ``trainable``, ``subspace``, and with ``start_fl_job_threshold`` the number
            of clients. For ``NOT_ENCRYPT`` as in FedAvg.

        Raises
        ------
        ConfigError
            If the file has no ``encrypt_train_type``.
        TypeError
            If an option stands in the file too.
        """
        encrypt = self.config.encrypt
        if encrypt.encrypt_train_type is None:
            raise ConfigError(
                "encrypt_train_type is missing: the published default, NOT_ENCRYPT, sends raw "
                "updates, so it must be written; or write SIGNDS, CODEWORD or DP_ENCRYPT"
            )
        section = encrypt.protection()
        here: Any = self._clients()
        if section is not None:
            here["health"], here["trainable"] = encrypt.health(), section.trainable
            here["subspace"] = section.public_subspace()
        twice = [name for name, value in here.items() if value is not None and name in options]
        if twice:
            raise TypeError(f"{twice[0]} is given by the configuration file: leave it out here")
        if self.evaluates_raw:
            _log.warning(RAW_LEAVES["evaluate"])
        merged: Any = {"fraction_evaluate": float(self.evaluates_raw), **here, **options}
        if section is None:
            _log.warning(RAW_LEAVES["train"])
            return FedAvg(**merged)
        return section.strategy(**merged)

    def _clients(self) -> dict[str, float | int]:
        """Return how many clients a round asks, where the file says it."""
        number = self.config.round.start_fl_job_threshold
        if number is None:
            return {}
        # Flower asks the larger of the fraction and the number; of a fraction of 0 nobody.
        return {
            "fraction_train": _NO_FRACTION,
            "min_train_nodes": number,
            "min_available_nodes": number,
            "min_evaluate_nodes": min(2, number),
        }

    def strategy(
        self, *, classes: int | None = None, **options: Unpack[TrainingOptions]
    ) -> Strategy:
        """Return training and, for ``privacy_eval_type: LAPLACE``, protected evaluation.

        A file with protected evaluation alone asks for no training; its gate refuses training.

        Parameters
        ----------
        classes : int, optional
            Probabilities in a predicted row; for protected evaluation only.
        **options
            As in :meth:`training`. Answers, health, nodes and records hold for evaluation too:
            ``answers_per_client`` counts both.

        Raises
        ------
        ConfigError
            As :meth:`training`, if the file asks for no protected evaluation either.
        TypeError
            If an option stands in the file too, or ``classes`` is missing or not used.
        """
        encrypt = self.config.encrypt
        if self.evaluates != (classes is not None):
            raise TypeError(
                "classes= is for privacy_eval_type LAPLACE, and only there; the file says "
                f"{encrypt.privacy_eval_type}, got classes={classes}"
            )
        if classes is None:
            return self.training(**options)
        both: Any = dict(options)
        if "answers_per_client" in options:
            both["answers_per_client"] = pool_of(options["answers_per_client"])
        if encrypt.encrypt_train_type is None:
            training: Strategy = FedAvg(fraction_train=0.0, fraction_evaluate=0.0)
        else:
            protected = encrypt.protection() is not None
            training = self.training(**(both if protected else options))
        shared: Any = {"health": encrypt.health()}
        given = {**self._clients(), **both}
        shared.update((name, given[name]) for name in _OF_BOTH if name in given)
        score: Any = self.config.unsupervised.eval_type
        return ProtectedEvalStrategy(
            training,
            encrypt.laplace_eval.mechanism(classes),
            score=score,
            metrics=encrypt.laplace_eval.metric_mechanisms(),
            cluster_client_num=self.config.unsupervised.cluster_client_num,
            **shared,
        )

    def client_mods(self, rehearsal: Rehearsal | None = None) -> list[Mod]:
        """Return the mods of the ClientApp: one, which releases what the file asks for.

        The gate releases reports of the file's mechanism alone. ``NOT_ENCRYPT`` lets raw replies
        leave, if the data owner's policy allows it by name.

        Parameters
        ----------
        rehearsal : Rehearsal, optional
            The app's work on public sample data.
        """
        encrypt = self.config.encrypt
        section = encrypt.protection()
        owner = OwnerAuthorizer()
        gate = LdpMod(
            train=None if section is None else section.release(trainable=section.trainable),
            evaluate=ProtectedEvalRelease() if encrypt.privacy_eval_type == "LAPLACE" else None,
            authorizer=owner,
            rehearsal=rehearsal,
        )
        raw = ("train",) * (encrypt.encrypt_train_type == "NOT_ENCRYPT")
        raw += ("evaluate",) * self.evaluates_raw
        return [UnprotectedMod(raw, gate, owner) if raw else gate]


def from_config(path: str | Path) -> ConfiguredRun:
    """Read a YAML file of training and evaluation; raises as :func:`load_config` does.

    Examples
    --------
    >>> run = from_config("configs/signds.yaml")  # doctest: +SKIP
    >>> strategy, mods = run.strategy(fraction_train=0.5), run.client_mods()  # doctest: +SKIP
    """
    config = load_config(path)
    for name, where in told_elsewhere(config):
        _log.info("%s: %s is not used; Flower has it in %s", path, name, where)
    return ConfiguredRun(config)
