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
from typing import Annotated, Literal

import yaml
from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from flower_ldp.errors import ConfigError
from flower_ldp.mechanisms.magrr import MagRR
from flower_ldp.mechanisms.signds import SignDS
from flower_ldp.strategies import FixedLength, FixedStep, LearnedStep, Momentum, ServerOptimizer
from flower_ldp.strategies.step_size import Scaling


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, populate_by_name=True)


def _in(interval: str, kind: type[float] | type[int] = float) -> BeforeValidator:
    """Return the check that a value is a number of ``kind`` in ``interval``, as "(0, 1]"."""
    low, high = (float(end) for end in interval[1:-1].split(","))
    wanted = f"must be {'an integer' if kind is int else 'a number'} in {interval}"

    def check(value: object) -> object:
        # A bool is an int to Python; comparisons with nan are false, so nan is outside.
        if isinstance(value, (int, kind)) and not isinstance(value, bool):
            above = value >= low if interval[0] == "[" else value > low
            below = value <= high if interval[-1] == "]" else value < high
            if above and below:
                return value
        hint = ", not text (no quotes, and a point before an exponent: 1.0e-3)"
        raise PydanticCustomError(
            "interval", "{wanted}", {"wanted": wanted + (hint if isinstance(value, str) else "")}
        )

    return BeforeValidator(check)


class MomentumConfig(_Section):
    """Server momentum."""

    kind: Literal["momentum"]
    momentum: Annotated[float, _in("[0, 1)")] = 0.9
    learning_rate: Annotated[float, _in("(0, inf)")] = 1.0

    def build(self) -> ServerOptimizer:
        """Return the optimizer, with fresh state."""
        return Momentum(self.momentum, self.learning_rate)


class FixedLengthConfig(_Section):
    """Server steps of planned length."""

    kind: Literal["fixed_length"]
    length: Annotated[float, _in("(0, inf)")]
    rounds: Annotated[int, _in("[1, inf)", int)]
    momentum: Annotated[float, _in("[0, 1)")] = 0.9
    final_fraction: Annotated[float, _in("[0, 1]")] = 0.0

    def build(self) -> ServerOptimizer:
        """Return the optimizer, with fresh state."""
        return FixedLength(self.length, self.rounds, self.momentum, self.final_fraction)


class SignDSConfig(_Section):
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

    sign_k: Annotated[float, _in("(0, 0.25]")] = 0.01
    sign_eps: Annotated[float, _in("(0, 100]")] = 100.0
    sign_thr_ratio: Annotated[float, _in("[0.5, 1]")] = 0.6
    sign_global_lr: Annotated[float, _in("(0, inf)")] = 0.1
    sign_dim_out: Annotated[int, _in("[0, 50]", int)] = 0
    sign_mag_eps: Annotated[float, _in("(0, 100]")] | None = None
    sign_mag_initial: Annotated[float, _in("[1e-30, 1e30]")] = 2.0**-10
    sign_mag_significance: Annotated[float, _in("[0, inf)")] = 2.0
    sign_mag_regrow_after: Annotated[int, _in("[0, inf)", int)] = 5
    sign_min_participation: Annotated[float, _in("[0, 1]")] = 0.05
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

    dp_eps: Annotated[float, _in("(0, inf)")] = 50.0
    dp_delta: Annotated[float, _in("(0, 1)")] = 0.01
    dp_norm_clip: Annotated[float, _in("(0, inf)")] = 1.0


class PwEncryptConfig(_Section):
    """The published ``pw_encrypt`` section (secure aggregation): read, and not used."""

    share_secrets_ratio: Annotated[float, _in("(0, 1]")] = 1.0
    cipher_time_window: Annotated[int, _in("[0, inf)", int)] = 300_000
    reconstruct_secrets_threshold: Annotated[int, _in("[0, inf)", int)] = 2_000


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
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{path}: is not a UTF-8 text file: {error}") from error
    return parse_config(text, source=str(path))


def parse_config(text: str, *, source: str = "<text>") -> TrainConfig:
    """Parse a YAML configuration; see :func:`load_config`."""
    try:
        data = yaml.safe_load(text)
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f", line {mark.line + 1}" if mark else ""
        raise ConfigError(f"{source}{line}: not valid YAML: {error.problem}") from error
    except Exception as error:
        # PyYAML lets anything escape: ValueError from 2020-13-45, KeyError from !!bool x.
        raise ConfigError(f"{source}: not valid YAML: {error}") from error
    found = [(line, f"{key} is given twice") for line, key in _duplicate_keys(root)]
    try:
        if not found:
            return TrainConfig.model_validate(data)
    except ValidationError as error:
        found = [_explain(item, root, text) for item in error.errors()]
    raise ConfigError("\n".join(f"{source}, line {line}: {what}" for line, what in sorted(found)))


def _explain(item: ErrorDetails, root: yaml.Node | None, text: str) -> tuple[int, str]:
    """Return an error's line, and a sentence: the field, what is wanted, what the file has."""
    kind, location = item["type"], list(item["loc"])
    # After the field of a tagged union, pydantic names the tag, which is no field.
    if "sign_server_optimizer" in location[:-1]:
        del location[location.index("sign_server_optimizer") + 1]
    if kind.startswith("union_tag"):
        location.append("kind")
    line, node = _find(root, location)
    name = ".".join(map(str, location)) or "the file"
    if kind == "missing":
        return line, f"{name} is missing"
    if kind in ("extra_forbidden", "invalid_key"):
        return line, f"{name} is not a known field"
    got = "" if node is None else text[node.start_mark.index : node.end_mark.index]
    got = " ".join(got[:60].split()) + ("..." if len(got) > 60 else "")
    wanted = item["msg"].replace("Input should be", "must be")
    if kind.startswith("union_tag"):
        wanted = "must be 'momentum' or 'fixed_length'"
    elif kind.startswith("model"):
        wanted = "must be a section of fields"
    return line, f"{name} {wanted}, got {got or 'nothing'}"


def _find(node: yaml.Node | None, location: list[int | str]) -> tuple[int, yaml.Node | None]:
    """Return the line (from 1) of the last field on the way, and the node at its end."""
    line = 1
    for step in location:
        fields = node.value if isinstance(node, yaml.MappingNode) else []
        node = None
        for key, value in fields:
            if key.value == str(step):
                node, line = value, key.start_mark.line + 1
    return line, node


def _duplicate_keys(root: yaml.Node | None) -> list[tuple[int, str]]:
    """Return line and name of keys given twice: YAML would keep the last in silence."""
    found: list[tuple[int, str]] = []
    waiting, visited = [root], set()
    while waiting:
        node = waiting.pop()
        if id(node) in visited:  # an alias may lead back to where it stands
            continue
        visited.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            waiting += node.value
        elif isinstance(node, yaml.MappingNode):
            waiting += [value for _, value in node.value]
            names: set[str] = set()
            for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
                name = "encrypt_train_type" if key.value == "encrypt_type" else key.value
                if name in names:
                    found.append((key.start_mark.line + 1, key.value))
                names.add(name)
    return found
