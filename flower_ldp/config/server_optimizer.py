"""What the server makes of a round's sum: one section for each optimizer, told by its ``kind``.

A section has the fields of the optimizer's dataclass, with their types and defaults.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from functools import reduce
from operator import or_
from types import MappingProxyType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Literal,
    TypeAlias,
    get_type_hints,
)

from pydantic import Field, create_model

from flower_ldp.strategies import (
    Adagrad,
    Adam,
    AgreedLength,
    FixedLength,
    Momentum,
    ServerOptimizer,
    Yogi,
)
from flower_ldp.yaml_source import Section, interval

_OPTIMIZERS: Mapping[str, type[Any]] = MappingProxyType(
    {
        "momentum": Momentum,
        "fixed_length": FixedLength,
        "agreed_length": AgreedLength,
        "adam": Adam,
        "yogi": Yogi,
        "adagrad": Adagrad,
    }
)
_ENDS = {
    **dict.fromkeys(("momentum", "beta_1", "beta_2"), "[0, 1)"),
    **dict.fromkeys(("learning_rate", "length", "eta", "tau"), "(0, inf)"),
    "rounds": "[1, inf)",
    "final_fraction": "[0, 1]",
}


class OptimizerSection(Section):
    """A server optimizer, by its ``kind``."""

    optimizer: ClassVar[type[Any]]

    @property
    def uses_magnitude(self) -> bool:
        """Whether the length of a step depends on what clients tell of it."""
        return self.optimizer not in (FixedLength, AgreedLength)

    def build(self) -> ServerOptimizer:
        """Return the optimizer, with fresh state."""
        built: ServerOptimizer = self.optimizer(**self.model_dump(exclude={"kind"}))
        return built


def _section(kind: str, optimizer: type[Any]) -> type[OptimizerSection]:
    types, own = get_type_hints(optimizer), {}
    for one in fields(optimizer):
        if not one.name.startswith("_"):
            check = interval(_ENDS[one.name], types[one.name])
            default = ... if one.default is MISSING else one.default
            own[one.name] = (Annotated[types[one.name], check], default)
    named: Any = {"kind": (Literal[kind], ...), **own}
    section = create_model(optimizer.__name__, __base__=OptimizerSection, **named)
    section.optimizer = optimizer
    return section


#: The section of each optimizer, by its kind.
KINDS: Mapping[str, type[OptimizerSection]] = MappingProxyType(
    {kind: _section(kind, optimizer) for kind, optimizer in _OPTIMIZERS.items()}
)
if TYPE_CHECKING:
    OptimizerConfig: TypeAlias = OptimizerSection
else:
    #: Any of them, told apart by its ``kind``.
    OptimizerConfig = Annotated[reduce(or_, KINDS.values()), Field(discriminator="kind")]
