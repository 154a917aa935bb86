"""The parts of a policy file: what one release may cost, and what all may cost together."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, ValidationInfo, model_validator
from pydantic_core import PydanticCustomError

from flower_ldp.policy.names import mechanism_name
from flower_ldp.privacy import Unit
from flower_ldp.yaml_source import Section, interval

_MAX_NAME = 200

UnitName = Literal["client", "example", "label"]


def _plain_name(value: str) -> str:
    if not (0 < len(value) <= _MAX_NAME and value.isprintable() and value == value.strip()):
        raise PydanticCustomError(
            "name", f"must be printable text of 1 to {_MAX_NAME} characters, no blanks around it"
        )
    return value


def _ledger_path(value: object, info: ValidationInfo) -> Path:
    """Return the ledger's path, relative to the folder of the policy file."""
    if not isinstance(value, (str, Path)) or not str(value).strip() or str(value)[0] == "~":
        raise PydanticCustomError(
            "path", "must be a path as text, from / or from this file's folder (~ is not read)"
        )
    folder = (info.context or {}).get("folder", "")
    return Path(folder, value)


def _given(value: object) -> object:
    # An empty field is more likely a slip than a wish for no limit.
    if value is None:
        raise PydanticCustomError("empty", "must be filled in or left out")
    return value


def _message_name(value: str) -> str:
    category, dot, action = value.partition(".")
    if category not in ("train", "evaluate", "query") or (dot and not action.isidentifier()):
        raise PydanticCustomError(
            "message_name",
            "must be 'train', 'evaluate' or 'query', or one of these and an action, as "
            "'train.forward'",
        )
    return value


def _data_name(value: str) -> str:
    if "#" in value:
        raise PydanticCustomError(
            "data_name", "must have no '#', which tells parts of the data from its name"
        )
    return _plain_name(value)


Name = Annotated[str, AfterValidator(_plain_name), AfterValidator(mechanism_name)]
DataName = Annotated[str, AfterValidator(_data_name)]
MessageName = Annotated[str, AfterValidator(_message_name)]
_Epsilon = Annotated[float, interval("(0, 1000000]")]
_Delta = Annotated[float, interval("[0, 1)")]
_NotEmpty = BeforeValidator(_given)
LedgerPath = Annotated[Path, BeforeValidator(_ledger_path)]


class Allowance(Section):
    """The largest cost of one release by one mechanism.

    Parameters
    ----------
    epsilon, delta : float
        Of the whole release: a proposal of several is added up.
    unit : {"client", "example", "label"}
        What the cost must be about: the same epsilon protects far less per example.
    post_processing : sequence of {"example", "label"}
        Finer units for which the release only post-processes what was paid for, as the owner
        declares: it is not charged to them. What holds for examples holds for their labels.
    """

    epsilon: _Epsilon
    delta: _Delta = 0.0
    unit: UnitName = "client"
    post_processing: Sequence[Literal["example", "label"]] = ()

    @model_validator(mode="after")
    def _finer_units(self) -> Allowance:
        for unit in self.post_processing:
            if Unit(unit) is Unit(self.unit) or Unit(unit) not in Unit(self.unit).within:
                raise PydanticCustomError(
                    "not_finer",
                    "must be units finer than the release's own",
                    {"at": ("post_processing",)},
                )
        return self


class Amount(Section):
    """A total that must not be exceeded."""

    epsilon: _Epsilon
    delta: _Delta = 0.0


class Window(Amount):
    """A total for every period of this length."""

    days: Annotated[float, interval("(0, 36500]")]


class Budget(Section):
    """The totals of one unit. Only the one for life has no way around it, so it is required."""

    life: Amount
    run: Annotated[Amount | None, _NotEmpty] = None
    window: Annotated[Window | None, _NotEmpty] = None
