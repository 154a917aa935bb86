"""YAML configuration of SignDS training, in the shape that MindSpore Federated uses.

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
Unknown fields, wrong types and values outside their intervals are errors that name the
file, the line and the field.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, StrictInt, ValidationError

from flower_ldp.errors import ConfigError
from flower_ldp.mechanisms.magrr import MagRR
from flower_ldp.mechanisms.signds import SignDS
from flower_ldp.strategies import (
    FixedLength,
    FixedStep,
    LearnedStep,
    Momentum,
    ServerOptimizer,
)
from flower_ldp.strategies.step_size import Scaling


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, populate_by_name=True)


# Strict floats refuse "0.1" and true; YAML integers are floats where a float is wanted.
_Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]


class MomentumConfig(_Section):
    """Server momentum."""

    kind: Literal["momentum"]
    momentum: Annotated[_Number, Field(ge=0, lt=1)] = 0.9
    learning_rate: Annotated[_Number, Field(gt=0)] = 1.0

    def build(self) -> ServerOptimizer:
        """Return the optimizer, with fresh state."""
        return Momentum(self.momentum, self.learning_rate)


class FixedLengthConfig(_Section):
    """Server steps of planned length."""

    kind: Literal["fixed_length"]
    length: Annotated[_Number, Field(gt=0)]
    rounds: Annotated[StrictInt, Field(ge=1)]
    momentum: Annotated[_Number, Field(ge=0, lt=1)] = 0.9
    final_fraction: Annotated[_Number, Field(ge=0, le=1)] = 0.0

    def build(self) -> ServerOptimizer:
        """Return the optimizer, with fresh state."""
        return FixedLength(self.length, self.rounds, self.momentum, self.final_fraction)


class SignDSConfig(_Section):
    """The ``signds`` section.

    Parameters
    ----------
    sign_k : float
        Fraction of dimensions that count as largest; in (0, 0.25].
    sign_eps : float
        Epsilon of the selection, per round and client; in (0, 100].
    sign_thr_ratio : float
        Least expected fraction of true top dimensions in a report; in [0.5, 1].
    sign_global_lr : float
        Fixed rate; positive. Used without ``sign_mag_eps``, and below
        ``sign_min_participation``.
    sign_dim_out : int
        Reported dimensions, 0 to choose them; in [0, 50].
    sign_mag_eps : float, optional
        Epsilon of the magnitude bit, per round and client; in (0, 100]. Turns MagRR on.
    sign_mag_initial : float
        MagRR's first estimate; positive.
    sign_mag_significance : float
        Standard deviations that a majority must stand out by; 0 as published.
    sign_mag_regrow_after : int
        Settled rounds after which growth is probed again; 0 as published.
    sign_min_participation : float
        Participation below which the fixed rate is used; in [0, 1].
    sign_scaling : {"published", "unbiased"}
        How the sum of signs is scaled.
    sign_server_optimizer : mapping, optional
        ``kind: momentum`` or ``kind: fixed_length`` with its fields.
    """

    sign_k: Annotated[_Number, Field(gt=0, le=0.25)] = 0.01
    sign_eps: Annotated[_Number, Field(gt=0, le=100)] = 100.0
    sign_thr_ratio: Annotated[_Number, Field(ge=0.5, le=1)] = 0.6
    sign_global_lr: Annotated[_Number, Field(gt=0)] = 0.1
    sign_dim_out: Annotated[StrictInt, Field(ge=0, le=50)] = 0
    sign_mag_eps: Annotated[_Number, Field(gt=0, le=100)] | None = None
    sign_mag_initial: Annotated[_Number, Field(ge=1e-30, le=1e30)] = 2.0**-10
    sign_mag_significance: Annotated[_Number, Field(ge=0)] = 2.0
    sign_mag_regrow_after: Annotated[StrictInt, Field(ge=0)] = 5
    sign_min_participation: Annotated[_Number, Field(ge=0, le=1)] = 0.05
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


class DPEncryptConfig(_Section):
    """The published ``dp_encrypt`` section: read, and not used by SignDS."""

    dp_eps: Annotated[_Number, Field(gt=0)] = 50.0
    dp_delta: Annotated[_Number, Field(gt=0, lt=1)] = 0.01
    dp_norm_clip: Annotated[_Number, Field(gt=0)] = 1.0


class PwEncryptConfig(_Section):
    """The published ``pw_encrypt`` section (secure aggregation): read, and not used."""

    share_secrets_ratio: Annotated[_Number, Field(gt=0, le=1)] = 1.0
    cipher_time_window: Annotated[StrictInt, Field(ge=0)] = 300_000
    reconstruct_secrets_threshold: Annotated[StrictInt, Field(ge=0)] = 2_000


class EncryptConfig(_Section):
    """The ``encrypt`` section."""

    encrypt_train_type: Literal["SIGNDS", "NOT_ENCRYPT"] = Field(
        validation_alias=AliasChoices("encrypt_train_type", "encrypt_type")
    )
    signds: SignDSConfig = SignDSConfig()
    dp_encrypt: DPEncryptConfig | None = None
    pw_encrypt: PwEncryptConfig | None = None


class TrainConfig(_Section):
    """A configuration file: one ``encrypt`` section."""

    encrypt: EncryptConfig


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
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    return parse_config(text, source=str(path))


def parse_config(text: str, *, source: str = "<text>") -> TrainConfig:
    """Parse a YAML configuration; see :func:`load_config`."""
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{source}: not valid YAML: {error}") from error
    duplicate = _duplicate_key(root)
    if duplicate is not None:
        line, key = duplicate
        raise ConfigError(f"{source}, line {line}: field {key!r} is given twice")
    try:
        return TrainConfig.model_validate(data)
    except ValidationError as error:
        lines = [
            f"{source}, line {_line_of(root, item['loc'])}: "
            f"{'.'.join(map(str, item['loc'])) or 'file'}: {item['msg']}, got {item['input']!r}"
            for item in error.errors()
        ]
        raise ConfigError("\n".join(lines)) from None


def _line_of(node: yaml.Node | None, location: tuple[int | str, ...]) -> int:
    """Return the line (from 1) of the deepest node that ``location`` leads to."""
    line = 1 if node is None else node.start_mark.line + 1
    for step in location:
        if not isinstance(node, yaml.MappingNode):
            break
        for key, value in node.value:
            if key.value == step:
                node, line = value, key.start_mark.line + 1
                break
    return line


def _duplicate_key(node: Any) -> tuple[int, str] | None:
    """Return line and name of a key that is given twice: YAML would keep the last in silence."""
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            if key.value in seen:
                return key.start_mark.line + 1, str(key.value)
            seen.add(key.value)
            found = _duplicate_key(value)
            if found is not None:
                return found
    elif isinstance(node, yaml.SequenceNode):
        for value in node.value:
            found = _duplicate_key(value)
            if found is not None:
                return found
    return None
